/* compare.c: two steps of two logs, result by result.
 *
 * Equal hashes prove equal bytes. Unequal ones prove a difference only where the same bytes
 * were hashed: where both took the step in the same parts; where a value's parts laid along
 * axis 0 are as many rows in both (a batch); or where every part is the same bytes (a mask).
 * A value that folds the batch is equal at its last part if it continues what the parts before
 * left, and may be anything if it does not (the loss of a micro-batch): unequal says nothing.
 * A batch that lies along another axis is none of these, or looks like the second in what is
 * made from it by reshaping: under different splits such results, and unequal ones computed
 * from them, count as unknown. Gradients of parameters are whole when they are hashed. */
#include <string.h>

#include "autograd/log/read.h"
#include "tensor/arena.h"

enum { INPUTS_SEARCHED = 1000 };

static bool equal_digest(const char *a, const char *b) { return memcmp(a, b, 64) == 0; }

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
        return equal_digest(x->all, y->all) ? TL_LOG_SAME : TL_LOG_DIFFERS;
    if (a->parts == b->parts && a->parts <= 1 && x->all != NULL && y->all != NULL)
        return TL_LOG_DIFFERS; /* whole, and of another shape */
    if (tails && a->rows >= 0 && a->rows == b->rows && x->all != NULL && y->all != NULL) {
        if (equal_digest(x->all, y->all))
            return TL_LOG_SAME;
        return doubtful(c, x, unknown_before) ? TL_LOG_UNKNOWN : TL_LOG_DIFFERS;
    }
    if (tails && a->last == b->last && strcmp(a->tail, "mixed") != 0 && x->part != NULL &&
        y->part != NULL)
        return equal_digest(x->part, y->part) ? TL_LOG_SAME
               : x->alike && y->alike         ? TL_LOG_DIFFERS
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
