/* example.h: an example that trains, run as it stands and then with its step compiled.
 *
 * example_NAME.c includes the example's source with main renamed, what it prints swallowed,
 * and its last line, tl_free(opt, t, m), handing over what it has made. */
#ifndef TL_TEST_EXAMPLE_H
#define TL_TEST_EXAMPLE_H

#include <tally_extend.h>

typedef struct {
    tl_model *m;
    tl_opt *opt;
} example_run;

typedef struct {
    const char *name;
    tl_program *step; /* the body of the example's loop; its ctx is an example_run */
    tl_opt *(*optimizer)(tl_model *m);
    int steps;
    char called[65], compiled[65]; /* hash of the final weights */
} example;

/* Takes the hash of the weights, trains another model of seed 1 on the same two inputs with
 * e->step compiled, takes that hash, and frees what the example has made. */
void example_end(example *e, tl_opt *opt, tl_tape *t, tl_model *m, const tl_tensor in[2]);

example example_fit_line(void), example_spiral(void), example_signs(void);
/* The function of gradcheck.c with its op 0 or 1, and its gradient, called and compiled: the same
 * bits. */
bool example_gradcheck(int op);

#endif
