/* compare.c: two steps of two logs, compared result by result, and their parameters and updates by
 * name.
 *
 * Equal hashes prove equal bytes. Unequal ones prove a difference only where the same bytes were
 * hashed: both runs took the step in the same parts, or the value's parts, joined along axis 0,
 * have as many rows in both (a batch), or every part has the same bytes (a mask) and no input is a
 * batch that was split in another way. The last part of a value that folds the batch is equal in
 * both if the value continues what the parts before left; if it does not (the loss of a
 * micro-batch), unequal hashes say nothing. A batch along another axis is none of these or, in a
 * result reshaped from it, looks like the second: under different splits such results, and unequal
 * ones computed from them, count as unknown. Gradients of parameters are whole when they are
 * hashed. */
#include <stdlib.h>
#include <string.h>

#include "autograd/log/read/internal.h"
#include "tensor/memory.h"

enum { INPUTS_SEARCHED = 1000 };

static bool same_shape(const tl_log_def *a, const tl_log_def *b)
{
    return strcmp(a->shape, b->shape) == 0;
}

static bool same_op(const tl_log_def *a, const tl_log_def *b)
{
    bool parameter = strcmp(a->op, "param") == 0; /* no batch changes its shape */
    return strcmp(a->op, b->op) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->name, b->name) == 0 && (!parameter || same_shape(a, b));
}

static bool hashed(const tl_log_result *x, const tl_log_result *y)
{
    return x != NULL && y != NULL && x->all != NULL && y->all != NULL;
}

/* An input of r could not be compared. The inputs of a result with very many of them are not
 * searched, since it may come in every step: then any unknown result before it is enough. */
static bool doubtful(const tl_log_comparison *c, const tl_log_result *r, bool unknown_before)
{
    if (!unknown_before || r->def->n_in > INPUTS_SEARCHED)
        return unknown_before;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(c->a, r->def->in[k]);
        if (in != NULL && c->of_a[in - c->a->result] == TL_LOG_UNKNOWN)
            return true;
    }
    return false;
}

/* An input of r is a batch that the two runs split in different ways: r may sum over the samples of
 * a part, and where samples are alike each part may have the same sum. */
static bool sums(const tl_log_comparison *c, const tl_log_result *r)
{
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(c->a, r->def->in[k]), *other = NULL;
        if (in != NULL)
            other = tl_log_find(c->b, in->key);
        if (other != NULL && in->def->rows >= 0 && in->def->rows == other->def->rows &&
            in->def->parts != other->def->parts)
            return true;
    }
    return false;
}

static tl_log_verdict verdict(const tl_log_comparison *c, const tl_log_result *x,
                              const tl_log_result *y, bool unknown_before)
{
    const tl_log_def *a = x->def, *b = y->def;
    if (!same_op(a, b))
        return TL_LOG_OTHER;
    bool equal = hashed(x, y) && strcmp(x->all, y->all) == 0, tails = strcmp(a->tail, b->tail) == 0;
    if (hashed(x, y) && same_shape(a, b))
        return equal ? TL_LOG_SAME : TL_LOG_DIFFERS;
    if (hashed(x, y) && a->parts == b->parts && a->parts <= 1 &&
        !(c->partial && tails && a->rows >= 0))
        return TL_LOG_DIFFERS; /* whole, and of another shape */
    if (hashed(x, y) && tails && a->rows >= 0 && a->rows == b->rows)
        return equal                            ? TL_LOG_SAME
               : doubtful(c, x, unknown_before) ? TL_LOG_UNKNOWN
                                                : TL_LOG_DIFFERS;
    if (tails && a->last == b->last && strcmp(a->tail, "mixed") != 0 && x->part != NULL &&
        y->part != NULL) {
        if (strcmp(x->part, y->part) == 0)
            return TL_LOG_SAME;
        const bool known = x->alike && y->alike && !sums(c, x) &&
                           (a->parts == b->parts || !doubtful(c, x, unknown_before));
        return known ? TL_LOG_DIFFERS : TL_LOG_UNKNOWN;
    }
    return TL_LOG_UNKNOWN;
}

static int most_parts(const tl_logged_step *s)
{
    int most = 0;
    for (int i = 0; i < s->n; i++)
        most = s->result[i].def->parts > most ? s->result[i].def->parts : most;
    return most;
}

/* The log has every result of that step. */
static bool has_all(const tl_logged_step *s)
{
    return s->full && s->complete && !s->damaged && !s->compiled;
}

/* s ran compiled and has no bytes of a result (here), while the other log has some (there). */
static bool no_record(const tl_logged_step *s, const tl_log_result *here,
                      const tl_log_result *there)
{
    return s->compiled && s->full && (here == NULL || here->all == NULL) && there != NULL &&
           there->all != NULL;
}

static void earliest(uint64_t *key, uint64_t x)
{
    if (*key == 0 || x < *key)
        *key = x;
}

tl_status tl_log_compare(tl_log_comparison *c, const tl_logged_step *a, const tl_logged_step *b)
{
    /* both ought to have the same updates and, in the same parts, the same results */
    const int parts_a = most_parts(a), parts_b = most_parts(b);
    const bool whole = has_all(a) && has_all(b), strict = whole && parts_a == parts_b;
    bool unknown = false;
    *c = (tl_log_comparison){.a = a,
                             .b = b,
                             .partial = (a->compiled && parts_a > 1) ||
                                        (b->compiled && parts_b > 1),
                             .of_a = tl_calloc((size_t)a->n + 1, sizeof *c->of_a),
                             .first = -1};
    if (c->of_a == NULL)
        return TL_ENOMEM;
    for (int i = 0; i < a->n; i++) {
        const tl_log_result *x = &a->result[i], *y = tl_log_find(b, x->key);
        tl_log_verdict v = y == NULL ? TL_LOG_MISSING : verdict(c, x, y, unknown);
        c->of_a[i] = v;
        unknown |= v == TL_LOG_UNKNOWN;
        c->same += v == TL_LOG_SAME;
        c->differ += v == TL_LOG_DIFFERS;
        if (no_record(b, y, x) || (y != NULL && no_record(a, x, y)))
            c->fused++;
        else if (a->compiled == b->compiled ||
                 hashed(x, y)) /* a value changed in place later has bytes in a graph alone */
            c->unknown += v == TL_LOG_UNKNOWN && (x->all != NULL || y->all != NULL);
        if (c->first < 0 && v == TL_LOG_DIFFERS)
            c->first = i;
        if (v == TL_LOG_OTHER || (v == TL_LOG_MISSING && (strict || (whole && x->def->update))))
            earliest(&c->other, x->key);
    }
    for (int i = 0; i < b->n; i++) {
        bool missing = tl_log_find(a, b->result[i].key) == NULL;
        if (missing && (strict || (whole && b->result[i].def->update)))
            earliest(&c->other, b->result[i].key);
        c->fused += missing && no_record(a, NULL, &b->result[i]);
    }
    return TL_OK;
}

void tl_log_comparison_free(tl_log_comparison *c)
{
    tl_free_raw(c->of_a);
    c->of_a = NULL;
}

/* ---- parameters and updates by name: two lists in one order, walked side by side ---- */

static int by_op_and_name(const tl_log_result *x, const tl_log_result *y)
{
    int order = strcmp(x->def->op, y->def->op);
    return order != 0 ? order : strcmp(x->def->name, y->def->name);
}

static int in_order(const void *a, const void *b)
{
    const tl_log_result *x = *(const tl_log_result *const *)a,
                        *y = *(const tl_log_result *const *)b;
    int order = by_op_and_name(x, y);
    return order != 0 ? order : (x > y) - (x < y);
}

/* The updates of parameters in s, or its parameters, which each pass lists again, once each. NULL:
 * out of memory. */
static const tl_log_result **list_of(const tl_logged_step *s, bool updates, int *n)
{
    const tl_log_result **r = tl_calloc((size_t)s->n + 1, sizeof *r);
    int all = 0;
    *n = 0;
    for (int i = 0; r != NULL && i < s->n; i++)
        if (updates ? s->result[i].def->update : strcmp(s->result[i].def->op, "param") == 0)
            r[all++] = &s->result[i];
    if (all > 0)
        qsort(r, (size_t)all, sizeof *r, in_order);
    for (int i = 0; i < all; i++)
        if (updates || i == 0 || by_op_and_name(r[i], r[*n - 1]) != 0)
            r[(*n)++] = r[i];
    return r;
}

tl_status tl_log_match_names(tl_log_names *m, const tl_logged_step *a, const tl_logged_step *b,
                             bool updates)
{
    int n[2], at[2] = {0, 0};
    const tl_log_result **list[2] = {list_of(a, updates, &n[0]), list_of(b, updates, &n[1])};
    bool room = list[0] != NULL && list[1] != NULL;
    *m = (tl_log_names){0};
    while (room && (at[0] < n[0] || at[1] < n[1])) {
        const tl_log_result *x = at[0] < n[0] ? list[0][at[0]] : NULL,
                            *y = at[1] < n[1] ? list[1][at[1]] : NULL;
        int order = x == NULL ? 1 : y == NULL ? -1 : by_op_and_name(x, y);
        at[0] += order <= 0;
        at[1] += order >= 0;
        if (order != 0) {
            const int k = order < 0 ? 0 : 1;
            const tl_log_def *d = k == 0 ? x->def : y->def;
            if (m->only[k]++ == 0 || d->key < m->only_def[k]->key)
                m->only_def[k] = d;
            continue;
        }
        m->differ += hashed(x, y) && strcmp(x->all, y->all) != 0;
        if (same_shape(x->def, y->def) && strcmp(x->def->dtype, y->def->dtype) == 0) {
            m->same++;
        } else if (m->reshaped++ == 0 || x->key < m->reshaped_def[0]->key) {
            m->reshaped_def[0] = x->def;
            m->reshaped_def[1] = y->def;
        }
    }
    tl_free_raw(list[0]);
    tl_free_raw(list[1]);
    return room ? TL_OK : TL_ENOMEM;
}
