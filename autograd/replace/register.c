/* register.c: the table of replacements. One for the process; rules in it never change and never
 * go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *table; /* those added in their order, then ours in theirs */
static int n_shipped;  /* of ours have been looked at */

/* The first form of that number or a later one. */
static tl_rule *find(const char *name, int form)
{
    tl_rule *r = table;
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

/* The forms that are not there yet go into the table, or, with an error, none. */
static void insert(tl_rule *all, tl_err *err)
{
    tl_rule *fresh = NULL, **end = &fresh, **at = &table;
    while (all != NULL) {
        tl_rule *r = all;
        const tl_rule *like = find_like(table, r);
        all = r->next;
        r->next = NULL;
        if (like == NULL && (like = find_like(fresh, r)) == NULL) {
            *end = r;
            end = &r->next;
            continue;
        }
        if (!r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                    like->o.name);
        else
            tl_pattern_free(r->o.search_pattern); /* the table would have kept it */
        tl_rules_free(r);
    }
    if (fresh != NULL && find(fresh->o.name, 0) != NULL)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (err->status != TL_OK) {
        tl_rules_free(fresh);
        return;
    }
    while (*at != NULL && ((fresh != NULL && fresh->shipped) || !(*at)->shipped))
        at = &(*at)->next;
    *end = *at;
    *at = fresh;
}

/* The lock is held, and ours are in the table; when memory runs out, the next call goes on. */
static tl_status enter(tl_err *err)
{
    pthread_mutex_lock(&lock);
    for (; tl_shipped_replacements[n_shipped] != NULL; n_shipped++) {
        tl_err e = {.status = TL_OK};
        insert(tl_rules_make(tl_shipped_replacements[n_shipped], true, &e), &e);
        if (e.status == TL_ENOMEM)
            return tl_fail(err, e.status, "%s", e.message);
    }
    return TL_OK;
}

static void leave(void) { pthread_mutex_unlock(&lock); }

tl_status tl_register_replacement_with(tl_err *err, tl_replacement o)
{
    tl_err e = {.status = TL_OK};
    tl_rule *r = tl_rules_make(&o, false, &e);
    if (r != NULL) {
        if (enter(&e) == TL_OK)
            insert(r, &e);
        else
            tl_rules_free(r);
        leave();
    }
    if (e.status != TL_OK)
        tl_fail(err, e.status, "tl_register_replacement: '%s': %.440s",
                o.name != NULL ? o.name : "", e.message);
    return e.status;
}

const tl_rule *tl_rule_find(const char *name, int form)
{
    enter(NULL);
    const tl_rule *r = name == NULL ? NULL : find(name, form);
    leave();
    return r;
}

bool tl_replacement_enable(const char *name, bool on)
{
    enter(NULL);
    tl_rule *r = name == NULL ? NULL : find(name, 0);
    for (tl_rule *f = r; f != NULL; f = find(name, f->form + 1))
        atomic_store(&f->on, on);
    leave();
    return r != NULL;
}

static const char *name_at(int i)
{
    const char *last = "";
    for (const tl_rule *r = table; r != NULL; last = r->o.name, r = r->next)
        if (strcmp(last, r->o.name) != 0 && i-- == 0) /* the first of its forms */
            return r->o.name;
    return NULL;
}

const char *tl_replacement_at(int i)
{
    enter(NULL);
    const char *name = i < 0 ? NULL : name_at(i);
    leave();
    return name;
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

/* Every name in the list, which stands in `where`, is that of a replacement; if not, the error
 * lists those there are, first those that begin as it does, as far as there is room. */
static tl_status check_names(const char *where, const char *list, tl_err *err)
{
    char name[NAME], all[320] = "all";
    size_t used = strlen(all);
    do
        if (!next_name(&list, name))
            return TL_OK;
    while (strcmp(name, "all") == 0 || find(name, 0) != NULL);
    for (int others = 0; others < 2; others++)
        for (int i = 0; name_at(i) != NULL && used < sizeof all; i++)
            if ((name_at(i)[0] != name[0]) == others)
                used += (size_t)snprintf(all + used, sizeof all - used, ", %s", name_at(i));
    return tl_fail(err, TL_ENAME, "%s: there is no replacement '%.60s'; there are: %s%s", where,
                   name, all, used < sizeof all ? "" : "...");
}

static tl_status list_rules(tl_bump *mem, const tl_graph_options *o, bool joint,
                            const tl_rule ***list, int *n, tl_err *err)
{
    const char *without = getenv("TL_WITHOUT");
    size_t all = 1;
    TL_TRY(check_names("TL_WITHOUT in the environment", without, err));
    TL_TRY(check_names("the graph's option .without", o->without, err));
    for (const tl_rule *r = table; r != NULL; r = r->next)
        all++;
    if ((*list = tl_bump_get(mem, all * sizeof **list)) == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a list of %zu replacements", all);
    *n = 0;
    for (const tl_rule *r = table; r != NULL; r = r->next)
        if (atomic_load(&r->on) && (r->o.trace == TL_TRACE_JOINT) == joint &&
            !listed(without, r->o.name) && !listed(o->without, r->o.name))
            (*list)[(*n)++] = r;
    return TL_OK;
}

tl_status tl_rules_on(tl_bump *mem, const tl_graph_options *o, bool joint, const tl_rule ***list,
                      int *n, tl_err *err)
{
    tl_status s = enter(err);
    if (s == TL_OK)
        s = list_rules(mem, o, joint, list, n, err);
    leave();
    return s;
}
