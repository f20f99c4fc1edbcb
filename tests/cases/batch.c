/* batch.c: a case whose batch can be cut and mixed, and run in parts with parameters of a model. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/model.h"
#include "tests/cases/cases.h"

ref_tensor tl_case_gather(const ref_tensor *x, int n, const int64_t *row)
{
    ref_tensor shape = *x;
    shape.dim[0] = n;
    ref_tensor y = ref_like(&shape, x->dtype);
    size_t bytes = x->dim[0] == 0
                       ? 0
                       : (size_t)(ref_numel(x) / x->dim[0]) * (size_t)ref_itemsize(x->dtype);
    for (int i = 0; i < n; i++)
        memcpy((char *)y.data + (size_t)i * bytes, (const char *)x->data + (size_t)row[i] * bytes,
               bytes);
    return y;
}

int64_t tl_case_batch(const tl_case *c)
{
    case_run r = tl_case_run(c, TL_F32);
    for (int i = 0; c->rows != NULL && i < r.n; i++)
        if (c->rows[i] == 'b')
            return r.in[i].shape.dim[0];
    return 0;
}

case_problem tl_case_problem_of(tl_tape *t, const case_run *r, const ref_tensor *leaf,
                                uint64_t *seed, case_kind kind)
{
    case_problem p = {.r = *r, .batch = tl_case_batch(r->c)};
    case_result res;
    for (int i = 0; i < r->n; i++) {
        p.in[i] = tl_case_seen(&r->in[i], &leaf[i]);
        p.r.in[i].layout = CASE_ROW;
    }
    tl_case_result(t, r, leaf, NULL, &res);
    if (!tl_failed(t) && tl_case_differentiable(r->c))
        p.dy = tl_case_cotangent(&res.out[0], seed, kind);
    tl_case_result_free(&res);
    return p;
}

case_problem tl_case_rows_of(const case_problem *p, int n, const int64_t *row)
{
    case_problem q = {.r = p->r,
                      .batch = n,
                      .dy = p->dy.data ? tl_case_gather(&p->dy, n, row) : (ref_tensor){0}};
    for (int i = 0; i < p->r.n; i++) {
        bool b = p->r.c->rows[i] == 'b' && p->in[i].data != NULL;
        q.in[i] = p->in[i].data == NULL ? (ref_tensor){0}
                  : b                   ? tl_case_gather(&p->in[i], n, row)
                                        : ref_copy(&p->in[i]);
        if (b)
            q.r.in[i].shape.dim[0] = n;
        q.r.in[i].leaf = q.r.in[i].shape;
    }
    return q;
}

void tl_case_problem_run(tl_tape *t, const case_problem *p, case_result *out)
{
    tl_case_result(t, &p->r, p->in, p->dy.data ? &p->dy : NULL, out);
}

void tl_case_problem_free(case_problem *p)
{
    tl_case_free(p->r.n, p->in);
    ref_free(&p->dy);
}

static tl_tensor parameter(tl_tape *t, tl_model *m, const case_input *in, int i,
                           const ref_tensor *leaf)
{
    char name[16];
    snprintf(name, sizeof name, "p%d", i);
    bool old = !tl_is_none(tl_model_find(m, name));
    tl_tensor p = tl_param(t, m, name, in->dtype, in->leaf, .kind = TL_INIT_ZEROS);
    if (!old)
        tl_write(m, p, leaf->data, (size_t)ref_numel(leaf) * (size_t)ref_itemsize(leaf->dtype));
    return p;
}

void tl_case_micro_batch(tl_tape *t, tl_model *m, const case_run *r, const case_problem *p,
                         const ref_tensor *leaf, int64_t at, int n)
{
    int64_t *row = calloc((size_t)n + 1, sizeof *row);
    for (int i = 0; i < n; i++)
        row[i] = at + i;
    case_problem part = tl_case_rows_of(p, n, row);
    free(row);
    tl_tensor in[CASE_INPUTS], out[CASE_OUTPUTS];
    tl_tape_reset(t);
    for (int i = 0; i < r->n; i++) {
        bool param = r->c->rows[i] == 'p' && tl_case_floating(&r->in[i]);
        in[i] = param ? tl_case_view(t, &r->in[i], parameter(t, m, &r->in[i], i, &leaf[i]))
                      : tl_case_leaf(t, &part.in[i]);
    }
    r->c->build(t, in, r->c, out);
    tl_backward(t, out[0], .cotangent = tl_case_leaf(t, &part.dy));
    tl_case_problem_free(&part);
}

void tl_case_parameter_gradients(tl_tape *t, tl_model *m, const case_run *r, case_result *res)
{
    char name[16];
    *res = (case_result){.n_out = 0};
    for (int i = 0; i < r->n; i++) {
        snprintf(name, sizeof name, "p%d", i);
        tl_tensor p = tl_model_find(m, name);
        if (!tl_is_none(p))
            res->grad[i] = tl_case_read(t, tl_grad(t, p));
    }
}
