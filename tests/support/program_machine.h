/* program_machine.h: a program of programs.h being carried out - the values it has so far - and the
 * kinds of its ops. */
#ifndef TESTS_SUPPORT_PROGRAM_MACHINE_H
#define TESTS_SUPPORT_PROGRAM_MACHINE_H

#include "tests/support/programs.h"

typedef struct {
    tl_tensor x;
    tl_shape s;
    tl_dtype d;
} value;

/* What an op gave; first the inputs and a parameter. */
typedef struct {
    value v[PROGRAM_WIDE];
    int n;
} made;

typedef struct {
    tl_tape *t;
    tl_model *m;
    const program *p;
    const program_watch *w;
    const tl_tensor *in;
    made of[PROGRAM_VALUES];
    int n, now;   /* values; the step under way */
    int64_t most; /* elements of a value */
    uint64_t cuts;
    bool open;              /* a segment, */
    uint32_t begin, logged; /* at this node; nodes that the log has */
} machine;

value program_value(machine *m, tl_tensor x);
/* Output `out` of what number `at` has made, and a note of who reads it. */
value program_read(machine *m, int at, int out);
value program_pick(machine *m, uint32_t r);
/* Numbers of the program itself: the same in every run. */
tl_tensor program_constant(machine *m, uint32_t r, tl_dtype d, tl_shape s);

/* Records step s on x; fills out[] and returns how many values came out. */
int program_take(machine *m, const program_step *s, value x, tl_tensor out[PROGRAM_WIDE]);
const char *program_kind(const program_step *s);
uint32_t program_random_kind(uint64_t *state);

#endif
