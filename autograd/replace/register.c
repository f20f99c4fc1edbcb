/* register.c: the table of replacements. One for the process; rules in it never change and never
 * go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *table; /* those added in their order, then ours in theirs */
static int n_shipped;  /* of ours have been looked at */

static tl_rule *find(const char *name)
{
    tl_rule *r = table;
    while (r != NULL && (name == NULL || strcmp(r->o.name, name) != 0))
        r = r->next;
    return r;
}

/* The rule with the same pattern as f, which is in the list: of another, or before it. */
static const tl_rule *find_like(const tl_rule *list, const tl_form *f)
{
    for (const tl_rule *r = list; r != NULL; r = r->next)
        for (const tl_form *l = r->form; l < r->form + r->n_forms && l != f; l++)
            if (l->pattern != NULL && r->o.extra_check == f->rule->o.extra_check &&
                r->o.trace == f->rule->o.trace && tl_pattern_same(l->pattern, f->pattern))
                return r;
    return NULL;
}

/* r goes into the table, but for forms that are there; or, with an error, nowhere. */
static void insert(tl_rule *r, tl_err *err)
{
    tl_rule **at = &table;
    int fresh = 0;
    r->next = table;
    for (int i = 0; i < r->n_forms; i++) {
        const tl_rule *like = find_like(r, &r->form[i]);
        fresh += like == NULL;
        if (like == NULL)
            continue;
        r->form[i].pattern = NULL;
        if (!r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                    like->o.name);
    }
    if (fresh > 0 && find(r->o.name) != NULL)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (fresh == 0 && r->o.skip_duplicates)
        tl_pattern_free(r->o.search_pattern); /* the table would have kept it */
    if (fresh == 0 || err->status != TL_OK) {
        tl_rule_free(r);
        return;
    }
    while (*at != NULL && (r->shipped || !(*at)->shipped))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
}

/* The lock is held, and ours are in the table; when memory runs out, the next call goes on. */
static tl_status enter(tl_err *err)
{
    pthread_mutex_lock(&lock);
    for (; tl_shipped_replacements[n_shipped] != NULL; n_shipped++) {
        tl_err e = {.status = TL_OK};
        tl_rule *r = tl_rule_make(tl_shipped_replacements[n_shipped], true, &e);
        if (r != NULL)
            insert(r, &e);
        if (e.status == TL_ENOMEM)
            return tl_fail(err, e.status, "%s", e.message);
    }
    return TL_OK;
}

static void leave(void) { pthread_mutex_unlock(&lock); }

tl_status tl_register_replacement_with(tl_err *err, tl_replacement o)
{
    tl_err e = {.status = TL_OK};
    tl_rule *r = tl_rule_make(&o, false, &e);
    if (r != NULL) {
        if (enter(&e) == TL_OK)
            insert(r, &e);
        else
            tl_rule_free(r);
        leave();
    }
    if (e.status != TL_OK)
        tl_fail(err, e.status, "tl_register_replacement: '%s': %.440s",
                o.name != NULL ? o.name : "", e.message);
    return e.status;
}

const tl_form *tl_form_find(const char *name, int form)
{
    enter(NULL);
    const tl_rule *r = find(name);
    leave();
    return r == NULL || form < 0 || form >= r->n_forms ? NULL : &r->form[form];
}

bool tl_replacement_enable(const char *name, bool on)
{
    enter(NULL);
    tl_rule *r = find(name);
    if (r != NULL)
        atomic_store(&r->on, on);
    leave();
    return r != NULL;
}

const char *tl_replacement_at(int i)
{
    enter(NULL);
    const tl_rule *r = i < 0 ? NULL : table;
    while (r != NULL && i-- > 0)
        r = r->next;
    leave();
    return r == NULL ? NULL : r->o.name;
}

/* ---- which are on ---- */

static tl_status unknown(const char *where, const char *name, size_t n, tl_err *err)
{
    char all[320] = "all";
    size_t used = strlen(all);
    for (int others = 0; others < 2; others++) /* first those that begin as it does */
        for (const tl_rule *r = table; r != NULL && used < sizeof all; r = r->next)
            if ((r->o.name[0] != name[0]) == others)
                used += (size_t)snprintf(all + used, sizeof all - used, ", %s", r->o.name);
    return tl_fail(err, TL_ENAME, "%s: there is no replacement '%.*s'; there are: %s%s", where,
                   n < 60 ? (int)n : 60, name, all, used < sizeof all ? "" : "...");
}

/* The rules that a list with commas names ("all": each) are out, by their place in the table. */
static tl_status leave_out(const char *where, const char *list, bool *out, tl_err *err)
{
    for (size_t n; list != NULL && *list != 0; list += n + (list[n] == ',')) {
        const tl_rule *r = table;
        n = strcspn(list, ",");
        bool all = n == 3 && memcmp(list, "all", n) == 0, known = all;
        for (int i = 0; r != NULL; r = r->next, i++) {
            bool named = strlen(r->o.name) == n && memcmp(list, r->o.name, n) == 0;
            known |= named;
            out[i] |= all || named;
        }
        if (!known)
            return unknown(where, list, n, err);
    }
    return TL_OK;
}

static tl_status list_forms(tl_bump *mem, const tl_graph_options *o, bool joint,
                            const tl_form ***list, int *n, tl_err *err)
{
    size_t all = 1;
    for (const tl_rule *r = table; r != NULL; r = r->next)
        all += (size_t)r->n_forms;
    bool *out = tl_bump_get(mem, all);
    if (out == NULL || (*list = tl_bump_get(mem, all * sizeof **list)) == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a list of %zu replacements", all);
    TL_TRY(leave_out("TL_WITHOUT in the environment", getenv("TL_WITHOUT"), out, err));
    TL_TRY(leave_out("the graph's option .without", o->without, out, err));
    *n = 0;
    for (const tl_rule *r = table; r != NULL; r = r->next, out++)
        for (int i = 0; i < r->n_forms; i++)
            if (!*out && atomic_load(&r->on) && (r->o.trace == TL_TRACE_JOINT) == joint &&
                r->form[i].pattern != NULL)
                (*list)[(*n)++] = &r->form[i];
    return TL_OK;
}

tl_status tl_forms_on(tl_bump *mem, const tl_graph_options *o, bool joint, const tl_form ***list,
                      int *n, tl_err *err)
{
    tl_status s = enter(err);
    if (s == TL_OK)
        s = list_forms(mem, o, joint, list, n, err);
    leave();
    return s;
}
