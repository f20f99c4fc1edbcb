/* bench_peer.c: PyTorch (nets.py), a process of its own, which takes a step when it is asked to. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/bench/bench.h"

tl_bench_peer tl_bench_peer_open(const char *net, const int64_t number[TL_BENCH_NUMBERS],
                                 int threads)
{
    static const char python[] = TL_BUILD "/peers/bin/python";
    tl_bench_peer p = {0};
    int to[2], from[2];
    signal(SIGPIPE, SIG_IGN); /* of a peer that has died */
    if (access(python, X_OK) != 0 || pipe(to) != 0 || pipe(from) != 0)
        return p;
    p.pid = fork();
    if (p.pid == 0) {
        char word[1 + TL_BENCH_NUMBERS][24];
        const char *argv[] = {python,  "-Wignore", TL_ROOT "/tests/bench/nets.py",
                              net,     word[0],    word[1],
                              word[2], word[3],    word[4],
                              word[5], word[6],    word[7],
                              NULL};
        snprintf(word[0], sizeof word[0], "%d", threads);
        for (int i = 0; i < TL_BENCH_NUMBERS; i++)
            snprintf(word[1 + i], sizeof word[1], "%lld", (long long)number[i]);
        dup2(to[0], 0);
        dup2(from[1], 1);
        close(to[1]);
        close(from[0]);
        execv(python, (char **)argv);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    p.to = fdopen(to[1], "w");
    p.from = fdopen(from[0], "r");
    return p;
}

double tl_bench_peer_step(tl_bench_peer *p, const char *way)
{
    char line[128];
    double seconds;
    if (p->to == NULL || fprintf(p->to, "%s\n", way) < 0 || fflush(p->to) != 0 ||
        fgets(line, sizeof line, p->from) == NULL ||
        sscanf(line, "%lf %lf %lf %lf", &seconds, &p->update, &p->spent, &p->grown) != 4)
        return (double)NAN;
    return seconds;
}

void tl_bench_peer_close(tl_bench_peer *p)
{
    if (p->to == NULL)
        return;
    fclose(p->to);
    fclose(p->from);
    waitpid(p->pid, NULL, 0);
}
