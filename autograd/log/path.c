/* path.c: what a result was computed from, and how the two logs stand along the way. */
#include <string.h>

#include "autograd/log/report.h"
#include "autograd/log/words.h"

enum { PATH_SHOWN = 8 };

void tl_log_show_result(FILE *f, const tl_logged_step *s, const tl_log_def *d, const char *remark)
{
    char key[TL_KEY_TEXT], shape[TL_LOG_SHAPE], text[TL_WORDS];
    fprintf(f, "    %-12s %-8s %-18s %s\n", remark, tl_log_key_text(key, d->key),
            tl_log_shape_text(shape, d, false), tl_log_words(text, s, d));
}

static const char *const verdict_words[] = {"same", "DIFFERS", "not known", "only in A",
                                            "another op"};

static tl_log_verdict verdict_of(const tl_log_comparison *c, uint64_t key)
{
    const tl_log_result *r = tl_log_find(c->a, key);
    return r == NULL ? TL_LOG_UNKNOWN : c->of_a[r - c->a->result];
}

bool tl_log_show_inputs(FILE *f, const tl_log_comparison *c, const tl_log_result *r,
                        bool *all_known)
{
    bool agree = true;
    *all_known = true;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(c->a, r->def->in[k]);
        if (in == NULL) {
            *all_known &= r->def->in[k] == 0; /* 0: absent, or the result's own memory */
            continue;
        }
        tl_log_verdict v = verdict_of(c, in->key);
        agree &= v != TL_LOG_DIFFERS && v != TL_LOG_OTHER;
        *all_known &= v == TL_LOG_SAME;
        tl_log_show_result(f, c->a, in->def, verdict_words[v]);
    }
    return agree;
}

/* The input computed last, or the first if nothing went into any: the trunk of what was computed.
 */
static const tl_log_result *before(const tl_logged_step *s, const tl_log_result *r)
{
    const tl_log_result *leaf = NULL, *made = NULL;
    for (int k = 0; k < r->def->n_in; k++) {
        const tl_log_result *in = tl_log_find(s, r->def->in[k]);
        if (in != NULL && in->key < r->key && in->def->n_in > 0 &&
            (made == NULL || in->key > made->key))
            made = in;
        leaf = leaf == NULL && in != NULL && in->key < r->key ? in : leaf;
    }
    return made != NULL ? made : leaf;
}

void tl_log_show_path(FILE *f, const tl_log_comparison *c, const tl_log_result *r)
{
    const tl_log_result *path[PATH_SHOWN], *first = r;
    int n = 0, more = 0;
    for (const tl_log_result *x = before(c->a, r); x != NULL; x = before(c->a, x)) {
        if (n < PATH_SHOWN)
            path[n++] = x;
        else
            more++;
        first = x;
    }
    if (n == 0)
        return;
    fputs("\nThe path that led there:\n", f);
    if (more > 0) {
        tl_log_show_result(f, c->a, first->def, verdict_words[verdict_of(c, first->key)]);
        if (more > 1)
            fprintf(f, "    %-12s ... %d more\n", "", more - 1);
    }
    while (n-- > 0)
        tl_log_show_result(f, c->a, path[n]->def, verdict_words[verdict_of(c, path[n]->key)]);
    tl_log_show_result(f, c->a, r->def, "here ->");
}
