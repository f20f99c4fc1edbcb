/* contract.c: see contract.h. */
#include "tests/support/contract.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LINE = 512, SLOTS = 1 << 14 };

static char *said[SLOTS]; /* hashed, open addressing: lives as long as the process */

/* True the first time that a line comes. */
static bool is_new(const char *line)
{
    size_t h = 5381;
    for (const char *p = line; *p != '\0'; p++)
        h = h * 33 + (unsigned char)*p;
    for (size_t k = 0; k < SLOTS; k++) {
        char **slot = &said[(h + k) % SLOTS];
        if (*slot == NULL)
            return (*slot = strdup(line)) != NULL;
        if (strcmp(*slot, line) == 0)
            return false;
    }
    return true;
}

/* A file that cannot be written must not look like one to which nothing was said. */
static void write_line(const char *path, const char *line)
{
    size_t n = strlen(line);
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || write(fd, line, n) != (ssize_t)n || close(fd) != 0) {
        fprintf(stderr, "TL_CONTRACT: cannot write %s\n", path);
        abort();
    }
}

static void say(const char *op, const char *axis, const char *verdict, const char *reason)
{
    const char *path = getenv("TL_CONTRACT");
    char line[LINE];
    if (path == NULL || *path == '\0')
        return;
    snprintf(line, sizeof line - 1, "%s\t%s\t%s%s%s", op, axis, verdict, *reason ? "\t" : "",
             reason);
    strcat(line, "\n");
    if (is_new(line))
        write_line(path, line);
}

void tl_ran(const char *op, const char *axis) { say(op, axis, "ran", ""); }
void tl_ran_failed(const char *op, const char *axis) { say(op, axis, "failed", ""); }
void tl_ran_none(const char *op, const char *axis, const char *reason)
{
    say(op, axis, "none", reason);
}
void tl_ran_only(const char *op, const char *axis, const char *limit)
{
    say(op, axis, "only", limit);
}
