/* words.c: results of a log in words, and by the names of their parameters. */
#include "autograd/log/words.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

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

/* The parameter of that name. */
static const tl_log_result *parameter(const tl_logged_step *s, const char *name)
{
    for (int i = 0; i < s->n; i++)
        if (is(s->result[i].def, "param") && strcmp(s->result[i].def->name, name) == 0)
            return &s->result[i];
    return NULL;
}

/* s has it at i for the first time: each pass lists it anew. */
static bool first_time(const tl_logged_step *s, int i)
{
    return is(s->result[i].def, "param") && parameter(s, s->result[i].def->name) == &s->result[i];
}

static bool differ(const tl_log_result *x, const tl_log_result *y)
{
    return x->all != NULL && y->all != NULL && memcmp(x->all, y->all, 64) != 0;
}

tl_log_parameters tl_log_match_parameters(const tl_logged_step *a, const tl_logged_step *b)
{
    const tl_logged_step *s[2] = {a, b};
    tl_log_parameters p = {0};
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < s[k]->n; i++) {
            const tl_log_result *x = &s[k]->result[i],
                                *y = first_time(s[k], i) ? parameter(s[1 - k], x->def->name) : x;
            if (y == NULL && p.only[k]++ == 0)
                p.only_def[k] = x->def;
            if (k == 1 || y == NULL || y == x)
                continue;
            if (strcmp(x->def->shape, y->def->shape) == 0 &&
                strcmp(x->def->dtype, y->def->dtype) == 0) {
                p.same++;
                p.other_bytes += differ(x, y);
            } else if (p.reshaped++ == 0) {
                p.reshaped_def[0] = x->def;
                p.reshaped_def[1] = y->def;
            }
        }
    return p;
}

int tl_log_match_updates(const tl_logged_step *a, const tl_logged_step *b, int *n_differ)
{
    int n = 0;
    *n_differ = 0;
    for (int i = 0; i < a->n; i++) {
        const tl_log_result *x = &a->result[i];
        for (int k = 0; x->def->update && k < b->n; k++)
            if (b->result[k].def->update && is(b->result[k].def, x->def->op) &&
                strcmp(b->result[k].def->name, x->def->name) == 0) {
                n++;
                *n_differ += differ(x, &b->result[k]);
                break;
            }
    }
    return n;
}
