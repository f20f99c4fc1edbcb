/* rule.c: replacements - their programs called and traced, what is asked of one when it is
 * registered, and the table of them. There is one for the process; rules in it never change and
 * never go, so that a graph can use them without the lock. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "autograd/replace/internal.h"

/* ---- seed(y..., c...) -> a number whose gradient by y[i] is c[i] ---- */

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
    for (int i = 0; i < g->n_in / 2; i++)
        g->dx[i] = g->in[g->n_in / 2 + i];
}

static const tl_op seed_op = {.name = "seed",
                              .n_in = -1,
                              .n_out = 1,
                              .shape = seed_shape,
                              .forward = seed_forward,
                              .vjp = seed_vjp,
                              .saves_in = ~0u};

/* ---- search or replace, with gradients or without ---- */

/* The gradients of the seeded outputs together, by each argument that takes one. */
static void add_gradients(const tl_replacement *o, tl_tape *t, const tl_rule_at *w,
                          tl_rule_leaf *leaf, void *ctx, tl_rule_run *r)
{
    tl_tensor x[TL_PATTERN_ARGS], in[2 * TL_PATTERN_OUTS], c[TL_PATTERN_OUTS];
    int n_x = 0, n = 0;
    for (int i = 0; i < o->n_out; i++) {
        const tl_value *v = tl_is_none(r->out[i]) ? NULL : tl_peek(t, r->out[i]);
        if (!(w->seeded & TL_BIT(i)) || v == NULL || !v->needs_grad)
            continue;
        const tl_shape s = tl_array_shape(&v->a);
        const tl_array a = tl_array_make(v->a.dtype, &s, NULL), *like = &w->array[o->n_in + i];
        if (!tl_array_same_shape(like, &a) || like->dtype != a.dtype)
            like = &a;
        in[n] = r->out[i];
        c[n++] = r->arg[o->n_in + i] = leaf(ctx, t, like, o->n_in + i);
    }
    for (int i = 0; i < o->n_in; i++)
        if (w->grad[i])
            x[n_x++] = r->arg[i];
    if (n == 0 || n_x == 0)
        return;
    memcpy(in + n, c, (size_t)n * sizeof *c);
    r->seed = tl_apply1(TL_AT(t), &seed_op, NULL, in, 2 * n);
    tl_gradients(t, r->seed, x, n_x, TL_NONE, r->out + o->n_out);
    r->n_out += n_x;
}

void tl_rule_call(const tl_form *f, bool search, tl_tape *t, const tl_rule_at *w,
                  tl_rule_leaf *leaf, void *ctx, tl_rule_run *r)
{
    const tl_replacement *o = &f->rule->o;
    tl_pattern_values v = {w->scalar, o->ctx, f->at};
    *r = (tl_rule_run){.n_out = o->n_out};
    for (int i = 0; i < o->n_in; i++)
        r->arg[i] = leaf(ctx, t, &w->array[i], i);
    if (search && o->search_pattern != NULL)
        tl_pattern_run(TL_AT(t), o->search_pattern, r->arg, r->out);
    else
        (search ? o->search : o->replace)(t, r->arg, o->n_in, r->out, o->n_out, &v);
    r->n_nodes = t->n_nodes;
    if (w->seeded != 0 && !tl_failed(t))
        add_gradients(o, t, w, leaf, ctx, r);
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
    const tl_rule_at *w = ctx;
    tl_tensor x = tl_trace_leaf(t, a, (tl_leaf){TL_LEAF_INPUT, (uint32_t)i, 0});
    if (!tl_is_none(x))
        tl_peek(t, x)->needs_grad = i < TL_PATTERN_ARGS && w->grad[i];
    return x;
}

/* What may not be in a program: it is not called when a graph runs, and never twice. */
static tl_status check_program(const tl_tape *t, uint32_t n_nodes, const char *who, tl_err *err)
{
    if (tl_tracing_of(t)->n_hook + tl_tracing_of(t)->n_watch > 0)
        return tl_fail(err, TL_EUSAGE, "its %s calls tl_host or tl_watch", who);
    for (const tl_node *n = t->node; n < t->node + n_nodes; n++)
        if (n->op->traits & TL_RANDOM || tl_node_mutates(n))
            return tl_fail(err, TL_EUSAGE, "its %s calls %s, which %s", who, n->op->name,
                           n->op->traits & TL_RANDOM ? "draws random numbers"
                                                     : "changes its operand in place");
    return TL_OK;
}

tl_pattern *tl_rule_trace(const tl_form *f, bool search, tl_tape *t, tl_bump *mem, tl_rule_at *w,
                          tl_rule_run *run, tl_err *err)
{
    const tl_replacement *o = &f->rule->o;
    const char *who = search ? "search" : "replacement";
    tl_rule_run r;
    tl_err e = {.status = TL_OK};
    tl_error_clear(t);
    tl_tape_reset(t);
    tl_tracing_of(t)->n_hook = tl_tracing_of(t)->n_watch = 0;
    tl_rule_call(f, search, t, w, trace_leaf, w, &r);
    if (tl_failed(t))
        return tl_fail(err, t->head.err.status, "its %s cannot be traced here: %.400s", who,
                       tl_error(t)),
               NULL;
    if (check_program(t, r.n_nodes, who, err) != TL_OK)
        return NULL;
    tl_pattern *p = tl_pattern_of_tape(mem, t, &r, o->scalars, search ? o->n_scalars : 0, &e);
    if (p == NULL)
        tl_fail(err, e.status, "its %s: %.400s", who, e.message);
    if (run != NULL)
        *run = r;
    return p;
}

/* ---- a rule ---- */

bool tl_rule_grad(const tl_rule *r, int i)
{
    return i < r->o.n_in && !r->o.example_inputs[i].no_grad &&
           tl_dtype_is_float(r->o.example_inputs[i].dtype);
}

bool tl_form_claims(const tl_form *f, tl_dtype d, bool gradients)
{
    const tl_replacement *o = &f->rule->o;
    return !(o->rounding_forms >> f->at & 1) &&
           (o->exact | (gradients ? 0 : o->exact_forward)) & TL_BIT(d);
}

tl_status tl_form_example(const tl_form *f, tl_rule_at *w, tl_err *err)
{
    const tl_replacement *o = &f->rule->o;
    *w = (tl_rule_at){.seeded = 0};
    for (int i = 0; i < o->n_in; i++) {
        const tl_shape shape = o->form_shapes == NULL ? o->example_inputs[i].shape
                                                      : o->form_shapes[f->at * o->n_in + i];
        TL_TRY(tl_shape_check(&shape, o->example_inputs[i].dtype, err));
        w->array[i] = tl_array_make(o->example_inputs[i].dtype, &shape, NULL);
        w->grad[i] = tl_rule_grad(f->rule, i);
    }
    for (int i = 0; i < o->n_scalars; i++)
        w->scalar[i] = o->scalars[i].value;
    return TL_OK;
}

static tl_status make_form(tl_rule *r, int at, tl_tape *t, tl_err *err)
{
    tl_form *f = &r->form[at];
    tl_rule_at w;
    *f = (tl_form){.rule = r, .at = at};
    TL_TRY(tl_form_example(f, &w, err));
    f->pattern = tl_rule_trace(f, true, t, &r->bump, &w, NULL, err);
    TL_TRY(err->status);
    if (r->o.search_pattern != NULL)
        f->pattern = r->o.search_pattern;
    return r->shipped ? TL_OK : tl_form_verify(f, 1, 8, err); /* the suite verifies ours */
}

static void *copied(tl_bump *b, const void *from, size_t n, bool *ok)
{
    void *to = tl_bump_get(b, n + 1);
    *ok &= to != NULL;
    return to == NULL || n == 0 ? to : memcpy(to, from, n);
}

/* Everything o points to, but for ctx, into r's own memory. */
static bool copy_options(tl_rule *r)
{
    tl_replacement *o = &r->o;
    tl_bump *b = &r->bump;
    const size_t n_in = (size_t)o->n_in, n_shapes = (size_t)r->n_forms * n_in;
    bool ok = (r->form = tl_bump_get(b, (size_t)r->n_forms * sizeof *r->form)) != NULL;
    tl_pattern_arg *arg = copied(b, o->example_inputs, n_in * sizeof *arg, &ok);
    tl_pattern_scalar *s = copied(b, o->scalars, (size_t)o->n_scalars * sizeof *s, &ok);
    o->name = copied(b, o->name, strlen(o->name), &ok);
    if (o->form_shapes != NULL)
        o->form_shapes = copied(b, o->form_shapes, n_shapes * sizeof *o->form_shapes, &ok);
    for (int i = 0; ok && i < o->n_in; i++)
        arg[i].name = copied(b, arg[i].name, strlen(arg[i].name), &ok);
    for (int i = 0; ok && i < o->n_scalars; i++)
        s[i].name = copied(b, s[i].name, strlen(s[i].name), &ok);
    o->example_inputs = arg;
    o->scalars = s;
    return ok;
}

static tl_status check_options(const tl_replacement *o, tl_err *err)
{
    const tl_pattern *q = o->search_pattern;
    const int seeds = o->trace == TL_TRACE_JOINT ? o->n_out : 0;
    const struct {
        const char *what;
        int is, least, most;
    } range[] = {{"arguments", o->n_in, 1, TL_PATTERN_ARGS - seeds},
                 {"outputs", o->n_out, 1, TL_PATTERN_OUTS},
                 {"scalars", o->n_scalars, 0, TL_PATTERN_SCALARS},
                 {q == NULL ? "forms" : "forms of a search_pattern", o->forms, 0,
                  q == NULL ? TL_PATTERN_FORMS : 1}};
    if (o->name == NULL || o->name[0] == 0 || strchr(o->name, ',') != NULL)
        return tl_fail(err, TL_ENAME, "it needs a name, without a comma");
    if ((o->search == NULL && q == NULL) || o->replace == NULL)
        return tl_fail(err, TL_EUSAGE, "a search (or search_pattern) and a replace are needed");
    if (o->trace != TL_TRACE_FORWARD && o->trace != TL_TRACE_JOINT)
        return tl_fail(err, TL_EUSAGE, "%d is no kind of trace", (int)o->trace);
    if (seeds > 0 && (seeds > TL_PATTERN_JOINT_OUTS || q != NULL))
        return tl_fail(
            err, TL_EUSAGE,
            "a joint replacement is traced, not given as a pattern, and has at most %d outputs",
            TL_PATTERN_JOINT_OUTS);
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if (range[i].is < range[i].least || range[i].is > range[i].most)
            return tl_fail(err, TL_EUSAGE, "%d %s; %d to %d are possible", range[i].is,
                           range[i].what, range[i].least, range[i].most);
    if (q != NULL && q->err.status != TL_OK)
        return tl_fail(err, q->err.status, "%s", q->err.message);
    if (q != NULL && (q->n_out != o->n_out || q->n_args > o->n_in))
        return tl_fail(err, TL_EUSAGE,
                       "its search has %d arguments and %d outputs; %d and %d are given", q->n_args,
                       q->n_out, o->n_in, o->n_out);
    for (int i = 0; i < o->n_in; i++)
        if (o->example_inputs == NULL || o->example_inputs[i].name == NULL ||
            tl_dtype_size(o->example_inputs[i].dtype) == 0)
            return tl_fail(err, TL_EUSAGE, "argument %d has no name or no dtype", i);
    for (int i = 0; i < o->n_scalars; i++)
        if (o->scalars == NULL || o->scalars[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %d has no name", i);
    return TL_OK;
}

static void free_rule(tl_rule *r)
{
    if (r != NULL)
        tl_bump_free(&r->bump);
    tl_free_raw(r);
}

/* o as a rule, all its forms checked; NULL with *err. */
static tl_rule *make_rule(const tl_replacement *o, bool ours, tl_err *err)
{
    if (check_options(o, err) != TL_OK)
        return NULL;
    tl_rule *r = tl_calloc(1, sizeof *r);
    tl_tape *t = tl_rule_tape();
    if (r != NULL) {
        r->o = *o;
        r->n_forms = o->forms > 1 ? o->forms : 1;
        r->shipped = ours;
        atomic_store(&r->on, true);
    }
    if (r == NULL || t == NULL || !copy_options(r))
        tl_fail(err, TL_ENOMEM, "no memory for a replacement");
    for (int i = 0; err->status == TL_OK && i < r->n_forms; i++)
        make_form(r, i, t, err);
    tl_rule_tape_end(t);
    if (err->status == TL_OK)
        return r;
    free_rule(r);
    return NULL;
}

/* ---- the table ---- */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static tl_form *table; /* of those added in their order, then ours in theirs */
static int n_shipped;  /* of ours have been looked at */

/* The first form of the name that is n characters long. */
static const tl_form *find(const char *name, size_t n)
{
    const tl_form *f = table;
    while (f != NULL && (strlen(f->rule->o.name) != n || memcmp(f->rule->o.name, name, n) != 0))
        f = f->next;
    return f;
}

static const tl_form *find_like(const tl_form *list, const tl_form *f)
{
    while (list != NULL &&
           (list->rule->o.extra_check != f->rule->o.extra_check ||
            list->rule->o.trace != f->rule->o.trace || !tl_pattern_same(list->pattern, f->pattern)))
        list = list->next;
    return list;
}

/* r goes into the table, but for forms that are there; or, with an error, nowhere. */
static void insert(tl_rule *r, tl_err *err)
{
    tl_form *fresh = NULL, **end = &fresh, **at = &table;
    bool kept = false; /* the pattern, by a rule of before: the same one, given again */
    for (int i = 0; i < r->n_forms; i++) {
        const tl_form *like = find_like(table, &r->form[i]);
        if (like == NULL && (like = find_like(fresh, &r->form[i])) == NULL) {
            *end = &r->form[i];
            end = &r->form[i].next;
        } else if (!r->o.skip_duplicates)
            tl_fail(err, TL_EUSAGE, "'%s' searches for the same pattern under the same extra_check",
                    like->rule->o.name);
        kept |= like != NULL && like->rule != r &&
                like->rule->o.search_pattern == r->o.search_pattern;
    }
    if (fresh != NULL && find(r->o.name, strlen(r->o.name)) != NULL)
        tl_fail(err, TL_ENAME, "the name is taken");
    if (fresh == NULL && r->o.skip_duplicates && !kept)
        tl_pattern_free(r->o.search_pattern); /* the table would have kept it */
    if (fresh == NULL || err->status != TL_OK) {
        free_rule(r);
        return;
    }
    while (*at != NULL && (r->shipped || !(*at)->rule->shipped))
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
        tl_rule *r = make_rule(tl_shipped_replacements[n_shipped], true, &e);
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
    tl_rule *r = make_rule(&o, false, &e);
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

static const tl_form *look_up(const char *name)
{
    enter(NULL);
    const tl_form *f = name == NULL ? NULL : find(name, strlen(name));
    leave();
    return f;
}

const tl_form *tl_form_find(const char *name, int form, tl_err *err)
{
    const tl_form *f = look_up(name);
    if (f != NULL && form >= 0 && form < f->rule->n_forms)
        return &f->rule->form[form];
    tl_fail(err, TL_ENAME, "no replacement is named '%s' and has a form %d",
            name == NULL ? "NULL" : name, form);
    return NULL;
}

bool tl_replacement_enable(const char *name, bool on)
{
    const tl_form *f = look_up(name);
    if (f != NULL)
        atomic_store(&f->rule->on, on);
    return f != NULL;
}

static const char *name_at(int i)
{
    const tl_rule *r = NULL;
    for (const tl_form *f = i < 0 ? NULL : table; f != NULL; f = f->next)
        if (f->rule != r && (r = f->rule, i-- == 0))
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

static tl_status unknown(const char *where, const char *name, size_t n, tl_err *err)
{
    char all[320] = "all";
    const char *known;
    size_t used = strlen(all);
    for (int others = 0; others < 2; others++) /* first those that begin as it does */
        for (int i = 0; (known = name_at(i)) != NULL && used < sizeof all; i++)
            if ((known[0] != name[0]) == others)
                used += (size_t)snprintf(all + used, sizeof all - used, ", %s", known);
    return tl_fail(err, TL_ENAME, "%s: there is no replacement '%.*s'; there are: %s%s", where,
                   n < 60 ? (int)n : 60, name, all, used < sizeof all ? "" : "...");
}

/* Without the rules that the names with commas are of ("all": each). */
static tl_status leave_out(const char *where, const char *names, const tl_form **list, int *n,
                           tl_err *err)
{
    for (size_t len; names != NULL && *names != 0; names += len + (names[len] == ',')) {
        len = strcspn(names, ",");
        const bool all = len == 3 && memcmp(names, "all", len) == 0;
        const tl_form *f = find(names, len);
        if (f == NULL && !all)
            return unknown(where, names, len, err);
        int left = 0;
        for (int i = 0; i < *n && !all; i++)
            if (list[i]->rule != f->rule)
                list[left++] = list[i];
        *n = left;
    }
    return TL_OK;
}

tl_status tl_forms_on(tl_graph *g, bool joint, const tl_form ***list, int *n)
{
    size_t all = 1;
    tl_err *err = &g->head.err;
    tl_status s = enter(err);
    for (const tl_form *f = table; f != NULL; f = f->next)
        all++;
    *list = tl_bump_get(&g->bump, all * sizeof **list);
    *n = 0;
    if (s == TL_OK && *list == NULL)
        s = tl_fail(err, TL_ENOMEM, "no memory for a list of %zu replacements", all);
    for (const tl_form *f = table; s == TL_OK && f != NULL; f = f->next)
        if (atomic_load(&f->rule->on) && (f->rule->o.trace == TL_TRACE_JOINT) == joint)
            (*list)[(*n)++] = f;
    if (s == TL_OK)
        s = leave_out("TL_WITHOUT in the environment", getenv("TL_WITHOUT"), *list, n, err);
    if (s == TL_OK)
        s = leave_out("the graph's option .without", g->opt.without, *list, n, err);
    leave();
    return s;
}
