/* words.c: results of a log in words, and by the names of their parameters. */
#include "autograd/log/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/arena.h"

static bool is(const tl_log_def *d, const char *op) { return strcmp(d->op, op) == 0; }

bool tl_log_is_leaf(const tl_log_def *d)
{
    return is(d, "param") || is(d, "buffer") || is(d, "data");
}

const char *tl_log_shape_text(char buf[TL_LOG_SHAPE], const tl_log_def *d, bool parts)
{
    if (d->rows < 0)
        return snprintf(buf, TL_LOG_SHAPE, "%s",
                        strcmp(d->tail, "scalar") == 0 ? "scalar" : d->shape),
               buf;
    int n = snprintf(buf, TL_LOG_SHAPE, "[%" PRId64, d->rows);
    for (const char *c = d->tail; *c != '\0' && n < 200; c++)
        n += snprintf(buf + n, TL_LOG_SHAPE - (size_t)n, *c == ',' ? ", " : "%c", *c);
    snprintf(buf + n, TL_LOG_SHAPE - (size_t)n, parts && d->parts > 1 ? "] in %d parts" : "]",
             d->parts);
    return buf;
}

static int leaf_words(char *buf, const tl_log_def *d)
{
    if (is(d, "data"))
        return *d->name ? snprintf(buf, TL_WORDS, "the %.200s", d->name)
                        : snprintf(buf, TL_WORDS, "data");
    if (is(d, "state"))
        return snprintf(buf, TL_WORDS, "%s%.200s after the update", *d->name ? "" : "state",
                        d->name);
    return snprintf(buf, TL_WORDS, "%s%s%.200s", is(d, "param") ? "parameter" : d->op,
                    *d->name ? " " : "", d->name);
}

const char *tl_log_words(char buf[TL_WORDS], const tl_logged_step *s, const tl_log_def *d)
{
    tl_log_key k = tl_log_key_unpack(d->key);
    bool leaf = tl_log_is_leaf(d) || is(d, "state");
    char key[TL_KEY_TEXT];
    int n = leaf ? leaf_words(buf, d) : snprintf(buf, TL_WORDS, "%.100s", d->op);
    if (k.out > 0)
        n += snprintf(buf + n, TL_WORDS - (size_t)n, ", output %d", k.out);
    if (k.backward && !leaf) {
        uint64_t forward = tl_log_key_pack((tl_log_key){.pass = k.pass, .at = k.at});
        const tl_log_result *f = tl_log_find(s, forward);
        n += snprintf(buf + n, TL_WORDS - (size_t)n, "%s %.100s%s%s%s",
                      k.adding ? " of what came to" : " in the backward of",
                      f != NULL ? f->def->op : "", f != NULL ? " (" : "",
                      tl_log_key_text(key, forward), f != NULL ? ")" : "");
    }
    if (!leaf && *d->name)
        snprintf(buf + n, TL_WORDS - (size_t)n, ": the %s%.150s",
                 d->gradient ? "gradient of "
                 : d->update ? "update of "
                             : "",
                 d->name);
    return buf;
}

static bool differ(const tl_log_result *x, const tl_log_result *y)
{
    return x->all != NULL && y->all != NULL && memcmp(x->all, y->all, 64) != 0;
}

/* ---- matching by name: two lists in one order, walked side by side ---- */

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
        if (updates ? s->result[i].def->update : is(s->result[i].def, "param"))
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
