/* rule_make.c: a rule for each form of a replacement, with copies of all that it was described by.
 */
#include <string.h>

#include "autograd/replace/internal.h"

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
        if (o->form_shapes != NULL)
            arg[i].shape = o->form_shapes[r->form * o->n_in + i];
        ok = (arg[i].name = copy_text(&r->bump, arg[i].name)) != NULL;
    }
    for (int i = 0; ok && i < o->n_scalars; i++) {
        scalar[i] = o->scalars[i];
        ok = (scalar[i].name = copy_text(&r->bump, scalar[i].name)) != NULL;
    }
    o->example_inputs = arg;
    o->form_shapes = NULL; /* looked at once */
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
    if (o->n_in < 1 || o->n_in + seeds > TL_PATTERN_ARGS || o->n_out < 1 ||
        o->n_out > TL_PATTERN_OUTS || o->n_scalars < 0 || o->n_scalars > TL_PATTERN_SCALARS)
        return tl_fail(
            err, TL_EUSAGE,
            "%d arguments, %d outputs, %d scalars; 1 to %d, 1 to %d, 0 to %d are possible", o->n_in,
            o->n_out, o->n_scalars, TL_PATTERN_ARGS - seeds, TL_PATTERN_OUTS, TL_PATTERN_SCALARS);
    if (seeds > 0 && (seeds > TL_PATTERN_JOINT_OUTS || o->search_pattern != NULL))
        return tl_fail(
            err, TL_EUSAGE,
            "a joint replacement is traced, not given as a pattern, and has at most %d outputs",
            TL_PATTERN_JOINT_OUTS);
    if (o->forms < 0 || o->forms > TL_PATTERN_FORMS || (o->forms > 1 && o->search_pattern != NULL))
        return tl_fail(err, TL_EUSAGE,
                       "%d forms; 0 to %d are possible, and one of a search_pattern", o->forms,
                       TL_PATTERN_FORMS);
    if (o->example_inputs == NULL || (o->n_scalars > 0 && o->scalars == NULL))
        return tl_fail(err, TL_EUSAGE, "the lists of %d arguments and %d scalars: one is NULL",
                       o->n_in, o->n_scalars);
    if (o->trace != TL_TRACE_FORWARD && o->trace != TL_TRACE_JOINT)
        return tl_fail(err, TL_EUSAGE, "%d is no kind of trace", (int)o->trace);
    for (int i = 0; i < o->n_in; i++)
        if (o->example_inputs[i].name == NULL || tl_dtype_size(o->example_inputs[i].dtype) == 0)
            return tl_fail(err, TL_EUSAGE, "argument %d has no name or no dtype", i);
    for (int i = 0; i < o->n_scalars; i++)
        if (o->scalars[i].name == NULL)
            return tl_fail(err, TL_EUSAGE, "scalar %d has no name", i);
    return TL_OK;
}

void tl_rules_free(tl_rule *r)
{
    for (tl_rule *next; r != NULL; r = next) {
        next = r->next;
        tl_bump_free(&r->bump);
        tl_free_raw(r);
    }
}

static tl_rule *make_form(const tl_replacement *o, int form, bool ours, tl_err *err)
{
    tl_rule *r = tl_calloc(1, sizeof *r);
    if (r == NULL)
        return tl_fail(err, TL_ENOMEM, "no memory for a replacement"), NULL;
    r->o = *o;
    r->form = form;
    r->shipped = ours;
    r->n_args = o->n_in + (o->trace == TL_TRACE_JOINT ? o->n_out : 0);
    if (o->rounding_forms >> form & 1)
        r->o.exact = r->o.exact_forward = 0;
    atomic_store(&r->on, true);
    tl_status s = copy_options(r, err);
    if (s == TL_OK)
        s = tl_rule_prepare(r, err);
    if (s == TL_OK && !ours &&
        (r->o.exact | r->o.exact_forward) != 0) /* the suite verifies what is shipped */
        s = tl_rule_verify(r, 1, 8, err);
    if (s == TL_OK)
        return r;
    tl_rules_free(r);
    return NULL;
}

/* A rule for each form; NULL if one cannot be. */
tl_rule *tl_rules_make(const tl_replacement *o, bool ours, tl_err *err)
{
    tl_rule *all = NULL, **end = &all;
    if (check_options(o, err) != TL_OK)
        return NULL;
    for (int form = 0; form == 0 || form < o->forms; form++, end = &(*end)->next)
        if ((*end = make_form(o, form, ours, err)) == NULL) {
            tl_rules_free(all);
            return NULL;
        }
    return all;
}
