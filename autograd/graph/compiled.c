/* compiled.c: compiled programs: a graph for each signature of inputs, traced when it is first met.
 */
#include "autograd/graph/internal.h"

static void compiled_destroy(void *object)
{
    tl_compiled *c = object;
    if (c->tape != NULL) {
        tl_compiled **at = &tl_graphs_of(c->tape)->compiled;
        while (*at != c)
            at = &(*at)->next;
        *at = c->next;
    }
    for (int i = 0; i < c->n; i++)
        tl_object_release(c->graph[i]);
    tl_free_raw(c->graph);
}

tl_compiled *tl_compile_at(tl_at at, tl_program *f, int n_out, void *ctx, tl_graph_options o)
{
    tl_tape *t = at.tape;
    if (!tl_lives(t) || TL_NEED_AT(at, f) != TL_OK || TL_NEED_N_AT(at, f, n_out) != TL_OK)
        return NULL;
    if (!tl_object_given(t) && t->recorder == NULL)
        return tl_tape_fail(at, TL_ESTALE, "tl_compile: the tape is being freed"), NULL;
    tl_tape_graphs *all = tl_graphs_of(t);
    tl_compiled *c = all == NULL ? NULL : tl_calloc(1, sizeof *c);
    if (c == NULL)
        return tl_tape_fail(at, TL_ENOMEM, "tl_compile: no memory"), NULL;
    tl_object_begin(&c->head, TL_KIND_GRAPH, compiled_destroy);
    c->tape = t;
    c->next = all->compiled;
    all->compiled = c;
    c->f = f;
    c->n_out = n_out;
    c->ctx = ctx;
    c->opt = o;
    tl_object_give(&c->head);
    return c;
}

int tl_compiled_count(const tl_compiled *c) { return tl_lives(c) ? c->n : 0; }
tl_graph *tl_compiled_at(const tl_compiled *c, int i)
{
    return !tl_lives(c) || i < 0 || i >= c->n ? NULL : c->graph[i];
}

static bool fits(tl_graph *g, const tl_tape *t, const tl_tensor *in, int n_in)
{
    char text[TL_MISFITS_TEXT];
    if (g->n_in != n_in || tl_graph_keys_missing(g) ||
        *tl_graph_misfits(text, g, g->traced_mode) != '\0')
        return false;
    for (int i = 0; i < n_in; i++)
        if (tl_peek(t, in[i]) == NULL || tl_graph_input_fits(g, in, i, NULL) != TL_OK)
            return false;
    return tl_is_none(tl_bind_misfit(g));
}

/* Frees the graphs that can never run again, and that nothing waits for. */
static void drop_over(tl_compiled *c)
{
    int kept = 0;
    for (int i = 0; i < c->n; i++)
        if (tl_graph_is_over(c->graph[i]) && !tl_later_waits(c->graph[i]))
            tl_object_release(c->graph[i]);
        else
            c->graph[kept++] = c->graph[i];
    c->n = kept;
}

static tl_status run_held(const char *file, int line, tl_compiled *c, const tl_tensor *in, int n_in,
                          tl_tensor *out)
{
    for (int i = 0; out != NULL && i < c->n_out; i++)
        out[i] = TL_NONE;
    if (c->tape == NULL)
        return tl_fail(&c->head.err, TL_ESTALE, "tl_run: the tape of the program has been freed");
    const tl_at at = {c->tape, file, line, NULL};
    TL_TRY(tl_tape_need(at, "tl_run", "in", in != NULL, n_in));
    TL_TRY(tl_tape_need(at, "tl_run", "out", out != NULL, c->n_out));
    TL_TRY(tl_may_add(c->tape));
    for (int i = 0; i < c->n; i++)
        if (fits(c->graph[i], c->tape, in, n_in))
            return tl_graph_run_at(file, line, c->graph[i], in, n_in, out, c->n_out);
    drop_over(c);
    tl_graph *g = tl_trace_at(at, c->f, in, n_in, c->n_out, c->ctx, c->opt);
    if (g == NULL)
        return tl_error_status(c->tape);
    tl_object_take(g); /* it is the compiled program's */
    /* grown only now, since the trace may have run c, too */
    if (!tl_grow(&c->graph, &c->cap, c->n, sizeof *c->graph)) {
        tl_object_release(g);
        return tl_tape_fail(at, TL_ENOMEM, "tl_run: no memory for graph %d", c->n);
    }
    c->graph[c->n++] = g;
    return tl_graph_run_at(file, line, g, in, n_in, out, c->n_out);
}

tl_status tl_run_at(const char *file, int line, tl_compiled *c, const tl_tensor *in, int n_in,
                    tl_tensor *out)
{
    if (!tl_object_given(c))
        return tl_lives(c) ? TL_ESTALE : tl_error_status(c);
    tl_object_hold(c); /* host work of the program may free it */
    tl_status s = run_held(file, line, c, in, n_in, out);
    tl_object_release(c);
    return s;
}
