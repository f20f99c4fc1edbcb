/* rule.c: checks replacements when they are registered, and keeps the process's table of them. Its
 * rules never change and are never freed: graphs need no lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

bool tl_rule_claims(const tl_rule *r, tl_dtype d, bool gradients)
{
    return !(r->o.rounding_forms >> r->form & 1) &&
           (r->o.exact | (gradients ? 0 : r->o.exact_forward)) & TL_BIT(d);
}

tl_status tl_rule_example(const tl_rule *r, const tl_shape *shapes, tl_rule_call *c, tl_err *err)
{
    const tl_pattern_arg *arg = r->o.example_inputs;
    *c = (tl_rule_call){.rule = r};
    if (shapes == NULL && r->o.form_shapes != NULL)
        shapes = r->o.form_shapes + r->form * r->o.n_in;
    for (int i = 0; i < r->o.n_in; i++) {
        const tl_shape shape = shapes != NULL ? shapes[i] : arg[i].shape;
        TL_TRY(tl_shape_check(&shape, arg[i].dtype, err));
        c->array[i] = tl_array_make(arg[i].dtype, &shape, NULL);
        c->grad[i] = !arg[i].no_grad && tl_dtype_is_float(arg[i].dtype);
    }
    for (int i = 0; i < r->o.n_scalars; i++)
        c->scalar[i] = r->o.scalars[i].value;
    return TL_OK;
}

static tl_status check_options(const tl_replacement *o, tl_err *err)
{
    const bool joint = o->trace == TL_TRACE_JOINT;
    const struct {
        const char *what;
        int is, least, most;
    } range[] = {{"arguments", o->n_in, 1, TL_PATTERN_ARGS - (joint ? o->n_out : 0)},
                 {"outputs", o->n_out, 1, joint ? TL_PATTERN_JOINT_OUTS : TL_PATTERN_OUTS},
                 {"scalars", o->n_scalars, 0, TL_PATTERN_SCALARS},
                 {"as a kind of trace", (int)o->trace, TL_TRACE_FORWARD, TL_TRACE_JOINT},
                 {"forms", o->forms, 0, TL_PATTERN_FORMS}};
    if (o->name == NULL || o->name[0] == 0 || strchr(o->name, ',') != NULL)
        return tl_fail(err, TL_ENAME, "it needs a name, without a comma");
    if (strcmp(o->name, "all") == 0) /* TL_WITHOUT takes it for every one */
        return tl_fail(err, TL_ENAME, "that name stands for all replacements");
    if (o->search == NULL || o->replace == NULL)
        return tl_fail(err, TL_EUSAGE, "a search and a replace are needed");
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (range[i].is < range[i].least || range[i].is > range[i].most)
            return tl_fail(err, TL_EUSAGE, "%d %s; %d to %d are possible", range[i].is,
                           range[i].what, range[i].least, range[i].most);
    return TL_OK;
}

static void *copied(tl_bump *b, const void *from, size_t n, bool *ok)
{
    void *to = from == NULL ? NULL : tl_bump_get(b, n + 1);
    *ok &= (to == NULL) == (from == NULL);
    return to == NULL || n == 0 ? to : memcpy(to, from, n);
}

/* Copies everything that o points to, except ctx, into b. */
static tl_status copy_options(tl_replacement *o, tl_bump *b, tl_err *err)
{
    const size_t n_in = (size_t)o->n_in, n_scalars = (size_t)o->n_scalars;
    bool ok = true;
    tl_pattern_arg *arg = copied(b, o->example_inputs, n_in * sizeof *arg, &ok);
    tl_pattern_scalar *s = copied(b, o->scalars, n_scalars * sizeof *s, &ok);
    o->name = copied(b, o->name, strlen(o->name), &ok);
    o->form_shapes = copied(b, o->form_shapes, (size_t)o->forms * n_in * sizeof *o->form_shapes,
                            &ok);
    for (size_t i = 0; ok && i < n_in; i++) {
        if (arg == NULL || arg[i].name == NULL || tl_dtype_size(arg[i].dtype) == 0)
            return tl_fail(err, TL_EUSAGE, "argument %zu has no name or no dtype", i);
        arg[i].name = copied(b, arg[i].name, strlen(arg[i].name), &ok);
    }
    for (size_t i = 0; ok && i < n_scalars; i++) {
        if (s == NULL || s[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %zu has no name", i);
        s[i].name = copied(b, s[i].name, strlen(s[i].name), &ok);
    }
    o->example_inputs = arg;
    o->scalars = s;
    return ok ? TL_OK : tl_fail(err, TL_ENOMEM, "no memory to copy it");
}

static void free_rules(tl_rule *r)
{
    tl_bump_free(&r->bump);
    tl_free_raw(r);
}

tl_rule *tl_rules_make(tl_replacement o, bool shipped, tl_err *err)
{
    if (check_options(&o, err) != TL_OK)
        return NULL;
    o.forms = o.forms > 1 ? o.forms : 1;
    tl_rule *r = tl_calloc(1, (size_t)o.forms * sizeof *r);
    if (r == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a replacement"), NULL;
    tl_tape *t = tl_rule_tape(err);
    tl_rule_call c;
    if (t != NULL)
        copy_options(&o, &r->bump, err);
    for (int i = 0; i < o.forms && err->status == TL_OK; i++) {
        r[i].o = o;
        r[i].form = i;
        r[i].shipped = shipped;
        atomic_store(&r[i].on, true);
        if (tl_rule_example(&r[i], NULL, &c, err) == TL_OK)
            r[i].pattern = tl_rule_trace(&c, true, t, &r->bump, err);
    }
    tl_rule_tape_end(t);
    if (err->status == TL_OK)
        return r;
    free_rules(r);
    return NULL;
}

/* ---- the table ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *table; /* first forms: the user's as they were registered, then the library's */
static int n_shipped;  /* how many of the library's have been added */

/* The first n characters at `text` are that name. */
static bool is(const char *name, const char *text, size_t n)
{
    return strlen(name) == n && memcmp(name, text, n) == 0;
}

/* The first form of the replacement of that name; NULL: there is none. */
static tl_rule *find(const char *name, size_t n)
{
    tl_rule *r = table;
    while (r != NULL && !is(r->o.name, name, n))
        r = r->next;
    return r;
}

/* Another rule of the table with the pattern, trace and extra_check of x; NULL if there is none. */
static const tl_rule *like(const tl_rule *x)
{
    for (const tl_rule *r = table; r != NULL; r = r->next)
        for (int i = 0; i < r->o.forms && r + i != x; i++)
            if (!r[i].duplicate && r->o.extra_check == x->o.extra_check &&
                r->o.trace == x->o.trace && tl_pattern_same(r[i].pattern, x->pattern))
                return r;
    return NULL;
}

/* Adds r. Frees it instead if there is an error, or if all its forms are there already. */
static void insert(tl_rule *r, tl_err *err)
{
    const bool taken = find(r->o.name, strlen(r->o.name)) != NULL;
    int fresh = 0;
    tl_rule **at = &table;
    while (*at != NULL && (r->shipped || !(*at)->shipped))
        at = &(*at)->next;
    r->next = *at;
    *at = r;
    for (int i = 0; i < r->o.forms; i++) {
        const tl_rule *other = like(&r[i]);
        r[i].duplicate = other != NULL;
        fresh += other == NULL;
        if (other != NULL && !r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                    other->o.name);
    }
    if (fresh > 0 && taken)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (fresh == 0 || err->status != TL_OK) {
        *at = r->next;
        free_rules(r);
    }
}

/* Takes the lock, and adds the library's own. If memory runs out, the next call goes on. */
static tl_status enter(tl_err *err)
{
    pthread_mutex_lock(&lock);
    for (; tl_shipped_replacements[n_shipped] != NULL; n_shipped++) {
        tl_err e = {.status = TL_OK};
        tl_rule *r = tl_rules_make(*tl_shipped_replacements[n_shipped], true, &e);
        if (r != NULL)
            insert(r, &e);
        if (e.status == TL_ENOMEM)
            return tl_fail(err, e.status, "%s", e.message);
    }
    return TL_OK;
}

void tl_rules_add(tl_rule *r, tl_err *err)
{
    enter(err);
    insert(r, err);
    pthread_mutex_unlock(&lock);
}

tl_rule *tl_rule_find(const char *name, int form, tl_err *err)
{
    enter(NULL);
    tl_rule *r = name == NULL ? NULL : find(name, strlen(name));
    pthread_mutex_unlock(&lock);
    if (r != NULL && form >= 0 && form < r->o.forms)
        return &r[form];
    tl_fail(err, TL_ENAME, "no replacement is named '%s' and has a form %d",
            name == NULL ? "NULL" : name, form);
    return NULL;
}

bool tl_replacement_enable(const char *name, bool on)
{
    tl_rule *r = tl_rule_find(name, 0, NULL);
    if (r != NULL)
        atomic_store(&r->on, on);
    return r != NULL;
}

const char *tl_replacement_at(int i)
{
    enter(NULL);
    const tl_rule *r = i < 0 ? NULL : table;
    while (r != NULL && i-- > 0)
        r = r->next;
    pthread_mutex_unlock(&lock);
    return r == NULL ? NULL : r->o.name;
}

/* Removes the rules in `names` from the list: names with commas, or "all". `where` says where the
 * names come from; TL_ENAME if no replacement has one of them. */
static void leave_out(const char *where, const char *names, const tl_rule **list, int *n,
                      tl_err *err)
{
    char there[320] = "all";
    size_t len, used = strlen(there);
    for (; names != NULL && *names != 0; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        const bool all = is("all", names, len);
        int kept = 0;
        for (int i = 0; i < *n; i++)
            if (!all && !is(list[i]->o.name, names, len))
                list[kept++] = list[i];
        *n = kept;
        if (all || find(names, len) != NULL)
            continue;
        for (int others = 0; others < 2; others++) /* first those that begin as it does */
            for (const tl_rule *r = table; r != NULL && used < sizeof there; r = r->next)
                if ((r->o.name[0] != names[0]) == others)
                    used += (size_t)snprintf(there + used, sizeof there - used, ", %s", r->o.name);
        tl_fail(err, TL_ENAME, "%s: there is no replacement '%.*s'; there are: %s%s", where,
                len < 60 ? (int)len : 60, names, there, used < sizeof there ? "" : "...");
    }
}

tl_status tl_rules_on(tl_graph *g, bool joint, const tl_rule ***list, int *n)
{
    tl_err *err = &g->head.err;
    size_t all = 0;
    *n = 0;
    enter(err);
    for (const tl_rule *r = table; r != NULL; r = r->next)
        all += (size_t)r->o.forms;
    *list = tl_graph_room(g, all, sizeof **list);
    for (const tl_rule *r = *list == NULL ? NULL : table; r != NULL; r = r->next)
        for (int i = 0; i < r->o.forms; i++)
            if (atomic_load(&r->on) && !r[i].duplicate && (r->o.trace == TL_TRACE_JOINT) == joint)
                (*list)[(*n)++] = &r[i];
    leave_out("TL_WITHOUT in the environment", getenv("TL_WITHOUT"), *list, n, err);
    leave_out("the graph's option .without", g->opt.without, *list, n, err);
    pthread_mutex_unlock(&lock);
    return err->status;
}
