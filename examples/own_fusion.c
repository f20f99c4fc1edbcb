/* own_fusion: a replacement of your own in a compiled program, made where the last dim is 7168 and
 * nowhere else.
 *
 *   build/own_fusion [WIDTH]   what was replaced at that width (7168), and what was not and why
 *   TL_WITHOUT=my_add_norm build/own_fusion   the same without it
 *
 * The library's own add_rms_norm, which does the same at any width, is left out of the graph to
 * leave room for it. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_extend.h>

/* What is looked for, and what is put there; both are programs. out[1], the sum, is used by others,
 * too. */
static void search(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n, (void)n_out;
    out[1] = tl_add(t, in[0], in[1]);
    out[0] = tl_rms_norm(t, out[1], in[2], v->scalar[0]);
}

static void replace(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const tl_pattern_values *v = ctx;
    (void)n, (void)n_out;
    out[0] = tl_add_rms_norm(t, in[0], in[1], in[2], v->scalar[0], NULL, &out[1]);
}

static bool wide(const tl_match *m, void *ctx)
{
    const tl_array *x = tl_match_input(m, "x1"), *y = tl_match_input(m, "x2");
    (void)ctx;
    return tl_array_same_shape(x, y) && x->dim[x->ndim - 1] == 7168;
}

/* The program that is compiled: two residual layers that begin as the pattern does. */
static void layers(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    tl_tensor gamma = tl_fill(t, TL_F32, TL_DIMS(tl_shape_of(t, in[0]).dim[1]), 0.5), h = in[0];
    for (int i = 0; i < 2; i++) {
        tl_tensor sum = tl_add(t, h, in[1]);
        h = tl_add(t, sum, tl_silu(t, tl_rms_norm(t, sum, gamma, 1e-5)));
    }
    out[0] = h;
}

int main(int argc, char **argv)
{
    char *end = "";
    int64_t width = argc > 1 ? strtoll(argv[1], &end, 10) : 7168;
    bool help = argc == 2 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0);
    if (width < 1 || *end != '\0' || argc > 2) {
        if (!help && argc == 2)
            fprintf(stderr, "own_fusion: '%s' is not a width; it is a number from 1 up\n", argv[1]);
        fprintf(help ? stdout : stderr, "usage: own_fusion [WIDTH]      rows of so many (7168)\n");
        return help ? 0 : 2;
    }
    tl_err err = {.status = TL_OK};
    tl_pattern_arg args[] = {TL_ARG("x1", TL_F32, TL_DIMS(2, 40)),
                             TL_ARG("x2", TL_F32, TL_DIMS(2, 40)),
                             TL_ARG("gamma", TL_F32, TL_DIMS(40))};
    tl_pattern_scalar eps = {"eps", 0x1.3p-11}; /* any value that no other attribute has */
    tl_register_replacement(&err, .name = "my_add_norm", .search = search, .replace = replace,
                            .example_inputs = args, .n_in = 3, .n_out = 2, .scalars = &eps,
                            .n_scalars = 1, .extra_check = wide, .exact = TL_ALL_FLOATS);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor in[2] = {tl_fill(t, TL_F32, TL_DIMS(4, width), 0.25),
                       tl_fill(t, TL_F32, TL_DIMS(4, width), 0.75)};
    tl_graph *g = err.status != TL_OK
                      ? NULL
                      : tl_trace(t, layers, in, 2, 1, NULL, .without = "add_rms_norm");
    if (g != NULL)
        tl_graph_report(g, stdout);
    else
        fprintf(stderr, "own_fusion: %s\n", err.status != TL_OK ? err.message : tl_error(t));
    int bad = g == NULL;
    errno = EIO; /* if a write has failed before this one, which may say more */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        perror("own_fusion: cannot write the output");
        bad = 1;
    }
    tl_free(g, t);
    return bad;
}
