/* programs.c: what a program holds, and carrying it out. */
#include "tests/support/program_machine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/internal.h"
#include "tensor/isa.h"
#include "tests/cases/cases.h"

static uint64_t draw(uint64_t *s) { return tl_case_random(s); }
static int below(uint64_t *s, int n) { return (int)(draw(s) % (uint64_t)n); }
static bool one_in(uint64_t *s, int n) { return below(s, n) == 0; }

/* ---- watching, segments ---- */

static void log_nodes(machine *m, const char *what)
{
    char a[TL_ATTRS_TEXT], b[TL_SHAPE_TEXT];
    tl_tape *t = m->t;
    if (m->w->log == NULL)
        return;
    fprintf(m->w->log, "  %s\n", what);
    for (; m->logged < t->n_nodes; m->logged++) {
        const tl_node *n = &t->node[m->logged];
        fprintf(m->w->log, "    ");
        for (int j = 0; j < n->n_out; j++)
            fprintf(m->w->log, "%s%%%u", j ? ", " : "", n->out + (uint32_t)j);
        fprintf(m->w->log, " = %s(", n->op->name);
        for (int i = 0; i < n->n_in; i++) {
            const char *name = n->in[i].owner == t->values.owner ? NULL
                                                                 : tl_model_name_of(m->m, n->in[i]);
            if (name != NULL || tl_is_none(n->in[i]))
                fprintf(m->w->log, "%s%s", i ? ", " : "", name != NULL ? name : "-");
            else
                fprintf(m->w->log, "%s%%%u", i ? ", " : "", n->in[i].index);
        }
        const tl_array *y = &tl_values_at(&t->values, n->out)->a;
        fprintf(m->w->log, ")%s : %s %s\n", tl_attrs_text(n->op, n->attrs, a),
                tl_dtype_name(y->dtype), tl_array_shape_text(b, y));
    }
}

/* Ends the segment: kept are the values that are read later, `also`, and by chance any others that
 * were not let go. */
static void cut(machine *m, tl_tensor also)
{
    tl_tape *t = m->t;
    tl_tensor keep[512];
    int n = 0, chance = below(&m->cuts, 4);
    m->open = false;
    if (m->begin == t->n_nodes)
        return;
    for (uint32_t i = m->begin; i < t->n_nodes; i++)
        if (tl_node_mutates(&t->node[i]))
            return; /* which would be refused */
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < m->of[i].n; j++)
            if (m->w->last[i][j] > m->now)
                keep[n++] = m->of[i].v[j].x;
    if (!tl_is_none(also))
        keep[n++] = also;
    uint32_t end = atomic_load(&t->values.count);
    for (uint32_t v = t->node[m->begin].out; v < end && n < 512; v++)
        if (below(&m->cuts, 4) < chance && !tl_values_at(&t->values, v)->let_go)
            keep[n++] = tl_values_at(&t->values, v)->self;
    if (m->w->cut != NULL)
        ++*m->w->cut;
    tl_segment_end(t, m->begin, keep, n, m->w->verify);
}

/* Between two steps. */
static void pass(machine *m, tl_tensor also)
{
    if (!m->w->segments)
        return;
    m->cuts = m->w->cuts + (uint64_t)m->now * 977; /* whatever was left out before */
    if (m->open && one_in(&m->cuts, 3))
        cut(m, also);
    if (!m->open && one_in(&m->cuts, 2)) {
        m->open = true;
        m->begin = tl_segment_begin(m->t);
    }
}

/* ---- the whole ---- */

static void add(machine *m, int n, const tl_tensor *out)
{
    made *to = &m->of[m->n];
    to->n = n;
    for (int i = 0; i < n; i++) {
        to->v[i] = program_value(m, out[i]);
        if (m->w->learn)
            m->w->last[m->n][i] = -1;
    }
    m->n++;
}

static void take(machine *m)
{
    const program_step *s = &m->p->step[m->now];
    tl_tensor out[PROGRAM_WIDE + 1] = {TL_NONE};
    char what[64];
    value x = program_pick(m, s->a);
    out[0] = x.x;
    int n = s->left_out ? 1 : program_take(m, s, x, out);
    add(m, n, out);
    if (!s->left_out && m->w->log != NULL) {
        snprintf(what, sizeof what, "step %d, %s -> %%%u", m->now, program_kind(s), out[0].index);
        log_nodes(m, what);
    }
}

/* A number of a value, with a cotangent that is not the same everywhere. */
static tl_tensor number_of(machine *m, value x, uint32_t r)
{
    tl_tape *t = m->t;
    tl_dtype d = tl_dtype_compute(m->p->dtype);
    tl_tensor y = x.d == d ? x.x : tl_cast(t, x.x, d);
    switch (r % 4) {
    case 0: return tl_sum(t, y, TL_ALL, false);
    case 1: return tl_mean(t, tl_mul(t, y, tl_sin(t, y)), TL_ALL, false);
    case 2: return tl_sum(t, tl_mul(t, y, program_constant(m, r, d, x.s)), TL_ALL, false);
    default: return tl_mean(t, tl_square(t, y), TL_ALL, false);
    }
}

static tl_tensor loss_of(machine *m)
{
    uint64_t s = m->p->loss;
    tl_tensor loss = number_of(m, program_read(m, m->n - 1, 0), (uint32_t)draw(&s));
    for (int i = 0; i < m->n; i++)
        for (int j = 0; j < m->of[i].n; j++)
            if (m->p->loss > 0 && one_in(&s, 4)) /* 0: the last value alone */
                loss = tl_add(m->t, loss, number_of(m, program_read(m, i, j), (uint32_t)draw(&s)));
    return loss;
}

/* The squares of the loss's gradients by some of the values, added or in its place. */
static tl_tensor penalty(machine *m, tl_tensor loss)
{
    tl_tape *t = m->t;
    uint64_t s = m->p->loss + 1;
    tl_tensor by[4], g[4];
    int n = 0;
    for (int i = 0; i < m->n && n < 4; i++)
        for (int j = 0; j < m->of[i].n && n < 4; j++) {
            const tl_value *v = tl_peek(t, m->of[i].v[j].x);
            if (v != NULL && v->needs_grad && (i <= PROGRAM_FLOATS || one_in(&s, 6)))
                by[n++] = m->of[i].v[j].x;
        }
    if (n == 0)
        return loss;
    tl_gradients(t, loss, by, n, TL_NONE, g);
    tl_tensor sum = m->p->second == 1 ? loss : TL_NONE;
    for (int i = 0; i < n; i++) {
        tl_tensor one = number_of(m, program_value(m, g[i]), 3);
        sum = tl_is_none(sum) ? one : tl_add(t, sum, one);
    }
    return sum;
}

/* Some parameter is reached, and all where that is asked for. */
static tl_tensor reaching(machine *m, tl_tensor loss)
{
    tl_dtype d = tl_dtype_compute(m->p->dtype);
    for (int i = 0; i < tl_model_count(m->m); i++) {
        tl_named w = tl_model_at(m->m, i);
        if (w.param && (!m->p->partial || (m->p->loss % 16 != 0 && strcmp(w.name, "w") == 0)))
            loss = tl_add(m->t, tl_sum(m->t, tl_cast(m->t, w.tensor, d), TL_ALL, false), loss);
    }
    return loss;
}

static void note_ops(const tl_tape *t, bool *ran)
{
    for (uint32_t i = 0; i < t->n_nodes; i++)
        for (int k = 0; k < tl_op_count(); k++)
            ran[k] |= t->node[i].op == tl_op_at(k);
}

void program_part(tl_tape *t, const tl_tensor *in, const program *p, tl_tensor *out,
                  const program_watch *w)
{
    machine m = {.t = t,
                 .m = tl_tape_model(t),
                 .p = p,
                 .w = w,
                 .in = in,
                 .most = p->big ? 40000 : 512,
                 .cuts = w->cuts};
    tl_tensor weight = tl_param(t, m.m, "w", p->dtype, TL_DIMS(p->width), TL_INIT_NORMAL, 1);
    int k = 0, mode = tl_mode_push(t, (p->eval ? TL_EVAL : 0) | (p->backward ? 0 : TL_NO_GRAD));
    m.now = -1;
    for (int i = 0; i < PROGRAM_FLOATS; i++) {
        if (p->marked & TL_BIT(i))
            tl_require_grad(t, in[i]);
        add(&m, 1, &in[i]);
    }
    add(&m, 1, &weight);
    pass(&m, TL_NONE);
    for (m.now = 0; m.now < p->n && !tl_failed(t); m.now++) {
        take(&m);
        pass(&m, TL_NONE);
    }
    tl_tensor loss = tl_failed(t) ? TL_NONE : loss_of(&m);
    pass(&m, loss);
    if (p->second && p->backward && !tl_failed(t))
        loss = penalty(&m, loss);
    m.now++;
    if (p->retain || !p->backward) /* values that are read after backward */
        for (int i = m.n - 1; i >= 0 && k < 3; i -= 1 + m.n / 3)
            out[++k] = program_read(&m, i, 0).x;
    m.now--;
    if (p->backward)
        loss = reaching(&m, loss);
    log_nodes(&m, "loss");
    if (m.open)
        cut(&m, loss);
    for (int i = 1; i <= k && p->updates > 0; i++) /* it may be a view of what an update changes */
        out[i] = tl_neg(t, tl_detach(t, out[i]));
    tl_mode_pop(t, mode);
    out[0] = loss;
    k++;
    if (p->backward)
        tl_backward(t, loss, .retain = p->retain, .partial = p->partial);
    for (int i = 0; i < PROGRAM_FLOATS; i++)
        if (p->marked & TL_BIT(i) && p->backward)
            out[k++] = tl_grad(t, in[i]);
    for (int i = 0; p->reads && p->backward && i < tl_model_count(m.m) && k < PROGRAM_OUTS; i++)
        if (tl_model_at(m.m, i).param)
            out[k++] = tl_grad(t, tl_model_at(m.m, i).tensor);
    for (int i = 0; i < PROGRAM_OUTS; i++)
        if (i >= k || tl_is_none(out[i])) /* what no gradient comes to has none */
            out[i] = loss;
    if (w->ran != NULL)
        note_ops(t, w->ran);
}

void program_inputs(tl_tape *t, const program *p, int update, int part, tl_tensor *in)
{
    int64_t rows = p->rows[part], sample = update * 100 + part * 10;
    const tl_shape shape[PROGRAM_FLOATS] = {TL_DIMS(rows, p->width), TL_DIMS(p->width),
                                            TL_DIMS(rows, 1)};
    uint64_t seed = p->seed * 31 + (uint64_t)(update * PROGRAM_PARTS + part);
    for (int i = 0; i < PROGRAM_FLOATS; i++) {
        tl_shape s = shape[i];
        bool across = i == 0 && !(p->marked & 1) && p->seed & 2; /* a view of what lies otherwise */
        if (across)
            s = TL_DIMS(p->width, rows);
        ref_tensor x = tl_case_values(tl_case_ref_dtype(p->dtype), &s, &seed, CASE_PLAIN);
        in[i] = tl_data(t, x.data, p->dtype, s);
        if (across)
            in[i] = tl_transpose(t, in[i], 0, 1);
        ref_free(&x);
    }
    in[PROGRAM_FLOATS] = tl_data(t, &sample, TL_I64, TL_SCALAR);
    int64_t id[3] = {sample % 5, (sample / 10 + 2) % 5, 1};
    in[PROGRAM_FLOATS + 1] = tl_data(t, id, TL_I64, TL_DIMS(3));
}

tl_opt *program_optimizer(const program *p, tl_model *m)
{
    return p->optimizer == 0   ? tl_sgd_new_at(m, p->options, __FILE__, __LINE__)
           : p->optimizer == 1 ? tl_adam_new_at(m, p->options, __FILE__, __LINE__)
                               : tl_adamw_new_at(m, p->options, __FILE__, __LINE__);
}

/* ---- random ones ---- */

program program_random(uint64_t seed)
{
    static const int64_t widths[] = {8, 8, 8, 6, 5, 16, 33, 1};
    static const tl_dtype dtypes[] = {TL_F32, TL_F64, TL_F16, TL_BF16};
    uint64_t at = tl_case_random(&(uint64_t){seed}), *s = &at; /* far from the next seed's */
    program p = {.seed = seed, .dtype = dtypes[draw(s) % 4], .n = 1 + below(s, PROGRAM_STEPS)};
    p.big = one_in(s, 64);
    p.width = p.big ? 200 : widths[draw(s) % 8];
    p.parts = one_in(s, 2) ? 1 : 2 + below(s, PROGRAM_PARTS - 1);
    p.rows[0] = p.big ? 96 : 1 + below(s, 4);
    for (int i = 1; i < p.parts; i++)
        p.rows[i] = one_in(s, 5) ? 1 + below(s, 3) : p.rows[i - 1];
    bool even = true;
    for (int i = 1; i < p.parts; i++)
        even &= p.rows[i] == p.rows[0];
    p.backward = !one_in(s, 6);
    p.updates = p.backward && !one_in(s, 3) ? 1 + below(s, 3) : 0;
    p.optimizer = below(s, 3);
    p.options = (tl_opt_options){.lr = 0.05,
                                 .weight_decay = one_in(s, 2) ? 0.1 : 0,
                                 .clip = one_in(s, 3) ? 0.5 : 0};
    p.options.momentum = p.optimizer == 0 && one_in(s, 2) ? 0.9 : 0;
    p.options.nesterov = p.options.momentum > 0 && one_in(s, 2);
    if (one_in(s, 3))
        p.options.schedule = (tl_schedule){TL_COSINE, .warmup = 1, .total = 4};
    p.marked = (unsigned)below(s, 8);
    p.retain = one_in(s, 3);
    p.partial = !even || !one_in(s, 3); /* which parameters there are depends on the rows */
    p.reads = even && one_in(s, 2);
    p.eval = one_in(s, 16);
    p.freezes = one_in(s, 6);
    p.second = p.backward && one_in(s, 3) ? 1 + below(s, 2) : 0;
    p.loss = (uint32_t)draw(s);
    for (int i = 0; i < p.n; i++) {
        p.step[i] = (program_step){program_random_kind(s), (uint32_t)draw(s), (uint32_t)draw(s),
                                   (uint32_t)draw(s), false};
        if (i > 0 && one_in(s, 10)) /* the same work twice, now and then */
            p.step[i] = p.step[i - 1];
    }
    return p;
}

void program_print(FILE *f, const program *p)
{
    static const char *const optimizer[] = {"sgd", "adam", "adamw"},
                             *const second[] = {"", ", gradients added to the loss",
                                                ", gradients in the place of the loss"};
    fprintf(f, "%s, width %d, %d parts of rows", tl_dtype_name(p->dtype), (int)p->width, p->parts);
    for (int i = 0; i < p->parts; i++)
        fprintf(f, " %d", (int)p->rows[i]);
    fprintf(f,
            ", %d updates (%s, decay %g, momentum %g, clip %g)%s%s%s%s%s%s%s, marked inputs %u\n",
            p->updates, optimizer[p->optimizer], p->options.weight_decay, p->options.momentum,
            p->options.clip, p->backward ? "" : ", forward alone", p->retain ? ", retain" : "",
            p->partial ? ", partial" : "", p->reads ? ", gradients read" : "",
            p->eval ? ", eval" : "", p->freezes ? ", freezing" : "", second[p->second], p->marked);
}
