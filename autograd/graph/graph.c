/* graph.c: a graph is made and freed; whether it fits a run. */
#include <inttypes.h>
#include <stdio.h>
#include <time.h>

#include "autograd/graph/internal.h"
#include "tensor/threads.h"

/* In whole nanoseconds: a caller may trap inexact operations. */
static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Gives back the memory that g holds of its tape. */
static void leave_tape(tl_graph *g)
{
    for (uint32_t i = 0; g->roots != NULL && i < g->n_roots; i++)
        tl_storage_release(g->roots[i].st);
    tl_storage_release(g->slab);
    tl_object_end(g->t);
    tl_tracing_free(g->tracing);
    g->n_roots = 0;
    g->outside = NULL;
    g->slab = NULL;
    g->t = NULL;
    g->tracing = NULL;
    g->user = NULL;
}

/* The tape is freed before its graphs, which give its memory back and cannot run any more. */
static void orphan(void *ctx, TL_UNUSED tl_tape *t)
{
    tl_tape_graphs *a = ctx;
    for (tl_compiled *c = a->compiled; c != NULL; c = c->next)
        c->tape = NULL;
    while (a->graphs != NULL) {
        tl_graph *g = a->graphs;
        a->graphs = g->next;
        leave_tape(g);
    }
    tl_free_raw(a);
}

static const tl_observer orphans = {.freed = orphan};

tl_tape_graphs *tl_graphs_of(tl_tape *t)
{
    tl_tape_graphs *a = tl_observed(t, &orphans);
    if (a != NULL || (a = tl_calloc(1, sizeof *a)) == NULL)
        return a;
    if (tl_observe(t, &orphans, a) == TL_OK)
        return a;
    tl_free_raw(a);
    return NULL;
}

static void graph_destroy(void *object)
{
    tl_graph *g = object;
    if (g->user != NULL) {
        tl_later_forget(g);
        tl_graph **at = &tl_graphs_of(g->user)->graphs;
        while (*at != g)
            at = &(*at)->next;
        *at = g->next;
        leave_tape(g);
    }
    tl_prints_free(&g->prints);
    tl_bump_free(&g->bump);
}

static tl_graph *graph_new(tl_tape *user, int n_in, int n_out, tl_graph_options o)
{
    tl_tape_graphs *all = tl_graphs_of(user);
    tl_graph *g = all == NULL ? NULL : tl_calloc(1, sizeof *g);
    if (g == NULL)
        return NULL;
    tl_object_begin(&g->head, TL_KIND_GRAPH, graph_destroy);
    g->user = user;
    g->next = all->graphs;
    all->graphs = g;
    g->opt = o;
    g->traced_choice = user->now.choice;
    g->traced_givers = tl_trace_givers(user);
    g->traced_mode = user->now.mode;
    if (user->model != NULL) {
        g->traced_settings = user->model->settings;
        g->traced_values = atomic_load(&user->model->values.count);
        g->traced_seed = user->model->seed; /* random streams hold keys made from it */
    }
    g->n_in = n_in;
    g->n_out = n_out;
    g->in = tl_bump_get(&g->bump, (size_t)n_in * sizeof *g->in);
    g->given = tl_bump_get(&g->bump, (size_t)n_in * sizeof *g->given);
    g->out = tl_bump_get(&g->bump, (size_t)n_out * sizeof *g->out);
    g->tracing = tl_tracing_new(user->arena);
    if (g->tracing != NULL) {
        g->tracing->user = user;
        g->tracing->frozen = user->model != NULL ? user->model->frozen : 0;
        g->t = tl_trace_tape(user, g->tracing);
    }
    if (g->in == NULL || g->given == NULL || g->out == NULL || g->t == NULL) {
        tl_object_end(g);
        return NULL;
    }
    return g;
}

/* The first input that is the same tensor as input i. */
static int twin(const tl_tensor *in, int i)
{
    for (int j = 0; j < i; j++)
        if (tl_same_handle(in[j], in[i]))
            return j;
    return i;
}

/* A constant, or a value made of constants, may be part of weights. Tensors of the model are not
 * fixed: they change. */
static bool is_fixed(const tl_graph *g, tl_tensor x)
{
    return x.owner == g->user->values.owner && tl_peek(g->user, x)->fixed;
}

static void set_input(tl_graph *g, int i, tl_tensor x)
{
    tl_value *v = tl_peek(g->t, g->in[i]);
    v->batch = tl_peek(g->user, x)->batch; /* whichever part of the samples x is */
    v->samples = tl_peek(g->user, x)->samples;
    v->fixed = is_fixed(g, x);
    g->given[i] = *v;
}

/* x can be input i, as far as its dependence on the batch goes. */
static bool depends_alike(const tl_graph *g, int i, tl_tensor x)
{
    const tl_value *v = tl_peek(g->user, x), *was = &g->given[i];
    const uint64_t print = tl_peek(g->t, g->in[i])->print;
    return v->batch == was->batch && v->samples == was->samples && is_fixed(g, x) == was->fixed &&
           (print == 0 || print == tl_derived_print(g->user, x));
}

tl_status tl_graph_input_fits(const tl_graph *g, const tl_tensor *in, int i, const tl_at *at)
{
    const tl_value *v = tl_peek(g->user, in[i]), *was = tl_peek(g->t, g->in[i]);
    const int same = twin(in, i), was_same = twin(g->in, i);
    const bool dtype = v->a.dtype == was->a.dtype;
    const bool array = dtype && tl_array_same_shape(&v->a, &was->a);
    const bool depends = array && depends_alike(g, i, in[i]);
    if (depends && same == was_same)
        return TL_OK;
    if (at == NULL)
        return TL_EUSAGE;
    if (!array)
        return tl_tape_fail(*at, dtype ? TL_ESHAPE : TL_EDTYPE,
                            "tl_graph_run: input %d is %s %s, but the graph was traced with %s %s",
                            i, tl_dtype_name(v->a.dtype), TL_TEXT(&v->a),
                            tl_dtype_name(was->a.dtype), TL_TEXT(&was->a));
    if (!depends)
        return tl_tape_fail(*at, TL_EUSAGE,
                            "tl_graph_run: input %d depends on the batch otherwise than the one "
                            "that the graph was traced with (tl_batch_of: %d, %d; of %lld samples, "
                            "%lld), or is another constant, of which weights are made",
                            i, v->batch, g->given[i].batch, (long long)v->samples,
                            (long long)g->given[i].samples);
    return tl_tape_fail(*at, TL_EUSAGE,
                        "tl_graph_run: inputs %d and %d are %s tensor, which they were %s "
                        "when the graph was traced",
                        i, same != i ? same : was_same, same != i ? "the same" : "not the same",
                        same != i ? "not" : "");
}

/* Notes the model's last tensor. It is an error if the trace uses one that is gone. */
static tl_status know_model(tl_graph *g, tl_at at)
{
    tl_model *m = g->user->model;
    if (m != NULL) {
        pthread_mutex_lock(&m->lock); /* other threads may be making tensors */
        const uint32_t n = atomic_load(&m->values.count);
        g->newest = n == 0 ? TL_NONE : tl_model_handle(m, n - 1);
        pthread_mutex_unlock(&m->lock);
    }
    if (m != NULL && m->frozen != g->tracing->frozen)
        return tl_fail(&g->head.err, TL_ETRACED,
                       "tl_trace: the traced function has frozen or thawed parameters, which acts "
                       "when it is traced and not in each run; call tl_model_freeze outside "
                       "(%.90s:%d)",
                       at.file, at.line);
    for (uint32_t i = 0; i < g->t->n_nodes; i++)
        for (int k = 0; k < g->t->node[i].n_in; k++) {
            const tl_node *node = &g->t->node[i];
            if (!tl_is_none(node->in[k]) && tl_peek(g->t, node->in[k]) == NULL)
                return tl_fail(
                    &g->head.err, TL_ESTALE,
                    "tl_trace: input %d of %s was removed from the model since (%.90s:%d)", k,
                    node->op->name, node->file, node->line);
        }
    return TL_OK;
}

/* Calls the program on the graph's tape. */
static tl_status record(tl_graph *g, tl_at at, tl_program *f, const tl_tensor *in, void *ctx)
{
    for (int i = 0; i < g->n_in; i++) {
        const tl_value *v = tl_deref(at, in[i], "tl_trace");
        if (v == NULL) {
            const tl_status s = tl_error_status(at.tape); /* the model's may be cleared by now */
            return tl_tape_stopped(at.tape, s == TL_OK ? TL_ESTALE : s);
        }
        const tl_shape s = tl_array_shape(&v->a);
        const tl_array a = tl_array_make(v->a.dtype, &s, NULL);
        const int same = twin(in, i);
        g->in[i] = same < i ? g->in[same]
                            : tl_trace_leaf(g->t, &a, (tl_leaf){TL_LEAF_INPUT, (uint32_t)i, 0});
        if (!tl_is_none(g->in[i]))
            set_input(g, i, in[i]);
    }
    g->tracing->given = in;
    g->tracing->whole = true;
    tl_tape *u = g->user;
    const void *before = tl_recording;
    const char *inside = u->inside;
    tl_recording = g->t->model;
    u->inside = "a traced function (use the tape that it is given)";
    f(g->t, g->in, g->n_in, g->out, g->n_out, ctx);
    u->inside = inside;
    tl_recording = before;
    g->prints = g->t->prints;
    g->t->prints = (tl_prints){0};
    if (u->head.err.status != TL_OK)
        return tl_fail(&g->head.err, u->head.err.status, "%s", u->head.err.message);
    const tl_status s = tl_error_status(g->t); /* once: another thread may clear the model's */
    if (s != TL_OK)
        return tl_fail(&g->head.err, s, "%s", tl_error(g->t));
    for (int i = 0; i < g->n_out; i++) {
        if (tl_is_none(g->out[i]))
            return tl_fail(&g->head.err, TL_EUSAGE,
                           "tl_trace: the program set no output %d (%.90s:%d)", i, at.file,
                           at.line);
        if (tl_deref((tl_at){g->t, at.file, at.line, NULL}, g->out[i], "tl_trace") == NULL)
            return tl_fail(&g->head.err, TL_ESTALE, "%s", tl_error(g->t));
    }
    return know_model(g, at);
}

/* Makes the graph from the recorded program, in this order (internal.h). */
static tl_status compile(tl_graph *g)
{
    g->t->busy = 1; /* what is recorded from here on is no program's, which another thread's error
                     * of the model stops */
    tl_graph_keys_forward(g);
    TL_TRY(tl_graph_replaces(g, false));
    TL_TRY(tl_graph_rebuild(g, false));
    TL_TRY(tl_graph_replaces(g, true));
    TL_TRY(tl_graph_keys_end(g));
    const int64_t began = now();
    for (int i = 0; i < g->n_out; i++)
        g->needs_grad |= tl_peek(g->t, g->out[i])->needs_grad;
    TL_TRY(tl_graph_find_roots(g));
    TL_TRY(tl_graph_find_changes(g));
    if (!g->opt.no_simplify)
        TL_TRY(tl_graph_simplify(g));
    TL_TRY(tl_graph_order(g));
    TL_TRY(tl_graph_find_changes(g));
    TL_TRY(tl_graph_check_changes(g));
    TL_TRY(tl_graph_fuse(g));
    TL_TRY(tl_graph_plan(g));
    g->stats.plan_seconds = 1e-9 * (double)(now() - began);
    return TL_OK;
}

tl_status tl_graph_there(tl_graph *g, const char *func)
{
    if (!tl_lives(g))
        return tl_error_status(g);
    return g->user != NULL
               ? TL_OK
               : tl_fail(&g->head.err, TL_ESTALE, "%s: the graph's tape has been freed", func);
}

tl_graph *tl_trace_at(tl_at at, tl_program *f, const tl_tensor *in, int n_in, int n_out, void *ctx,
                      tl_graph_options o)
{
    if (tl_failed(at.tape) || TL_NEED_AT(at, f) != TL_OK || TL_NEED_N_AT(at, in, n_in) != TL_OK ||
        TL_NEED_N_AT(at, f, n_out) != TL_OK)
        return NULL;
    if (tl_traced(at.tape))
        return tl_tape_fail(at, TL_ETRACED,
                            "tl_trace: this tape is a trace itself; call the program instead"),
               NULL;
    if (at.tape->inside != NULL || !tl_object_given(at.tape))
        return tl_tape_fail(at, TL_EUSAGE, "tl_trace: called inside %s",
                            at.tape->inside != NULL ? at.tape->inside : "the end of its tape"),
               NULL;
    const tl_cost_limits *l = &o.limits;
    if ((l->body | l->reads | l->again_bytes | l->again_steps) < 0)
        return tl_tape_fail(at, TL_EDOMAIN,
                            "tl_trace: .limits.body %lld, reads %lld, again_bytes %lld, "
                            "again_steps %lld: none can be below 0",
                            (long long)l->body, (long long)l->reads, (long long)l->again_bytes,
                            (long long)l->again_steps),
               NULL;
    const int64_t began = now();
    tl_graph *g = graph_new(at.tape, n_in, n_out, o);
    if (g == NULL)
        return tl_tape_fail(at, TL_ENOMEM, "tl_trace: no memory for a graph"), NULL;
    g->file = at.file;
    g->line = at.line;
    tl_status s = tl_graph_keys_begin(g);
    if (s == TL_OK)
        s = record(g, at, f, in, ctx);
    tl_fpenv saved = tl_fpenv_enter(); /* constants are read and computed */
    if (s == TL_OK)
        s = compile(g);
    g->stats.trace_seconds = 1e-9 * (double)(now() - began) - g->stats.plan_seconds;
    tl_fpenv_leave(saved);
    if (s == TL_OK) {
        tl_object_give(&g->head);
    } else {
        tl_fail(&at.tape->head.err, s, "%s", g->head.err.message);
        tl_object_end(g);
        g = NULL;
    }
    return g;
}

tl_graph_stats tl_graph_stats_of(const tl_graph *g)
{
    return tl_lives(g) ? g->stats : (tl_graph_stats){0};
}

/* ---- whether a graph can run ---- */

/* Tensors were removed since g was traced. */
static bool is_cut(const tl_graph *g)
{
    const tl_model *m = g->user->model;
    return m != NULL && !tl_is_none(g->newest) && tl_model_value(m, g->newest) == NULL;
}

bool tl_graph_is_over(const tl_graph *g)
{
    const tl_model *m = g->user->model;
    return m != NULL && (m->settings != g->traced_settings || is_cut(g));
}

const char *tl_graph_misfits(char buf[TL_MISFITS_TEXT], const tl_graph *g, unsigned mode)
{
    const tl_tape *u = g->user;
    const tl_model *m = u->model;
    size_t n = 0;
    buf[0] = '\0';
#define ADD(...) n += (size_t)snprintf(buf + n, TL_MISFITS_TEXT - n, __VA_ARGS__)
    if (u->now.mode != g->traced_mode && u->now.mode != mode)
        ADD(", modes (%#x, now %#x)", g->traced_mode, u->now.mode);
    if (u->now.choice != g->traced_choice)
        ADD(", selected kernels");
    if (tl_trace_givers(u) != g->traced_givers)
        ADD(", observers of what vjps return");
    if (m != NULL && m->frozen != g->tracing->frozen)
        ADD(", frozen parameters");
    if (is_cut(g))
        ADD(", tensors of the model that are no more");
    if (m != NULL && m->settings != g->traced_settings)
        ADD(", optimizers' groups or names to freeze");
    if (m != NULL && m->seed != g->traced_seed)
        ADD(", seed (%" PRIu64 ", now %" PRIu64 ")", g->traced_seed, m->seed);
#undef ADD
    return buf + (n > 0 ? 2 : 0);
}
