/* batch.c: a case whose batch can be cut and mixed. */
#include <string.h>

#include "tests/cases/cases.h"

ref_tensor tl_case_gather(const ref_tensor *x, int n, const int64_t *row)
{
    ref_tensor shape = *x;
    shape.dim[0] = n;
    ref_tensor y = ref_like(&shape, x->dtype);
    size_t bytes = x->dim[0] == 0 ? 0 : (size_t)(ref_numel(x) / x->dim[0]) * (size_t)ref_itemsize(x->dtype);
    for (int i = 0; i < n; i++)
        memcpy((char *)y.data + (size_t)i * bytes, (const char *)x->data + (size_t)row[i] * bytes, bytes);
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

case_problem tl_case_problem_of(tl_tape *t, const case_run *r, const ref_tensor *leaf, uint64_t *seed, case_kind kind)
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
    case_problem q = {.r = p->r, .batch = n, .dy = p->dy.data ? tl_case_gather(&p->dy, n, row) : (ref_tensor){0}};
    for (int i = 0; i < p->r.n; i++) {
        bool b = p->r.c->rows[i] == 'b' && p->in[i].data != NULL;
        q.in[i] = p->in[i].data == NULL ? (ref_tensor){0} : b ? tl_case_gather(&p->in[i], n, row) : ref_copy(&p->in[i]);
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
