/* program_ways.c: see program_ways.h. */
#include "tests/support/program_ways.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/internal.h"
#include "tensor/files/hash.h"
#include "tensor/isa.h"
#include "tests/cases/cases.h"
#include "tests/ref/ref.h"

typedef struct {
    const program *p;
    const program_watch *w;
    tl_opt *o;
} context;

static void part(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    const context *c = ctx;
    (void)n_in, (void)n_out;
    program_part(t, in, c->p, out, c->w);
}

static void last_part(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out,
                      void *ctx)
{
    part(t, in, n_in, out, n_out, ctx);
    tl_step(((context *)ctx)->o, t);
}

static void update(tl_tape *t, const tl_tensor *in, int n_in, tl_tensor *out, int n_out, void *ctx)
{
    (void)in, (void)n_in, (void)out, (void)n_out;
    tl_step(((context *)ctx)->o, t);
}

/* ---- facts ---- */

static program_fact *fact(program_result *r, const char *fmt, ...) TL_PRINTF(2, 3);
static program_fact *fact(program_result *r, const char *fmt, ...)
{
    va_list args;
    if (r->n == r->room) {
        r->room = 2 * r->room + 64;
        r->fact = realloc(r->fact, (size_t)r->room * sizeof *r->fact);
        ref_check(r->fact != NULL, "out of memory");
    }
    program_fact *f = &r->fact[r->n++];
    *f = (program_fact){.what = ""};
    va_start(args, fmt);
    vsnprintf(f->what, sizeof f->what, fmt, args);
    va_end(args);
    return f;
}

static void tell_array(program_fact *f, const tl_array *a)
{
    char hex[TL_SHA256_HEX];
    tl_sha256_ctx h;
    tl_err e = {.status = TL_OK};
    if (tl_sha256_begin(&h, &e) == TL_OK) {
        tl_hash_array(&h, a);
        tl_sha256_finish_hex(&h, hex, &e);
    }
    ref_check(e.status == TL_OK, "no hash");
    memcpy(f->hash, hex, sizeof f->hash - 1);
}

static void tell_tensor(program_fact *f, tl_tape *t, tl_tensor x)
{
    tl_array a;
    if (tl_is_none(x))
        strcpy(f->hash, "none");
    else if (tl_array_of(t, x, &a))
        tell_array(f, &a);
    else
        strcpy(f->hash, "unreadable");
}

static void tell_number(program_fact *f, double x)
{
    tl_array a = tl_array_make(TL_F64, &TL_SCALAR, &x);
    tell_array(f, &a);
}

/* What micro-batches have left. there: false after an update that is part of the last one. */
static void tell_accumulators(program_result *r, tl_tape *t, bool there)
{
    if (!there) {
        fact(r, "accumulators");
        return;
    }
    for (int k = 0; k < tl_model_count(tl_tape_model(t)); k++)
        for (int i = 0; i < tl_accumulating_count(t); i++) {
            tl_accumulating g = tl_accumulating_at(t, i);
            if (*g.kind != '\0' && strcmp(g.param, tl_model_at(tl_tape_model(t), k).name) == 0)
                tell_array(fact(r, "%.20s: %d %.30s", g.param, g.call, g.kind), &g.array);
        }
}

static void tell_model(program_result *r, tl_tape *t, tl_model *m, tl_opt *o)
{
    tell_number(fact(r, "updates"), (double)tl_opt_steps(o));
    tell_number(fact(r, "norm of the gradient"), tl_opt_grad_norm(o));
    for (int i = 0; i < tl_model_count(m); i++) {
        tl_named x = tl_model_at(m, i);
        tell_tensor(fact(r, "%.40s", x.name), t, x.tensor);
    }
}

/* The tape has failed: how, which must be so in every way. */
static bool failed(program_result *r, tl_tape *t, int u)
{
    if (!tl_failed(t))
        return false;
    snprintf(fact(r, "error in update %d", u)->hash, sizeof r->fact->hash, "status %d",
             (int)tl_error_status(t));
    snprintf(r->error, sizeof r->error, "%s", tl_error(t));
    return true;
}

static void count_lines(const char *text, const char *words, int *n)
{
    for (const char *at = strstr(text, words); at != NULL; at = strstr(at + 1, words))
        ++*n;
}

static void read_graphs(program_result *r, const tl_compiled *c)
{
    for (int i = 0; i < tl_compiled_count(c); i++) {
        tl_graph *g = tl_compiled_at(c, i);
        tl_graph_stats s = tl_graph_stats_of(g);
        char *text = NULL;
        size_t size;
        FILE *f = open_memstream(&text, &size);
        tl_graph_report(g, f);
        fclose(f);
        count_lines(text, ": replaced ", &r->replaced);
        count_lines(text, "in another order", &r->reordered);
        r->fused += s.needed - s.views > s.steps;
        free(text);
    }
}

/* ---- a run ---- */

static void one_part(context *c, const program_way *way, int u, int i, tl_tape *t,
                     tl_compiled *const compiled[2], program_result *r)
{
    const program *p = c->p;
    tl_tensor in[PROGRAM_INPUTS], out[PROGRAM_OUTS];
    bool last = p->updates > 0 && way->update == UPDATE_IN_PART && i == p->parts - 1;
    program_inputs(t, p, u, i, in);
    int mode = tl_mode_push(t, p->backward ? 0 : TL_NO_GRAD);
    if (way->compiled >> (u * PROGRAM_PARTS + i) & 1)
        tl_run(compiled[last], in, PROGRAM_INPUTS, out);
    else
        (last ? last_part : part)(t, in, PROGRAM_INPUTS, out, PROGRAM_OUTS, c);
    tl_mode_pop(t, mode);
    if (failed(r, t, u))
        return;
    for (int k = 0; k < PROGRAM_OUTS; k++)
        tell_tensor(fact(r, "update %d, part %d, output %d", u, i, k), t, out[k]);
    r->finite = isfinite(tl_item(t, out[0]));
    tell_accumulators(r, t, !last);
}

static void freeze_some(tl_model *m)
{
    for (int i = 0; i < tl_model_count(m); i++)
        if (strncmp(tl_model_at(m, i).name, "w1", 2) == 0) {
            tl_model_freeze(m, "w1", true);
            return;
        }
}

static void run(const program *p, const program_way *way, program_watch *w, program_result *r)
{
    const tl_isa *isa = tl_isa_now();
    tl_model *m = tl_model_new(.seed = 5);
    tl_tape *t = tl_tape_new(m);
    context c = {p, w, program_optimizer(p, m)};
    tl_compiled *compiled[2] = {tl_compile_at(TL_AT(t), part, PROGRAM_OUTS, &c, way->options),
                                tl_compile_at(TL_AT(t), last_part, PROGRAM_OUTS, &c, way->options)},
                *step = tl_compile_at(TL_AT(t), update, 0, &c, way->options);
    if (way->threads > 0)
        tl_threads_set(way->threads);
    if (way->level != NULL)
        tl_isa_force(way->level);
    for (int u = 0; u < (p->updates > 0 ? p->updates : 1) && !tl_failed(t); u++) {
        if (u == 1 && p->freezes)
            freeze_some(m);
        for (int i = 0; i < p->parts && !tl_failed(t); i++) {
            w->last = r->last[i];
            one_part(&c, way, u, i, t, compiled, r);
            w->log = NULL; /* one part is the program */
            tl_tape_reset(t);
        }
        if (p->updates == 0 || tl_failed(t))
            break;
        if (way->update == UPDATE_CALLED)
            tl_step(c.o, t);
        else if (way->update == UPDATE_COMPILED)
            tl_run(step, NULL, 0, NULL);
        tl_tape_reset(t);
        if (!failed(r, t, u))
            tell_model(r, t, m, c.o);
    }
    for (int k = 0; k < 2; k++)
        read_graphs(r, compiled[k]);
    tl_isa_force(isa->name);
    tl_threads_set(0);
    tl_free(compiled[0], compiled[1], step, c.o, t, m);
}

void program_call(const program *p, FILE *log, bool *ran, program_result *r)
{
    *r = (program_result){.n = 0};
    run(p, &(program_way){.threads = 1}, &(program_watch){.log = log, .learn = true, .ran = ran},
        r);
}

void program_run(const program *p, const program_way *way, const program_result *called,
                 program_result *r)
{
    *r = (program_result){.n = 0};
    memcpy(r->last, called->last, sizeof r->last);
    run(p, way,
        &(program_watch){
            .segments = way->segments, .verify = way->verify, .cuts = way->cuts, .cut = &r->cuts},
        r);
}

int program_differs(const program_result *a, const program_result *b)
{
    int i = 0, j = 0;
    for (; i < a->n && j < b->n; i++, j++) {
        const program_fact *x = &a->fact[i], *y = &b->fact[j];
        if (*a->error != '\0' && *b->error != '\0' && (i == a->n - 1 || j == b->n - 1)) {
            i = a->n - 1; /* an update that is part of the last one fails before that one's facts */
            x = &a->fact[i];
            y = &b->fact[b->n - 1];
            return strcmp(x->what, y->what) == 0 && strcmp(x->hash, y->hash) == 0 ? -1 : i;
        }
        if (x->hash[0] == '\0' || y->hash[0] == '\0') { /* one cannot tell: on to where both do */
            while (i < a->n && strncmp(a->fact[i].what, "updates", 7) != 0)
                i++;
            while (j < b->n && strncmp(b->fact[j].what, "updates", 7) != 0)
                j++;
            i--, j--;
            continue;
        }
        if (strcmp(x->what, y->what) != 0 || strcmp(x->hash, y->hash) != 0)
            return i;
    }
    return i < a->n ? i : j < b->n ? a->n - 1 : -1;
}

void program_result_free(program_result *r)
{
    free(r->fact);
    r->fact = NULL;
}

program_way program_way_random(const program *p, uint64_t seed)
{
    uint64_t at = tl_case_random(&(uint64_t){p->seed * 77 + seed}), *s = &at;
    program_way w = {.cuts = tl_case_random(s)};
    unsigned r = (unsigned)tl_case_random(s);
    int levels = 0;
    w.compiled = seed % 3 == 0 ? ~0u : seed % 3 == 1 ? 0 : (unsigned)tl_case_random(s);
    w.segments = seed % 3 == 1 || r & 1;
    w.verify = r & 2;
    w.update = r / 4 % 3;
    w.threads = r & 16 ? 1 + (int)(r / 32 % 3) : 0;
    while (tl_isa_at(levels) != NULL)
        levels++;
    w.level = r & 256 ? tl_isa_at((int)(r / 512 % (unsigned)levels))->name : NULL;
    r = (unsigned)tl_case_random(s);
    w.options.no_fuse = r % 4 == 0;
    w.options.no_replace = r / 4 % 4 == 0;
    w.options.copy_inputs = r / 16 % 4 == 0;
    w.options.no_simplify = r / 64 % 4 == 0;
    r /= 256;
    w.options.limits = (tl_cost_limits){.body = r % 4 == 0 ? 1 + r / 4 % 8 : 0,
                                        .never_inline = r / 32 % 8 == 0,
                                        .heavy_inline = r / 256 % 4 == 0};
    if (r / 1024 % 2)
        w.options.limits.again_bytes = w.options.limits.again_steps = 1;
    return w;
}

void program_way_print(FILE *f, const program *p, const program_way *w)
{
    static const char *const update_words[] = {"called", "compiled", "in the last part"};
    fprintf(f, "parts");
    for (int u = 0; u < (p->updates > 0 ? p->updates : 1); u++)
        for (int i = 0; i < p->parts; i++)
            fprintf(f, " %s", w->compiled >> (u * PROGRAM_PARTS + i) & 1 ? "compiled" : "called");
    fprintf(f,
            ", update %s, segments %d, verify %d, fuse %d, replace %d, simplify %d, copy %d, "
            "body %d, never inline %d, heavy inline %d, again %d, threads %d, level %s\n",
            update_words[w->update], w->segments, w->verify, !w->options.no_fuse,
            !w->options.no_replace, !w->options.no_simplify, w->options.copy_inputs,
            (int)w->options.limits.body, w->options.limits.never_inline,
            w->options.limits.heavy_inline, (int)w->options.limits.again_steps, w->threads,
            w->level == NULL ? "own" : w->level);
}
