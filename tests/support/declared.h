/* declared.h: what the public headers declare, and what commands print. */
#ifndef TESTS_SUPPORT_DECLARED_H
#define TESTS_SUPPORT_DECLARED_H

#include <stdbool.h>

typedef struct {
    struct {
        char text[64];
        bool function; /* else an object */
    } name[4096];
    int n;
} name_list;

void add_name(name_list *l, const char *begin, const char *end, bool function);
bool has_name(const name_list *l, const char *name);

/* The functions and objects that the headers besides tally.h, and tally.h in them, declare, as the
 * preprocessor gives it, and those of one more header. */
void add_declared(name_list *l, const char *header);

/* What a command prints; fails unless it succeeds. The caller frees. */
char *output_of(const char *command);

#endif
