/* explain.c: finds what makes gradients depend on how a batch is split, and why: kernels that
 * promise no bits, ops that mix samples, and values of parameters that changed between
 * micro-batches. tl_explain_invariance names them, and TL_STRICT refuses them. */
#include <stdio.h>
#include <string.h>

#include "autograd/batch.h"
#include "autograd/check/shadow.h"

/* ---- nodes outside the promise ---- */

/* "op" or, if the program has called another function that is made of it, "function's op". */
enum { NAME = 80 };
static const char *name_of(char buf[NAME], const tl_node *n)
{
    if (n->call == NULL || strcmp(n->call, n->op->name) == 0)
        snprintf(buf, NAME, "%.70s", n->op->name);
    else
        snprintf(buf, NAME, "%.36s's %.36s", n->call, n->op->name);
    return buf;
}

typedef struct {
    char *buf;
    size_t cap, at; /* at may be beyond cap: the rest of the text is cut */
    int lines;
} report;

static void TL_PRINTF(2, 3) line(report *r, const char *fmt, ...)
{
    const size_t left = r->at < r->cap ? r->cap - r->at : 0;
    va_list ap;
    va_start(ap, fmt);
    int w = vsnprintf(left > 0 ? r->buf + r->at : NULL, left, fmt, ap);
    va_end(ap);
    r->at += w > 0 ? (size_t)w : 0;
    r->lines++;
}

/* The leaf or derived value that input i shows, if its gradient will add finished sums; else
 * TL_NONE. It will if the call is apart from the batch, or if the input repeats the leaf otherwise
 * than once for each sample. (Once for each sample, along an axis that the op's vjp does not sum,
 * brings a gradient for each.) samples: of the other inputs. An axis of size 1 passes as one of
 * samples: one sample cannot tell. */
static tl_tensor adds_sums(tl_tape *t, const tl_node *use, int i, int64_t samples, bool apart)
{
    const tl_tensor x = use->in[i];
    const tl_value *v = tl_peek(t, x);
    const tl_tensor leaf = tl_behind(t, x, TL_VIEW, 0);
    const tl_node *n = tl_maker(t, tl_behind(t, x, TL_VIEW, TL_REPEATS));
    const bool repeats = n != NULL && n->op->traits & TL_REPEATS;
    const tl_node *below = repeats ? tl_maker(t, tl_behind(t, n->in[0], TL_VIEW, TL_REPEATS))
                                   : NULL;
    const bool twice = below != NULL && below->op->traits & TL_REPEATS;
    const int end = v->a.ndim - (tl_op_folds(use->op, i) ? 2 : 0); /* a product sums the last two */
    if (!v->needs_grad || (tl_maker(t, leaf) != NULL && !tl_peek(t, leaf)->fixed))
        return TL_NONE;
    if (!apart && (!repeats || (v->batch != TL_FREE && !twice)))
        return TL_NONE;
    for (int k = 0; k < end && !apart && !twice; k++)
        if (v->a.dim[k] == samples && (v->a.stride[k] == 0 || v->a.dim[k] == 1) &&
            tl_batch_could(t, use, i, k))
            return TL_NONE;
    return leaf;
}

/* The node that made x mixed, or a value behind it, from inputs that are not; NULL: x is not. */
static const tl_node *mixer(const tl_tape *t, tl_tensor x)
{
    const tl_node *n = NULL;
    const tl_value *v = tl_peek(t, x);
    while (v != NULL && v->batch == TL_MIXED && v->node >= 0 && x.owner == t->values.owner) {
        n = &t->node[v->node];
        v = NULL;
        for (int i = 0; i < n->n_in && (v == NULL || v->batch != TL_MIXED); i++)
            v = tl_peek(t, x = n->in[i]);
    }
    return n;
}

static bool has_rule(const tl_op *op) { return op->batch != NULL || op->traits & TL_POINTWISE; }

static void say_inputs(report *s, const tl_tape *t, const tl_node *n)
{
    for (int i = 0; i < n->n_in && i < 6; i++) {
        const tl_value *v = tl_peek(t, n->in[i]);
        if (v == NULL)
            continue;
        line(s, "%s input %d %s", i > 0 ? "," : "", i, TL_TEXT(&v->a));
        if (v->batch >= 0)
            line(s, " per sample along axis %d", v->batch);
        else
            line(s, " %s",
                 v->batch == TL_FREE    ? "free of the batch"
                 : v->batch == TL_TOTAL ? "a total over samples"
                                        : "mixed");
        if (v->samples >= 0 && (v->batch < 0 || v->samples != v->a.dim[v->batch]))
            line(s, " (%lld)", (long long)v->samples);
    }
}

/* Whether n looks up, by numbers of samples, in what is free of the batch. */
static bool looks_up(const tl_tape *t, const tl_node *n)
{
    bool rows = false, ids = false, table = false; /* of samples: floats, numbers; of none */
    for (int i = 0; i < n->n_in; i++) {
        const tl_value *v = tl_peek(t, n->in[i]);
        table |= v != NULL && v->batch == TL_FREE;
        if (v != NULL && v->batch >= 0)
            *(tl_dtype_is_float(v->a.dtype) ? &rows : &ids) = true;
    }
    return ids && table && !rows;
}

/* Whether n is to blame that gradients behind it depend on the split into micro-batches, and why.
 * False if they do not, if an op before it is to blame, or if no gradient reaches n. Draws are to
 * blame for values as well, whether or not these need a gradient. */
static bool blames(tl_tape *t, const tl_node *n, char why[TL_MESSAGE_MAX])
{
    const tl_op *op = n->op;
    const tl_value *y = NULL;
    report s = {why, TL_MESSAGE_MAX, 0, 0};
    tl_batch b = TL_FREE; /* TL_MIXED if any output is, else as output 0 is */
    int weights = 0, totals = 0;
    bool sampled = false; /* an input is per sample */
    bool fixed = false;   /* one is free of the batch and takes a gradient */
    int64_t samples = -1;
    *why = 0;
    for (int j = n->n_out; j-- > 0;) {
        y = tl_values_at(&t->values, n->out + (uint32_t)j);
        b = b == TL_MIXED ? b : y->batch;
    }
    for (int i = 0; i < n->n_in; i++) {
        const tl_value *v = tl_peek(t, n->in[i]);
        if (v != NULL && v->needs_grad && v->batch == TL_MIXED)
            return false; /* an op before this one is to blame */
        if (v != NULL && v->samples > samples)
            samples = v->samples;
        totals += v != NULL && v->batch == TL_TOTAL;
        fixed |= v != NULL && v->batch == TL_FREE && v->needs_grad;
        sampled |= v != NULL && v->batch >= 0;
    }
    const bool draws = op->traits & TL_RANDOM && b >= 0;
    if (y == NULL || (!draws && (!n->needs_grad || op->traits & TL_NONDIFF)))
        return false;
    if (b == TL_MIXED) {
        char name[NAME];
        const tl_node *by = NULL;
        for (int i = 0; i < n->n_in && by == NULL; i++)
            by = mixer(t, n->in[i]);
        if (by != NULL)
            line(&s, "uses what %s (%.90s:%d) made %s:", name_of(name, by),
                 by->file != NULL ? by->file : "?", by->line,
                 !has_rule(by->op) ? "without a rule for the batch"
                 : looks_up(t, by)
                     ? "by numbers of the samples (tl_embedding keeps samples apart)"
                     : "of all samples together (data that hold none: tl_constant, or TL_FREE "
                       "by tl_batch_axis)");
        else if (!has_rule(op))
            line(&s, "states no rule for the batch:");
        else
            line(&s, "%s:",
                 totals > 0 && sampled ? "mixes samples with a total, which is a sum over them"
                 : totals > 0 && fixed
                     ? "uses a total, which is a sum over samples, beside what each micro-batch "
                       "would add again (a penalty on parameters is a tl_backward of its own, in "
                       "the last micro-batch)"
                 : totals > 0 ? "uses a total, which is a sum over samples, other than linearly"
                 : fixed && looks_up(t, n)
                     ? "looks up by numbers of the samples what is free of the batch (tl_embedding "
                       "keeps samples apart)"
                 : op->traits & TL_POINTWISE
                     ? "mixes samples: they lie along different axes of its inputs (for "
                       "data that hold no samples, tl_constant, or TL_FREE by tl_batch_axis)"
                     : "mixes samples, or counts them (for a mean, give the count of the whole "
                       "batch, .count, or take a sum and divide it by that)");
        say_inputs(&s, t, n);
        line(&s, "; gradients behind it depend on the split");
        return true;
    }
    if (draws && tl_draws_alike(t, n)) {
        line(&s,
             "gives samples without a number of their own (.sample) the same draws again in each "
             "micro-batch");
        return true;
    }
    const bool apart = b == TL_FREE && !y->fixed;
    for (int i = 0; i < n->n_in && !(op->traits & TL_VIEW); i++) {
        const tl_tensor leaf = tl_peek(t, n->in[i]) == NULL ? TL_NONE
                                                            : adds_sums(t, n, i, samples, apart);
        if (!tl_is_none(leaf))
            line(&s, "%s'%s'", weights++ > 0 ? ", " : "uses ", tl_leaf_name(t, leaf));
    }
    const bool blind = op->attr == NULL && op->attr_size > 0;
    if (weights > 0)
        line(&s, "%s: its gradient adds finished sums, one for each micro-batch; %s",
             !apart  ? " repeated (tl_expand), and not once for each sample"
             : blind ? " apart from the batch, and no schema tells what its attributes are"
                     : " apart from the batch, with what is neither a parameter nor a tl_constant, "
                       "or repeated, or changed in place",
             !apart  ? "let the op broadcast it, or tell its axis of samples by tl_batch_axis"
             : blind ? "give the op one (.attr)"
                     : "if that has an axis of samples, say so by tl_batch_axis; make a fixed "
                       "table with tl_constant");
    return weights > 0;
}

/* Under TL_STRICT: refuses to record a node that is outside the promise. */
static tl_status refuse(TL_UNUSED void *ctx, tl_tape *t, const tl_seen *seen)
{
    const tl_node *n = &t->node[seen->node];
    const tl_at at = {t, seen->file, seen->line, seen->by};
    char why[TL_MESSAGE_MAX];
    if (n->kernel != NULL && n->kernel->mode & TL_FAST)
        return tl_tape_fail(at, TL_EUSAGE, "%s: TL_STRICT: kernel '%.60s' promises no bits",
                            n->op->name, n->kernel->name);
    if (blames(t, n, why))
        return tl_tape_fail(at, TL_EUSAGE, "%s: TL_STRICT: %s", n->op->name, why);
    return TL_OK;
}

const tl_observer tl_strict = {.mode = TL_STRICT, .records = refuse};

/* ---- all of them ---- */

/* Reports a node that a kernel without promised bits computed. */
static void explain_kernel(report *r, const tl_node *n)
{
    char name[NAME];
    if (n->kernel != NULL && n->kernel->mode & TL_FAST)
        line(r,
             "%s ran kernel '%.60s' (%s:%d), which promises no bits: nothing computed from it, "
             "forward or backward, is invariant.\n",
             name_of(name, n), n->kernel->name, n->file, n->line);
}

/* Whether kernel k of selection c, which was in force at node i, has been reported: because a node
 * ran one of its op, or because an earlier node has the same selection. */
static bool told(const tl_tape *t, const uint32_t *order, uint32_t n, uint32_t i,
                 const tl_choice *c, const tl_kernel *k)
{
    for (uint32_t at = 0; at < n; at++) {
        const tl_kernel *ran = t->node[order[at]].kernel;
        if (ran != NULL && ran->mode & TL_FAST && strcmp(ran->op, k->op) == 0)
            return true;
        const tl_choice *b = t->node[order[at]].needs_grad ? t->node[order[at]].choice : NULL;
        for (; at < i && b != NULL; b = b->outer)
            if (b == c)
                return true;
    }
    return false;
}

/* Reports kernels without promised bits that were selected around node i but did not run: backward
 * may call them. */
static void explain_choices(report *r, const tl_tape *t, const uint32_t *order, uint32_t n,
                            uint32_t i)
{
    const tl_node *node = &t->node[order[i]];
    for (const tl_choice *c = node->choice; c != NULL && !tl_choice_is_own(c); c = c->outer) {
        const tl_kernel *k = node->needs_grad ? tl_choice_fast(c) : NULL;
        if (k != NULL && !told(t, order, n, i, c, k))
            line(r,
                 "kernel '%.60s' is selected for %s around %s (%s:%d) and promises no bits: a "
                 "gradient that calls it is not invariant.\n",
                 k->name, k->op, node->op->name, node->file, node->line);
    }
}

/* Reports a node that mixes samples, with the reason. */
static void explain_batch(report *r, tl_tape *t, const tl_node *n)
{
    char why[TL_MESSAGE_MAX], name[NAME];
    if (blames(t, n, why))
        line(r, "%s (%s:%d) %s.\n", name_of(name, n), n->file, n->line, why);
}

/* Reports values made of parameters alone that had other values in earlier micro-batches. */
static void explain_derived(report *r, tl_tape *t, const uint32_t *order, uint32_t n)
{
    char why[TL_MESSAGE_MAX];
    if (t->lasting == NULL || t->recorder != NULL)
        return;
    for (int i = t->first_grad; i < t->n_grads; i++)
        t->grad[i].reached = false;
    for (uint32_t i = 0; i < n; i++)
        for (int k = 0; k < t->node[order[i]].n_in; k++) {
            const tl_node *node = &t->node[order[i]];
            const tl_tensor x = tl_accumulates(t, node, k);
            const tl_value *v = tl_peek(t, x); /* NULL, too, if it has been removed */
            const tl_tensor leaf = v == NULL || v->node < 0 ? TL_NONE : tl_derived_leaf(t, x);
            tl_leaf_grad *g = tl_is_none(leaf) ? NULL : tl_leaf_grad_get(t, leaf);
            if (g != NULL)
                g->reached = true;
        }
    for (int i = t->first_grad; i < t->n_grads; i++)
        if (tl_derived_strays(t, i, t->calls, why))
            line(r, "%s.\n", why);
}

int tl_explain_invariance(tl_tape *t, tl_tensor y, char *buf, size_t cap)
{
    uint32_t *all, *order, n_all, n;
    report r = {buf, cap, 0, 0};
    if (TL_NEED_N_AT(tl_nowhere(t), buf, cap > 0) != TL_OK)
        return -1;
    if (cap > 0)
        buf[0] = '\0';
    if (tl_failed(t) || tl_deref(tl_nowhere(t), y, "tl_explain_invariance") == NULL ||
        tl_canonical_order(t, y, TL_TO_ALL, &all, &n_all) != TL_OK ||
        tl_canonical_order(t, y, TL_TO_GRAD, &order, &n) != TL_OK)
        return -1;
    const tl_value *v = tl_peek(t, y);
    if (v->node < 0 && v->batch == TL_MIXED)
        line(&r,
             "value %u is a leaf that mixes samples: if a graph gave it, ask inside its program.\n",
             y.index);
    for (uint32_t i = 0; i < n_all; i++) {
        explain_kernel(&r, &t->node[all[i]]);
        explain_choices(&r, t, all, n_all, i);
        const tl_node *node = &t->node[all[i]];
        if (node->op->traits & TL_RANDOM && !node->needs_grad &&
            tl_values_at(&t->values, node->out)->batch >= 0)
            explain_batch(&r, t, node);
    }
    for (uint32_t i = 0; i < n; i++)
        explain_batch(&r, t, &t->node[order[i]]);
    explain_derived(&r, t, order, n);
    return tl_failed(t) ? -1 : r.lines;
}
