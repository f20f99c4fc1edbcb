/* tally-diff: says where two runs part.
 *
 * Reads two logs that tl_log_open wrote (train_text --log FILE), names the first op whose results
 * differ, says whether its inputs still agreed, and shows what led there. If both runs kept the
 * values of that step (--log-keep STEP), it shows the elements, too.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <tally.h>

#include "autograd/log/read/read.h"

enum { EQUAL = 0, DIFFERENT = 1, TROUBLE = 2 };

static tl_log_pair logs;

static void introduce(int i)
{
    const tl_log_file *f = logs.file[i];
    const tl_logged_step *first = tl_log_step_at(f, 0),
                         *last = tl_log_step_at(f, tl_log_steps(f) - 1);
    int64_t line_number, damaged = tl_log_damaged(f, &line_number);
    printf("%c  %s: ", 'A' + i, logs.path[i]);
    if (last == NULL)
        printf("no step");
    else if (first == last)
        printf("step %" PRId64 "%s", first->number, last->complete ? "" : ", cut off");
    else
        printf("steps %" PRId64 " to %" PRId64 "%s", first->number, last->number,
               last->complete ? "" : ", the last one cut off");
    printf(" (%s)\n", tl_log_hash(f));
    if (damaged > 0)
        printf("   %" PRId64 " damaged line%s passed over, the first in line %" PRId64 "\n",
               damaged, damaged > 1 ? "s" : "", line_number);
}

/* Says how far each log goes beyond the step that both have last. */
static void print_rest(int64_t last)
{
    for (int i = 0; i < 2; i++) {
        const tl_logged_step *s = tl_log_step_at(logs.file[i], tl_log_steps(logs.file[i]) - 1);
        if (s->number > last)
            printf("%c goes on to step %" PRId64 ", which %c does not have.\n", 'A' + i, s->number,
                   'B' - i);
    }
}

/* What has been compared. */
typedef struct {
    int64_t steps, results, unknown, fused;
    int64_t scalars; /* steps of which only the scalars were compared */
} tally;

static bool is_damaged(int i)
{
    int64_t line;
    return tl_log_damaged(logs.file[i], &line) > 0;
}

static int print_equal(const tally *n)
{
    if (n->steps == 0) {
        puts("\nThere is nothing to compare: no step is in both logs.");
        return TROUBLE;
    }
    printf("\nNo difference: %" PRId64 " results of %" PRId64 " step%s are the same.\n", n->results,
           n->steps, n->steps > 1 ? "s" : "");
    if (n->scalars > 0)
        printf("Of %" PRId64 " of these steps one log has the scalars alone (losses, norms, "
               "rates): nothing else of them could be compared.\n",
               n->scalars);
    if (n->fused > 0)
        printf("%" PRId64 " more have no record in the run that was compiled: fused into others, "
               "merged or replaced.\n",
               n->fused);
    if (n->unknown > 0)
        printf("%" PRId64 " more results could not be compared: sums that each micro-batch begins "
               "anew, or a batch along another axis than the first.\n",
               n->unknown);
    print_rest(logs.agreed);
    if (!is_damaged(0) && !is_damaged(1))
        return EQUAL;
    puts("But lines are damaged: what stood there has not been compared.");
    return TROUBLE;
}

/* The next step of both logs; false at the end of one. */
static bool next_step(int at[2], const tl_logged_step *s[2])
{
    while (at[0] < tl_log_steps(logs.file[0]) && at[1] < tl_log_steps(logs.file[1])) {
        for (int k = 0; k < 2; k++)
            s[k] = tl_log_step_at(logs.file[k], at[k]);
        at[0] += s[0]->number <= s[1]->number;
        at[1] += s[1]->number <= s[0]->number;
        if (s[0]->number == s[1]->number)
            return true;
    }
    return false;
}

static int compare(void)
{
    const tl_logged_step *s[2];
    int at[2] = {0, 0};
    tally n = {0};
    while (next_step(at, s)) {
        tl_log_comparison c;
        if (tl_log_compare(&c, s[0], s[1]) != TL_OK) {
            fputs("tally-diff: out of memory\n", stderr);
            return TROUBLE;
        }
        bool part = c.first >= 0 || c.other != 0;
        tl_log_report(stdout, &logs, &c);
        n.results += c.same;
        n.unknown += c.unknown;
        n.fused += c.fused;
        n.steps += c.same > 0;
        n.scalars += c.same > 0 && !(s[0]->full && s[1]->full);
        logs.agreed = c.same > 0 ? s[0]->number : logs.agreed;
        logs.agreed_whole = c.same > 0 && s[0]->full && s[1]->full ? s[0]->number
                                                                   : logs.agreed_whole;
        tl_log_comparison_free(&c);
        if (part)
            return DIFFERENT;
    }
    return print_equal(&n);
}

static int wrong_use(const char *what, const char *arg)
{
    fprintf(stderr,
            "tally-diff: %s%s\nusage: tally-diff LOG_A LOG_B      (tally-diff --help says more)\n",
            what, arg);
    return TROUBLE;
}

static const char help[] =
    "usage: tally-diff LOG_A LOG_B\n\n"
    "Names the first op in which two logged runs differ, and says whether it is to blame.\n"
    "Logs are written by tl_log_open, and by the examples that train with --log FILE.\n"
    "With --log-keep STEP in both runs it shows the elements of that step, too.\n\n"
    "exit status: 0 no difference in the steps that both have, 1 the runs differ,\n"
    "2 trouble: a log that cannot be read, or has damaged lines and no difference\n";

/* The exit status if that is the verdict and the output has been written. */
static int written(int verdict)
{
    const bool lost = fflush(stdout) != 0 || ferror(stdout);
    if (lost)
        perror("tally-diff: cannot write the output");
    return lost ? TROUBLE : verdict;
}

int main(int argc, char **argv)
{
    tl_err err = {.status = TL_OK};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0)
            return fputs(help, stdout), written(EQUAL);
        if (argv[i][0] == '-' && argv[i][1] != '\0')
            return wrong_use("unknown flag ", argv[i]);
    }
    if (argc != 3)
        return wrong_use(argc < 2    ? "two logs are needed"
                         : argc == 2 ? "two logs are needed, only one is given: "
                                     : "two logs are needed, not more: ",
                         argc < 2 ? "" : argv[argc == 2 ? 1 : 3]);
    for (int i = 0; i < 2; i++) {
        logs.path[i] = argv[1 + i];
        if (tl_log_read(&logs.file[i], logs.path[i], &err) != TL_OK) {
            fputs("tally-diff: ", stderr);
            tl_log_print(stderr, err.message);
            fputc('\n', stderr);
            tl_log_file_close(logs.file[0]);
            return TROUBLE;
        }
    }
    introduce(0);
    introduce(1);
    bool comparable = strcmp(tl_log_hash(logs.file[0]), tl_log_hash(logs.file[1])) == 0;
    if (!comparable)
        puts(
            "\nThey cannot be compared: one hashes values by SHA-256, as logs of version 2 do, the "
            "other by XXH3-128.\nRun the older one again.");
    int status = comparable ? compare() : TROUBLE;
    tl_log_file_close(logs.file[0]);
    tl_log_file_close(logs.file[1]);
    return written(status);
}
