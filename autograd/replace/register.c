/* register.c: the table of replacements. One for the process; rules in it never change
 * and never go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t shipping = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *table; /* those added in their order, then ours in theirs */
static int n_shipped;  /* of ours have been looked at */

static const tl_rule *find(const char *name, int form)
{
    const tl_rule *r = table;
    while (r != NULL && (strcmp(r->o.name, name) != 0 || r->form < form))
        r = r->next;
    return r;
}

static const tl_rule *find_like(const tl_rule *list, const tl_rule *r)
{
    while (list != NULL &&
           !(list->o.extra_check == r->o.extra_check && list->o.trace == r->o.trace &&
             tl_pattern_same(list->pattern, r->pattern)))
        list = list->next;
    return list;
}

/* r is there already; so it is an error, unless it may be skipped. */
static bool duplicate(const tl_rule *r, const tl_rule *own, tl_err *err)
{
    const tl_rule *like = find_like(table, r);
    if (like == NULL)
        like = find_like(own, r);
    if (like != NULL && !r->o.skip_duplicates)
        tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                like->o.name);
    return like != NULL;
}

/* Under the lock: the forms that are not there yet go into the table, or, with an error, none; the
 * others come back. */
static tl_rule *insert(tl_rule *all, tl_err *err)
{
    tl_rule *fresh = NULL, **end = &fresh, *rest = NULL, *next;
    for (tl_rule *r = all; r != NULL; r = next) {
        next = r->next;
        bool skip = duplicate(r, fresh, err);
        r->next = skip ? rest : NULL;
        *(skip ? &rest : end) = r;
        if (!skip)
            end = &r->next;
    }
    if (fresh != NULL && find(fresh->o.name, 0) != NULL)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (fresh == NULL || err->status != TL_OK) {
        *end = rest;
        return fresh;
    }
    tl_rule **at = &table;
    while (*at != NULL && (fresh->shipped || !(*at)->shipped))
        at = &(*at)->next;
    *end = *at;
    *at = fresh;
    return rest;
}

/* Ours are in the table, once; when memory runs out, the next call goes on. */
static tl_status add_shipped(tl_err *err)
{
    tl_status s = TL_OK;
    pthread_mutex_lock(&shipping);
    for (; s == TL_OK && tl_shipped_replacements[n_shipped] != NULL; n_shipped += s == TL_OK) {
        tl_err e = {.status = TL_OK};
        tl_rule *r = tl_rules_make(tl_shipped_replacements[n_shipped], true, &e);
        pthread_mutex_lock(&lock);
        r = r == NULL ? NULL : insert(r, &e);
        pthread_mutex_unlock(&lock);
        tl_rules_free(r);
        if (e.status == TL_ENOMEM)
            s = tl_fail(err, e.status, "%s", e.message);
    }
    pthread_mutex_unlock(&shipping);
    return s;
}

tl_status tl_register_replacement_with(tl_err *err, tl_replacement o)
{
    tl_err e = {.status = TL_OK};
    tl_rule *r = add_shipped(&e) == TL_OK ? tl_rules_make(&o, false, &e) : NULL;
    if (r != NULL) {
        pthread_mutex_lock(&lock);
        r = insert(r, &e);
        pthread_mutex_unlock(&lock);
        if (r != NULL && e.status == TL_OK && o.search_pattern != NULL)
            tl_pattern_free(o.search_pattern); /* skipped: the table would have kept it */
        tl_rules_free(r);
    }
    if (e.status != TL_OK)
        tl_fail(err, e.status, "tl_register_replacement: '%s': %.440s",
                o.name != NULL ? o.name : "", e.message);
    return e.status;
}

const tl_rule *tl_rule_find(const char *name, int form)
{
    if (name == NULL)
        return NULL;
    add_shipped(NULL);
    pthread_mutex_lock(&lock);
    const tl_rule *r = find(name, form);
    pthread_mutex_unlock(&lock);
    return r;
}

bool tl_replacement_enable(const char *name, bool on)
{
    const tl_rule *r = tl_rule_find(name, 0);
    for (const tl_rule *f = r; f != NULL; f = tl_rule_find(name, f->form + 1))
        atomic_store(&((tl_rule *)(uintptr_t)f)->on, on);
    return r != NULL;
}

const char *tl_replacement_at(int i)
{
    if (i < 0)
        return NULL;
    add_shipped(NULL);
    pthread_mutex_lock(&lock);
    const tl_rule *r = table;
    for (const char *last = ""; r != NULL; last = r->o.name, r = r->next)
        if (strcmp(last, r->o.name) != 0 && i-- == 0) /* the first of its forms */
            break;
    pthread_mutex_unlock(&lock);
    return r == NULL ? NULL : r->o.name;
}

/* ---- which are on ---- */

enum { NAME = 128 };

/* The next name of a list with commas; false at its end. */
static bool next_name(const char **list, char name[NAME])
{
    if (*list == NULL || **list == 0)
        return false;
    size_t n = strcspn(*list, ",");
    snprintf(name, NAME, "%.*s", (int)n, *list);
    *list += n + ((*list)[n] == ',');
    return true;
}

/* name stands in the list, or the list says "all". */
static bool listed(const char *list, const char *name)
{
    char s[NAME];
    while (next_name(&list, s))
        if (strcmp(s, name) == 0 || strcmp(s, "all") == 0)
            return true;
    return false;
}

/* The names that there are, those that begin as `like` does before the others, as far as n bytes
 * go. */
static void put_names(char *to, size_t n, const char *like)
{
    snprintf(to, n, "all");
    for (int others = 0; others < 2; others++)
        for (int i = 0; tl_replacement_at(i) != NULL; i++) {
            const char *name = tl_replacement_at(i);
            size_t used = strlen(to);
            if ((name[0] != like[0]) != others)
                continue;
            if (used + strlen(name) + sizeof ", , ..." > n) {
                snprintf(to + used, n - used, ", ...");
                return;
            }
            snprintf(to + used, n - used, ", %s", name);
        }
}

/* Every name in the list, which stands in `where`, is that of a replacement; if not, the error
 * lists those there are. */
static tl_status check_names(const char *where, const char *list, tl_err *err)
{
    char name[NAME], all[320];
    while (next_name(&list, name)) {
        if (strcmp(name, "all") == 0 || tl_rule_find(name, 0) != NULL)
            continue;
        put_names(all, sizeof all, name);
        return tl_fail(err, TL_ENAME, "%s: there is no replacement '%.60s'; there are: %s", where,
                       name, all);
    }
    return TL_OK;
}

int tl_rules_on(tl_bump *mem, const tl_graph_options *o, bool joint, const tl_rule ***list,
                tl_err *err)
{
    const char *without = getenv("TL_WITHOUT");
    int n = 0;
    if (add_shipped(err) != TL_OK ||
        check_names("TL_WITHOUT in the environment", without, err) != TL_OK ||
        check_names("the graph's option .without", o->without, err) != TL_OK)
        return -1;
    pthread_mutex_lock(&lock);
    for (const tl_rule *r = table; r != NULL; r = r->next)
        n++;
    *list = tl_bump_get(mem, (size_t)(n + 1) * sizeof **list);
    n = *list == NULL ? -1 : 0;
    for (const tl_rule *r = table; r != NULL && n >= 0; r = r->next)
        if (atomic_load(&r->on) && (r->o.trace == TL_TRACE_JOINT) == joint &&
            !listed(without, r->o.name) && !listed(o->without, r->o.name))
            (*list)[n++] = r;
    pthread_mutex_unlock(&lock);
    return n;
}
