/* rule.c: replacements - their programs called and traced, what is asked of one when it is
 * registered, and the table of them. There is one for the process; rules in it never change and
 * never go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- seed(y, c, ...) -> a number whose gradient by each y is its c ---- */

static tl_status seed_shape(tl_call *c)
{
    c->out[0] = tl_array_make(TL_F32, &TL_SCALAR, NULL);
    return TL_OK;
}

static tl_status seed_forward(tl_call *c)
{
    *(float *)c->out[0].data = 0;
    return TL_OK;
}

static void seed_vjp(tl_vjp *g)
{
    for (int i = 0; i < g->n_in; i += 2)
        g->dx[i] = g->in[i + 1];
}

static const tl_op seed_op = {.name = "seed",
                              .n_in = -1,
                              .n_out = 1,
                              .shape = seed_shape,
                              .forward = seed_forward,
                              .vjp = seed_vjp,
                              .saves_in = ~0u};

/* ---- search or replace, with gradients or without ---- */

bool tl_rule_grad(const tl_rule *r, int i)
{
    return !r->o.example_inputs[i].no_grad && tl_dtype_is_float(r->o.example_inputs[i].dtype);
}

/* The gradients of the seeded outputs together, by each argument that takes one. */
static void add_gradients(tl_rule_call *c, tl_tape *t, tl_rule_leaf *leaf, void *ctx)
{
    tl_tensor x[TL_PATTERN_ARGS], in[2 * TL_PATTERN_OUTS];
    const int n_in = c->rule->o.n_in;
    int n_x = 0, n = 0;
    for (int i = 0; i < c->n_out; i++) {
        const tl_value *v = tl_peek(t, c->out[i]);
        const tl_array *like = &c->array[n_in + i];
        if (!(c->seeded & TL_BIT(i)) || v == NULL || !v->needs_grad)
            continue;
        const tl_shape s = tl_array_shape(&v->a);
        const tl_array a = tl_array_make(v->a.dtype, &s, NULL);
        if (!tl_array_same_shape(like, &a) || like->dtype != a.dtype)
            like = &a;
        in[n++] = c->out[i];
        in[n++] = c->arg[n_in + i] = leaf(ctx, t, like, n_in + i);
    }
    for (int i = 0; i < n_in; i++)
        if (c->grad[i])
            x[n_x++] = c->arg[i];
    if (n == 0 || n_x == 0)
        return;
    c->seed = tl_apply1(TL_AT(t), &seed_op, NULL, in, n);
    tl_gradients(t, c->seed, x, n_x, TL_NONE, c->out + c->n_out);
    c->n_out += n_x;
}

void tl_rule_run(tl_rule_call *c, bool search, tl_tape *t, tl_rule_leaf *leaf, void *ctx)
{
    const tl_replacement *o = &c->rule->o;
    tl_pattern_values v = {c->scalar, o->ctx, c->rule->form};
    memset(c->arg, 0, sizeof c->arg);
    memset(c->out, 0, sizeof c->out);
    c->seed = TL_NONE;
    c->n_out = o->n_out;
    for (int i = 0; i < o->n_in; i++)
        c->arg[i] = leaf(ctx, t, &c->array[i], i);
    if (search && o->search_pattern != NULL)
        tl_pattern_run(TL_AT(t), o->search_pattern, c->arg, c->out);
    else
        (search ? o->search : o->replace)(t, c->arg, o->n_in, c->out, o->n_out, &v);
    if (c->seeded != 0 && !tl_failed(t))
        add_gradients(c, t, leaf, ctx);
}

tl_tape *tl_rule_tape(void)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tracing *s = t == NULL ? NULL : tl_tracing_new(t->arena);
    if (s != NULL && tl_trace_on(t, s))
        return t;
    tl_object_end(t);
    tl_tracing_free(s);
    return NULL;
}

void tl_rule_tape_end(tl_tape *t)
{
    tl_tracing *s = t == NULL ? NULL : tl_tracing_of(t);
    tl_object_end(t);
    tl_tracing_free(s);
}

static tl_tensor trace_leaf(void *ctx, tl_tape *t, const tl_array *a, int i)
{
    const tl_rule_call *c = ctx;
    tl_tensor x = tl_trace_leaf(t, a, (tl_leaf){TL_LEAF_INPUT, (uint32_t)i, 0});
    if (!tl_is_none(x))
        tl_peek(t, x)->needs_grad = i < c->rule->o.n_in && c->grad[i];
    return x;
}

/* What may not be in a program: it is not called when a graph runs, and never twice. */
static tl_status check_program(const tl_tape *t, tl_err *err)
{
    if (tl_tracing_of(t)->n_hook + tl_tracing_of(t)->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "calls tl_host or tl_watch");
    for (const tl_node *n = t->node; n < t->node + t->n_nodes; n++)
        if (n->phase == 0 && (n->op->traits & TL_RANDOM || tl_node_mutates(n)))
            return tl_fail(err, TL_EUSAGE, "calls %s, which %s", n->op->name,
                           n->op->traits & TL_RANDOM ? "draws random numbers"
                                                     : "changes its operand in place");
    return TL_OK;
}

tl_pattern *tl_rule_trace(tl_rule_call *c, bool search, tl_tape *t, tl_bump *mem, tl_err *err)
{
    tl_err e = {.status = TL_OK};
    tl_pattern *p = NULL;
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_tracing_of(t)->n_hook = tl_tracing_of(t)->n_watch = 0;
    tl_rule_run(c, search, t, trace_leaf, c);
    if (tl_failed(t))
        tl_fail(&e, tl_error_status(t), "cannot be traced here: %.400s", tl_error(t));
    else if (check_program(t, &e) == TL_OK)
        p = tl_pattern_of_call(mem, t, c, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s %.430s", search ? "search" : "replacement", e.message);
    return p;
}

/* ---- a rule ---- */

bool tl_rule_claims(const tl_rule *r, tl_dtype d, bool gradients)
{
    return !(r->o.rounding_forms >> r->form & 1) &&
           (r->o.exact | (gradients ? 0 : r->o.exact_forward)) & TL_BIT(d);
}

tl_status tl_rule_example(const tl_rule *r, bool seeded, tl_rule_call *c, tl_err *err)
{
    const tl_pattern_arg *arg = r->o.example_inputs;
    *c = (tl_rule_call){.rule = r, .seeded = seeded ? TL_BIT(r->o.n_out) - 1 : 0};
    for (int i = 0; i < r->o.n_in; i++) {
        const tl_shape shape = r->o.form_shapes == NULL ? arg[i].shape
                                                        : r->o.form_shapes[r->form * r->o.n_in + i];
        TL_TRY(tl_shape_check(&shape, arg[i].dtype, err));
        c->array[i] = tl_array_make(arg[i].dtype, &shape, NULL);
        c->grad[i] = tl_rule_grad(r, i);
    }
    for (int i = 0; i < r->o.n_scalars; i++)
        c->scalar[i] = r->o.scalars[i].value;
    return TL_OK;
}

static tl_status check_options(const tl_replacement *o, tl_err *err)
{
    const tl_pattern *q = o->search_pattern;
    const bool joint = o->trace == TL_TRACE_JOINT;
    const struct {
        const char *what;
        int is, least, most;
    } range[] = {{"arguments", o->n_in, 1, TL_PATTERN_ARGS - (joint ? o->n_out : 0)},
                 {"outputs", o->n_out, 1, TL_PATTERN_OUTS},
                 {"scalars", o->n_scalars, 0, TL_PATTERN_SCALARS},
                 {"as a kind of trace", (int)o->trace, TL_TRACE_FORWARD, TL_TRACE_JOINT},
                 {"forms", o->forms, 0, q == NULL ? TL_PATTERN_FORMS : 1},
                 {"arguments of its search_pattern", q == NULL ? 0 : q->n_args, 0, o->n_in},
                 {"outputs of its search_pattern", q == NULL ? o->n_out : q->n_out, o->n_out,
                  o->n_out}};
    if (o->name == NULL || o->name[0] == 0 || strchr(o->name, ',') != NULL)
        return tl_fail(err, TL_ENAME, "it needs a name, without a comma");
    if ((o->search == NULL && q == NULL) || o->replace == NULL)
        return tl_fail(err, TL_EUSAGE, "a search (or search_pattern) and a replace are needed");
    if (joint && (o->n_out > TL_PATTERN_JOINT_OUTS || q != NULL))
        return tl_fail(err, TL_EUSAGE,
                       "a joint replacement is traced, not given as a pattern; at most %d outputs",
                       TL_PATTERN_JOINT_OUTS);
    if (q != NULL && q->err.status != TL_OK)
        return tl_fail(err, q->err.status, "its search_pattern %s", q->err.message);
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (range[i].is < range[i].least || range[i].is > range[i].most)
            return tl_fail(err, TL_EUSAGE, "%d %s; %d to %d are possible", range[i].is,
                           range[i].what, range[i].least, range[i].most);
    return TL_OK;
}

static const void *copied(tl_bump *b, const void *from, size_t n, bool *ok)
{
    void *to = from == NULL ? NULL : tl_bump_get(b, n + 1);
    *ok &= (to == NULL) == (from == NULL);
    return to == NULL || n == 0 ? to : memcpy(to, from, n);
}

/* Everything o points to, but for ctx, into b. */
static tl_status copy_options(tl_replacement *o, tl_bump *b, tl_err *err)
{
    const size_t n_in = (size_t)o->n_in, n_scalars = (size_t)o->n_scalars;
    tl_pattern_arg arg[TL_PATTERN_ARGS];
    tl_pattern_scalar s[TL_PATTERN_SCALARS];
    bool ok = true;
    for (size_t i = 0; i < n_in; i++) {
        if (o->example_inputs == NULL || o->example_inputs[i].name == NULL ||
            tl_dtype_size(o->example_inputs[i].dtype) == 0)
            return tl_fail(err, TL_EUSAGE, "argument %zu has no name or no dtype", i);
        arg[i] = o->example_inputs[i];
        arg[i].name = copied(b, arg[i].name, strlen(arg[i].name), &ok);
    }
    for (size_t i = 0; i < n_scalars; i++) {
        if (o->scalars == NULL || o->scalars[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %zu has no name", i);
        s[i] = o->scalars[i];
        s[i].name = copied(b, s[i].name, strlen(s[i].name), &ok);
    }
    o->name = copied(b, o->name, strlen(o->name), &ok);
    o->example_inputs = copied(b, arg, n_in * sizeof *arg, &ok);
    o->scalars = copied(b, s, n_scalars * sizeof *s, &ok);
    o->form_shapes = copied(b, o->form_shapes, (size_t)o->forms * n_in * sizeof *o->form_shapes,
                            &ok);
    return ok ? TL_OK : tl_fail(err, TL_ENOMEM, "no memory to copy it");
}

static void free_rule(tl_rule *r)
{
    if (r != NULL)
        tl_bump_free(&r->bump);
    tl_free_raw(r);
}

/* o as a rule, all its forms checked; NULL with *err. */
static tl_rule *make_rule(tl_replacement o, bool ours, tl_err *err)
{
    if (check_options(&o, err) != TL_OK)
        return NULL;
    o.forms = o.forms > 1 ? o.forms : 1;
    tl_rule *r = tl_calloc(1, (size_t)o.forms * sizeof *r);
    tl_tape *t = tl_rule_tape();
    tl_rule_call c;
    if (r == NULL || t == NULL)
        tl_fail(err, TL_ENOMEM, "no memory for a replacement");
    else
        copy_options(&o, &r->bump, err);
    for (tl_rule *f = r; err->status == TL_OK && f < r + o.forms; f++) {
        f->o = o;
        f->form = (int)(f - r);
        f->shipped = ours;
        atomic_store(&f->on, true);
        if (tl_rule_example(f, false, &c, err) == TL_OK)
            f->pattern = tl_rule_trace(&c, true, t, &r->bump, err);
        if (o.search_pattern != NULL)
            f->pattern = o.search_pattern;
        if (err->status == TL_OK && !ours) /* the suite verifies ours */
            tl_rule_verify(f, 1, 8, err);
    }
    tl_rule_tape_end(t);
    if (err->status == TL_OK)
        return r;
    free_rule(r);
    return NULL;
}

/* ---- the table ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_rule *table; /* of those added in their order, then ours in theirs */
static int n_shipped;  /* of ours have been looked at */

/* The n characters there are that name. */
static bool is(const char *name, const char *there, size_t n)
{
    return strlen(name) == n && memcmp(name, there, n) == 0;
}

/* The first form of that name. */
static tl_rule *find(const char *name, size_t n)
{
    tl_rule *r = table;
    while (r != NULL && !is(r->o.name, name, n))
        r = r->next;
    return r;
}

static const tl_rule *find_like(const tl_rule *list, const tl_rule *r)
{
    while (list != NULL &&
           (list->o.extra_check != r->o.extra_check || list->o.trace != r->o.trace ||
            !tl_pattern_same(list->pattern, r->pattern)))
        list = list->next;
    return list;
}

/* r goes into the table, but for forms that are there; or, with an error, nowhere. */
static void insert(tl_rule *r, tl_err *err)
{
    tl_rule *fresh = NULL, **end = &fresh, **at = &table;
    for (int i = 0; i < r->o.forms; i++) {
        const tl_rule *like = find_like(table, &r[i]);
        like = like != NULL ? like : find_like(fresh, &r[i]);
        if (like == NULL) {
            *end = &r[i];
            end = &r[i].next;
        } else if (!r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                    like->o.name);
        else if (like->o.search_pattern != r->o.search_pattern)
            tl_pattern_free(r->o.search_pattern); /* the table would have kept it */
    }
    if (fresh != NULL && find(r->o.name, strlen(r->o.name)) != NULL)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (fresh == NULL || err->status != TL_OK) {
        free_rule(r);
        return;
    }
    while (*at != NULL && (r->shipped || !(*at)->shipped))
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
        tl_rule *r = make_rule(*tl_shipped_replacements[n_shipped], true, &e);
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
    tl_rule *r = make_rule(o, false, &e);
    if (r != NULL) {
        if (enter(&e) == TL_OK)
            insert(r, &e);
        else
            free_rule(r);
        leave();
    }
    if (e.status != TL_OK)
        tl_fail(err, e.status, "tl_register_replacement: '%s': %.440s",
                o.name != NULL ? o.name : "", e.message);
    return e.status;
}

tl_rule *tl_rule_find(const char *name, int form, tl_err *err)
{
    enter(NULL);
    tl_rule *r = name == NULL ? NULL : find(name, strlen(name));
    leave();
    if (r != NULL && form >= 0 && form < r->o.forms)
        return r - r->form + form;
    tl_fail(err, TL_ENAME, "no replacement is named '%s' and has a form %d",
            name == NULL ? "NULL" : name, form);
    return NULL;
}

bool tl_replacement_enable(const char *name, bool on)
{
    tl_rule *r = tl_rule_find(name, 0, NULL);
    for (int i = 0; r != NULL && i < r->o.forms; i++)
        atomic_store(&r[i].on, on);
    return r != NULL;
}

static const char *name_at(int i)
{
    const tl_rule *r = i < 0 ? NULL : table;
    for (const char *was = NULL; r != NULL; was = r->o.name, r = r->next)
        if (r->o.name != was && i-- == 0)
            return r->o.name;
    return NULL;
}

const char *tl_replacement_at(int i)
{
    enter(NULL);
    const char *name = name_at(i);
    leave();
    return name;
}

/* ---- which are on ---- */

/* Those of n rules that the names with commas mean - "all": each - leave the list. */
static void leave_out(const char *where, const char *names, const tl_rule **list, size_t n,
                      tl_err *err)
{
    char there[320] = "all";
    const char *known;
    size_t len, used = strlen(there);
    for (; names != NULL && *names != 0; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        const bool all = is("all", names, len);
        for (size_t i = 0; i < n; i++)
            if (list[i] != NULL && (all || is(list[i]->o.name, names, len)))
                list[i] = NULL;
        if (all || find(names, len) != NULL)
            continue;
        for (int others = 0; others < 2; others++) /* first those that begin as it does */
            for (int i = 0; (known = name_at(i)) != NULL && used < sizeof there; i++)
                if ((known[0] != names[0]) == others)
                    used += (size_t)snprintf(there + used, sizeof there - used, ", %s", known);
        tl_fail(err, TL_ENAME, "%s: there is no replacement '%.*s'; there are: %s%s", where,
                len < 60 ? (int)len : 60, names, there, used < sizeof there ? "" : "...");
    }
}

tl_status tl_rules_on(tl_graph *g, bool joint, const tl_rule ***list, int *n)
{
    tl_err *err = &g->head.err;
    size_t all = 0;
    enter(err);
    for (const tl_rule *r = table; r != NULL; r = r->next)
        all++;
    const tl_rule **on = *list = tl_bump_get(&g->bump, (all + 1) * sizeof **list);
    if (on == NULL)
        tl_fail(err, TL_ENOMEM, "no memory for a list of %zu replacements", all);
    for (const tl_rule *r = table; on != NULL && r != NULL; r = r->next)
        if (atomic_load(&r->on) && (r->o.trace == TL_TRACE_JOINT) == joint)
            *on++ = r;
    all = on == NULL ? 0 : (size_t)(on - *list);
    leave_out("TL_WITHOUT in the environment", getenv("TL_WITHOUT"), *list, all, err);
    leave_out("the graph's option .without", g->opt.without, *list, all, err);
    leave();
    *n = 0;
    for (size_t i = 0; i < all; i++)
        if ((*list)[i] != NULL)
            (*list)[(*n)++] = (*list)[i];
    return err->status;
}
