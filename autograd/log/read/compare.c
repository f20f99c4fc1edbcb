/* compare.c: two steps of two logs, result by result, and what is matched by name.
 *
 * Equal hashes prove equal bytes. Unequal ones prove a difference only where the same bytes
 * were hashed: where both took the step in the same parts; where a value's parts laid along
 * axis 0 are as many rows in both (a batch); or where every part is the same bytes (a mask).
 * A value that folds the batch is equal at its last part if it continues what the parts before
 * left, and may be anything if it does not (the loss of a micro-batch): unequal says nothing.
 * A batch that lies along another axis is none of these, or looks like the second in what is
 * made from it by reshaping: under different splits such results, and unequal ones computed
 * from them, count as unknown. Gradients of parameters are whole when they are hashed. */
#include <stdlib.h>
#include <string.h>

#include "autograd/log/read/internal.h"
#include "tensor/arena.h"

enum { INPUTS_SEARCHED = 1000 };

static bool same_op(const tl_log_def *a, const tl_log_def *b)
{
    bool parameter = strcmp(a->op, "param") == 0; /* no batch changes its shape */
    return strcmp(a->op, b->op) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->name, b->name) == 0 && (!parameter || strcmp(a->shape, b->shape) == 0);
}

/* Something below r could not be compared. Of a result of very many inputs, which may come in every
 * step, it is not looked for: enough that something before it could not. */
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

static tl_log_verdict verdict(const tl_log_comparison *c, const tl_log_result *x,
                              const tl_log_result *y, bool unknown_before)
{
    const tl_log_def *a = x->def, *b = y->def;
    if (!same_op(a, b))
        return TL_LOG_OTHER;
    bool tails = strcmp(a->tail, b->tail) == 0;
    if (strcmp(a->shape, b->shape) == 0 && x->all != NULL && y->all != NULL)
        return strcmp(x->all, y->all) == 0 ? TL_LOG_SAME : TL_LOG_DIFFERS;
    if (a->parts == b->parts && a->parts <= 1 && x->all != NULL && y->all != NULL)
        return TL_LOG_DIFFERS; /* whole, and of another shape */
    if (tails && a->rows >= 0 && a->rows == b->rows && x->all != NULL && y->all != NULL) {
        if (strcmp(x->all, y->all) == 0)
            return TL_LOG_SAME;
        return doubtful(c, x, unknown_before) ? TL_LOG_UNKNOWN : TL_LOG_DIFFERS;
    }
    if (tails && a->last == b->last && strcmp(a->tail, "mixed") != 0 && x->part != NULL &&
        y->part != NULL)
        return strcmp(x->part, y->part) == 0 ? TL_LOG_SAME
               : x->alike && y->alike        ? TL_LOG_DIFFERS
                                             : TL_LOG_UNKNOWN;
    return TL_LOG_UNKNOWN;
}

/* Both steps ought to have the same results: all, from end to end, in the same parts. */
static bool alike_in_kind(const tl_logged_step *a, const tl_logged_step *b)
{
    int parts_a = 0, parts_b = 0;
    for (int i = 0; i < a->n; i++)
        parts_a = a->result[i].def->parts > parts_a ? a->result[i].def->parts : parts_a;
    for (int i = 0; i < b->n; i++)
        parts_b = b->result[i].def->parts > parts_b ? b->result[i].def->parts : parts_b;
    return a->full && b->full && a->complete && b->complete && !a->damaged && !b->damaged &&
           !a->compiled && !b->compiled && parts_a == parts_b;
}

/* s ran compiled and has no bytes of a result, here, of which the other log has: there. */
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
    bool strict = alike_in_kind(a, b), unknown = false;
    *c = (tl_log_comparison){.a = a,
                             .b = b,
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
                 (x->all != NULL && y != NULL &&
                  y->all != NULL)) /* what is changed in place later has bytes in a graph alone */
            c->unknown += v == TL_LOG_UNKNOWN && (x->all != NULL || y->all != NULL);
        if (c->first < 0 && v == TL_LOG_DIFFERS)
            c->first = i;
        if (v == TL_LOG_OTHER || (v == TL_LOG_MISSING && strict))
            earliest(&c->other, x->key);
    }
    for (int i = 0; i < b->n; i++) {
        bool missing = tl_log_find(a, b->result[i].key) == NULL;
        if (strict && missing)
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

static bool differ(const tl_log_result *x, const tl_log_result *y)
{
    return x->all != NULL && y->all != NULL && strcmp(x->all, y->all) != 0;
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

typedef struct {
    const tl_log_result **r;
    int n;
} list;

/* Updates of parameters, or parameters: each once, as each pass lists it anew. */
static tl_status list_of(list *l, const tl_logged_step *s, bool updates)
{
    int n = 0;
    *l = (list){.r = tl_calloc((size_t)s->n + 1, sizeof *l->r)};
    if (l->r == NULL)
        return TL_ENOMEM;
    for (int i = 0; i < s->n; i++)
        if (updates ? s->result[i].def->update : strcmp(s->result[i].def->op, "param") == 0)
            l->r[n++] = &s->result[i];
    if (n > 0)
        qsort(l->r, (size_t)n, sizeof *l->r, in_order);
    for (int i = 0; i < n; i++)
        if (updates || i == 0 || by_op_and_name(l->r[i], l->r[i - 1]) != 0)
            l->r[l->n++] = l->r[i];
    return TL_OK;
}

static tl_status lists_of(list l[2], const tl_logged_step *a, const tl_logged_step *b, bool updates)
{
    l[1].r = NULL;
    tl_status s = list_of(&l[0], a, updates);
    return s == TL_OK ? list_of(&l[1], b, updates) : s;
}

static void lists_free(list l[2])
{
    tl_free_raw(l[0].r);
    tl_free_raw(l[1].r);
}

tl_status tl_log_match_parameters(tl_log_parameters *p, const tl_logged_step *a,
                                  const tl_logged_step *b)
{
    list l[2];
    const tl_log_result *first[3] = {NULL}; /* only in a, only in b, reshaped (in a) */
    tl_status s = lists_of(l, a, b, false);
    *p = (tl_log_parameters){0};
    for (int at[2] = {0, 0}; s == TL_OK && (at[0] < l[0].n || at[1] < l[1].n);) {
        const tl_log_result *x = at[0] < l[0].n ? l[0].r[at[0]] : NULL,
                            *y = at[1] < l[1].n ? l[1].r[at[1]] : NULL;
        int order = x == NULL ? 1 : y == NULL ? -1 : by_op_and_name(x, y), k = order < 0 ? 0 : 1;
        at[0] += order <= 0;
        at[1] += order >= 0;
        if (order != 0) {
            const tl_log_result *one = k == 0 ? x : y;
            p->only[k]++;
            if (first[k] == NULL || one < first[k])
                p->only_def[k] = (first[k] = one)->def;
        } else if (strcmp(x->def->shape, y->def->shape) == 0 &&
                   strcmp(x->def->dtype, y->def->dtype) == 0) {
            p->same++;
            p->other_bytes += differ(x, y);
        } else if (p->reshaped++ == 0 || x < first[2]) {
            first[2] = x;
            p->reshaped_def[0] = x->def;
            p->reshaped_def[1] = y->def;
        }
    }
    lists_free(l);
    return s;
}

tl_status tl_log_match_updates(const tl_logged_step *a, const tl_logged_step *b, int *n,
                               int *n_differ)
{
    list l[2];
    tl_status s = lists_of(l, a, b, true);
    *n = *n_differ = 0;
    for (int i = 0, k = 0; s == TL_OK && i < l[0].n; i++) {
        while (k < l[1].n && by_op_and_name(l[1].r[k], l[0].r[i]) < 0)
            k++;
        if (k == l[1].n || by_op_and_name(l[1].r[k], l[0].r[i]) != 0)
            continue;
        ++*n;
        *n_differ += differ(l[0].r[i], l[1].r[k]);
    }
    lists_free(l);
    return s;
}
