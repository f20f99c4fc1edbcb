/* register.c: the table of replacements. One for the process; rules in it never change
 * and never go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/graph/pattern_internal.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t shipping = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *added, *shipped; /* each in its order */
static int n_shipped;            /* of ours have been looked at */

static char *copy_text(tl_bump *b, const char *text)
{
    size_t n = strlen(text) + 1;
    char *to = tl_bump_get(b, n);
    return to == NULL ? NULL : memcpy(to, text, n);
}

/* Everything o points to, but for ctx, into r's own memory. */
static tl_status copy_options(tl_rule *r, tl_err *err)
{
    tl_replacement *o = &r->o;
    tl_pattern_arg *arg = tl_bump_get(&r->bump, (size_t)(o->n_in + 1) * sizeof *arg);
    tl_pattern_scalar *scalar = tl_bump_get(&r->bump, (size_t)(o->n_scalars + 1) * sizeof *scalar);
    bool ok = arg != NULL && scalar != NULL && (o->name = copy_text(&r->bump, o->name)) != NULL;
    for (int i = 0; ok && i < o->n_in; i++) {
        arg[i] = o->example_inputs[i];
        ok = (arg[i].name = copy_text(&r->bump, arg[i].name)) != NULL;
    }
    for (int i = 0; ok && i < o->n_scalars; i++) {
        scalar[i] = o->scalars[i];
        ok = (scalar[i].name = copy_text(&r->bump, scalar[i].name)) != NULL;
    }
    o->example_inputs = arg;
    o->scalars = scalar;
    return ok ? TL_OK : tl_fail(err, TL_ENOMEM, "no memory for a replacement");
}

static tl_status check_options(const tl_replacement *o, tl_err *err)
{
    int seeds = o->trace == TL_TRACE_JOINT ? o->n_out : 0;
    if (o->name == NULL || o->name[0] == 0 || strchr(o->name, ',') != NULL)
        return tl_fail(err, TL_ENAME, "it needs a name, without a comma");
    if ((o->search == NULL && o->search_pattern == NULL) || o->replace == NULL)
        return tl_fail(err, TL_EUSAGE, "a search (or search_pattern) and a replace are needed");
    if (o->n_in < 1 || o->n_in + seeds > TL_PATTERN_ARGS || o->n_out < 1 || o->n_out > TL_PATTERN_OUTS || o->n_scalars < 0 || o->n_scalars > TL_PATTERN_SCALARS)
        return tl_fail(err, TL_EUSAGE, "%d arguments, %d outputs, %d scalars; 1 to %d, 1 to %d, 0 to %d are possible", o->n_in, o->n_out, o->n_scalars,
                       TL_PATTERN_ARGS - seeds, TL_PATTERN_OUTS, TL_PATTERN_SCALARS);
    if (seeds > 0 && (seeds > TL_PATTERN_JOINT_OUTS || o->search_pattern != NULL))
        return tl_fail(err, TL_EUSAGE, "a joint replacement is traced, not given as a pattern, and has at most %d outputs", TL_PATTERN_JOINT_OUTS);
    for (int i = 0; i < o->n_in; i++)
        if (o->example_inputs[i].name == NULL || (unsigned)o->example_inputs[i].dtype >= TL_DTYPE_COUNT)
            return tl_fail(err, TL_EUSAGE, "argument %d has no name or no dtype", i);
    for (int i = 0; i < o->n_scalars; i++)
        if (o->scalars[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %d has no name", i);
    return TL_OK;
}

static void free_rule(tl_rule *r)
{
    tl_bump_free(&r->bump);
    tl_free_raw(r);
}

static tl_rule *make_rule(const tl_replacement *o, bool ours, tl_err *err)
{
    tl_rule *r = check_options(o, err) == TL_OK ? tl_calloc(1, sizeof *r) : NULL;
    if (r == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a replacement"), NULL;
    r->o = *o;
    r->shipped = ours;
    r->n_args = o->n_in + (o->trace == TL_TRACE_JOINT ? o->n_out : 0);
    atomic_store(&r->on, true);
    tl_status s = copy_options(r, err);
    if (s == TL_OK)
        s = tl_rule_prepare(r, err);
    if (s == TL_OK && !ours && (o->exact | o->exact_forward) != 0) /* the suite verifies what is shipped */
        s = tl_rule_verify(r, 1, 8, err);
    if (s == TL_OK)
        return r;
    free_rule(r);
    return NULL;
}

static const tl_rule *find_in(const tl_rule *list, const char *name)
{
    while (list != NULL && strcmp(list->o.name, name) != 0)
        list = list->next;
    return list;
}

static const tl_rule *find_like(const tl_rule *list, const tl_rule *r)
{
    while (list != NULL && !(list->o.extra_check == r->o.extra_check && list->o.trace == r->o.trace && tl_pattern_same(list->pattern, r->pattern)))
        list = list->next;
    return list;
}

/* Under the lock. true: r is in the table. */
static bool insert(tl_rule *r, tl_err *err)
{
    const tl_rule *like = find_like(added, r);
    if (like == NULL)
        like = find_like(shipped, r);
    if (like != NULL) {
        if (!r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check", like->o.name);
        return false;
    }
    if (find_in(added, r->o.name) != NULL || find_in(shipped, r->o.name) != NULL) {
        tl_fail(err, TL_ENAME, "the name is taken");
        return false;
    }
    tl_rule **end = r->shipped ? &shipped : &added;
    while (*end != NULL)
        end = &(*end)->next;
    *end = r;
    return true;
}

/* Ours are in the table, once; when memory runs out, the next call goes on. */
static tl_status add_shipped(tl_err *err)
{
    tl_status s = TL_OK;
    pthread_mutex_lock(&shipping);
    for (; s == TL_OK && tl_shipped_replacements[n_shipped] != NULL; n_shipped += s == TL_OK) {
        tl_err e = {.status = TL_OK};
        tl_rule *r = make_rule(tl_shipped_replacements[n_shipped], true, &e);
        pthread_mutex_lock(&lock);
        bool in = r != NULL && insert(r, &e);
        pthread_mutex_unlock(&lock);
        if (!in && r != NULL)
            free_rule(r);
        if (e.status == TL_ENOMEM)
            s = tl_fail(err, e.status, "%s", e.message);
    }
    pthread_mutex_unlock(&shipping);
    return s;
}

tl_status tl_register_replacement_with(tl_err *err, tl_replacement o)
{
    tl_err e = {.status = TL_OK};
    tl_rule *r = add_shipped(&e) == TL_OK ? make_rule(&o, false, &e) : NULL;
    if (r != NULL) {
        pthread_mutex_lock(&lock);
        bool in = insert(r, &e);
        pthread_mutex_unlock(&lock);
        if (!in)
            free_rule(r);
        if (!in && e.status == TL_OK && o.search_pattern != NULL)
            tl_pattern_free(o.search_pattern); /* skipped: the table would have kept it */
    }
    if (e.status != TL_OK)
        tl_fail(err, e.status, "tl_register_replacement: '%s': %.440s", o.name != NULL ? o.name : "", e.message);
    return e.status;
}

const tl_rule *tl_rule_find(const char *name)
{
    add_shipped(NULL);
    pthread_mutex_lock(&lock);
    const tl_rule *r = find_in(added, name);
    if (r == NULL)
        r = find_in(shipped, name);
    pthread_mutex_unlock(&lock);
    return r;
}

bool tl_replacement_enable(const char *name, bool on)
{
    const tl_rule *r = tl_rule_find(name);
    if (r != NULL)
        atomic_store(&((tl_rule *)(uintptr_t)r)->on, on);
    return r != NULL;
}

const char *tl_replacement_at(int i)
{
    add_shipped(NULL);
    pthread_mutex_lock(&lock);
    const tl_rule *r = added != NULL ? added : shipped;
    for (bool mine = added != NULL; r != NULL && i > 0; i--) {
        r = r->next;
        if (r == NULL && mine) {
            r = shipped;
            mine = false;
        }
    }
    pthread_mutex_unlock(&lock);
    return r == NULL ? NULL : r->o.name;
}

/* name stands in a list with commas, or the list says "all". */
static bool listed(const char *list, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = list; at != NULL && *at != 0; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        size_t m = strcspn(at, ",");
        if ((m == n && strncmp(at, name, n) == 0) || (m == 3 && strncmp(at, "all", 3) == 0))
            return true;
    }
    return false;
}

/* The names that there are, those that begin as `like` does before the others, as far as n bytes go. */
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

/* Every name in the list, which stands in `where`, is that of a replacement; if not, the error lists those there are. */
static tl_status check_names(const char *where, const char *list, tl_err *err)
{
    char name[128], all[320];
    for (const char *at = list; at != NULL && *at != 0; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, ","), at);
        if (strcmp(name, "all") == 0 || tl_rule_find(name) != NULL)
            continue;
        put_names(all, sizeof all, name);
        return tl_fail(err, TL_ENAME, "%s: there is no replacement '%.60s'; there are: %s", where, name, all);
    }
    return TL_OK;
}

int tl_rules_on(tl_bump *mem, const tl_graph_options *o, const tl_rule ***list, tl_err *err)
{
    const char *without = getenv("TL_WITHOUT");
    int n = 0;
    if (add_shipped(err) != TL_OK || check_names("TL_WITHOUT in the environment", without, err) != TL_OK ||
        check_names("the graph's option .without", o->without, err) != TL_OK)
        return -1;
    pthread_mutex_lock(&lock);
    for (int k = 0; k < 2; k++)
        for (const tl_rule *r = k == 0 ? added : shipped; r != NULL; r = r->next)
            n++;
    *list = tl_bump_get(mem, (size_t)(n + 1) * sizeof **list);
    n = *list == NULL ? -1 : 0;
    for (int k = 0; k < 2 && n >= 0; k++)
        for (const tl_rule *r = k == 0 ? added : shipped; r != NULL; r = r->next)
            if (atomic_load(&r->on) && !listed(without, r->o.name) && !listed(o->without, r->o.name))
                (*list)[n++] = r;
    pthread_mutex_unlock(&lock);
    return n;
}
