/* checkpoint_load.c: reads what checkpoint.c has written, all of it or nothing: everything in the
 * file is checked before anything in the model changes. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>

#include "nn/files.h"
#include "nn/layers.h"
#include "nn/opt.h"
#include "tensor/files/bytes.h"
#include "tensor/operands.h"

enum { MOST_CALLS = 1 << 20 };

typedef struct {
    tl_model *m;
    tl_tape *t;  /* NULL: the file must have no gradients */
    tl_opt *opt; /* NULL: the optimizer's part of the file is not read */
    tl_source file;
    tl_st_file *f;
    int64_t steps;
    double lr; /* the rate that tl_opt_lr_set had set; 0: none */
    uint64_t seed;
} loading;

/* beta^n by successive products, as steps compute it. */
static __attribute__((noinline)) double product(double beta, int64_t n)
{
    double p = 1, last = 2;
    for (int64_t i = 0; i < n && p < last; i++) { /* it ends at 0, or at a subnormal */
        last = p;
        p *= beta;
    }
    return p;
}

static double power(double beta, int64_t n)
{
    tl_fpenv saved = tl_fpenv_enter();
    double p = product(beta, n);
    tl_fpenv_leave(saved);
    return p;
}

/* The rate that tl_opt_lr_set had set. */
static tl_status read_lr(loading *l)
{
    const char *text = tl_st_meta_get(l->f, "tally.lr");
    char *end;
    if (text == NULL)
        return TL_OK;
    tl_textenv saved = tl_textenv_enter();
    l->lr = strtod(text, &end);
    tl_textenv_leave(saved);
    return *text != '\0' && *end == '\0' && l->lr > 0 && isfinite(l->lr)
               ? TL_OK
               : tl_file_fail(&l->file, TL_EFORMAT, "'%.30s' is not a learning rate", text);
}

static tl_status read_steps(loading *l)
{
    const char *kind = tl_st_meta_get(l->f, "tally.optimizer"),
               *text = tl_st_meta_get(l->f, "tally.steps");
    char *end;
    if (l->opt == NULL)
        return TL_OK;
    if (kind == NULL || text == NULL)
        return tl_file_fail(&l->file, TL_EFORMAT, "holds no optimizer state");
    if (strcmp(kind, l->opt->name) != 0)
        return tl_file_fail(&l->file, TL_EFORMAT, "was saved with %.20s, not %s", kind,
                            l->opt->name);
    errno = 0;
    l->steps = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || l->steps < 0 || l->steps > INT64_C(1) << 40)
        return tl_file_fail(&l->file, TL_EFORMAT, "'%.30s' is not a number of optimizer steps",
                            text);
    return read_lr(l);
}

/* Draws go on as in the run that was saved. A file without a seed leaves the model's. */
static tl_status read_seed(loading *l)
{
    const char *text = tl_st_meta_get(l->f, "tally.seed");
    char *end;
    l->seed = tl_model_seed(l->m);
    if (text == NULL)
        return TL_OK;
    errno = 0;
    l->seed = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0)
        return tl_file_fail(&l->file, TL_EFORMAT, "'%.30s' is not a seed", text);
    return TL_OK;
}

/* The parts of a name grad.CALL.KIND.NAME. */
typedef struct {
    const char *param;
    int call;
    char kind[TL_GRADIENT_KIND];
} gradient;

/* Whether a tensor of the file is part of a gradient; the model then has none of that name. */
static bool is_gradient(const loading *l, const char *name, gradient *g)
{
    char *end;
    if (strncmp(name, "grad.", 5) != 0 || name[5] < '0' || name[5] > '9' ||
        !tl_is_none(tl_model_find(l->m, name)))
        return false;
    long n = strtol(name + 5, &end, 10);
    const char *dot = *end == '.' ? strchr(end + 1, '.') : NULL;
    g->call = (int)(n < MOST_CALLS ? n : MOST_CALLS);
    if (dot == NULL || dot - end > TL_GRADIENT_KIND)
        return false;
    snprintf(g->kind, TL_GRADIENT_KIND, "%.*s", (int)(dot - end - 1), end + 1);
    for (char *k = g->kind; *k != '\0'; k++)
        *k = *k == TL_GRADIENT_DOT ? '.' : *k;
    g->param = dot + 1;
    return true;
}

static tl_status check_gradient(const loading *l, const tl_st_entry *e, const gradient *g)
{
    tl_named p = tl_model_named(l->m, g->param);
    if (l->t == NULL)
        return tl_file_fail(
            &l->file, TL_EUSAGE,
            "holds gradients of a step that is not finished; tl_checkpoint_load_tape takes them");
    const bool derived = p.name == NULL && *g->param == '=';
    const bool sums = e->array.dtype == TL_F32 || e->array.dtype == TL_F64;
    if (g->call == MOST_CALLS || (derived ? !sums : !p.param || p.frozen))
        return tl_file_fail(&l->file, TL_EFORMAT,
                            "'%.100s' belongs to no accumulator that the model can have%s", e->name,
                            p.frozen ? ", where that parameter is frozen" : "");
    if (*g->kind == '\0' || derived)
        return TL_OK;
    p.array.dtype = e->array.dtype == TL_F64 /* folds are in f64, chains in the compute type */
                        ? TL_F64
                        : tl_dtype_compute(p.array.dtype);
    return tl_source_alike(&l->file, e, &p.array);
}

static bool has_parameters(tl_model *m)
{
    int n = tl_model_count(m);
    while (n > 0 && !tl_model_at(m, n - 1).param)
        n--;
    return n > 0;
}

/* Whether the file may lack x: it is a buffer that is as it was made, or that copy_all resets. */
static bool may_be_absent(const loading *l, const tl_named *x)
{
    return !x->param &&
           (!x->changed || tl_opt_is_state(l->m, x) || tl_is_loader_place(x->name, &x->array) ||
            tl_is_rotary_table(x->name, &x->array));
}

/* Checks that every tensor of the file belongs to the model, is part of a gradient, or is the state
 * of a parameter that the model does not have yet; and that the file has the model's tensors, as
 * one that it lacks would stay as a later step has left it. */
static tl_status check(const loading *l)
{
    TL_TRY(tl_source_early(&l->file, l->f, !has_parameters(l->m)));
    for (int i = 0; i < tl_st_count(l->f); i++) {
        tl_st_entry e = tl_st_at(l->f, i);
        tl_named x = tl_model_named(l->m, e.name);
        const char *of = tl_opt_state_of(e.name); /* "": it is no optimizer's state */
        gradient g;
        if (is_gradient(l, e.name, &g)) {
            TL_TRY(check_gradient(l, &e, &g));
            continue;
        }
        if (x.name == NULL) { /* state has its parameter's shape and compute type */
            x = tl_model_named(l->m, of);
            x.array.dtype = tl_dtype_compute(x.array.dtype);
        }
        if (x.name == NULL && tl_is_rotary_table(e.name, &e.array))
            continue; /* the run that was saved has seen other lengths; this one makes its own */
        if (x.name == NULL)
            return tl_file_fail(&l->file, TL_ENAME,
                                "has a tensor '%.100s' that the model has not; call first what "
                                "makes it",
                                tl_st_find(l->f, of) >= 0 ? of : e.name);
        TL_TRY(tl_source_alike(&l->file, &e, &x.array));
    }
    for (int k = 0; k < tl_model_count(l->m); k++) {
        const tl_named x = tl_model_at(l->m, k);
        if (tl_st_find(l->f, x.name) < 0 && !may_be_absent(l, &x))
            return tl_file_fail(&l->file, TL_ENAME, "has no tensor '%.100s', which the model has",
                                x.name);
    }
    return TL_OK;
}

/* Makes the state buffers that only the file has, except those of other parts of the optimizer. */
static tl_status make_absent(const loading *l)
{
    tl_tape *t = tl_tape_new(l->m); /* to report on */
    int n = 0;
    const char **others = l->opt == NULL ? NULL : tl_opt_others(l->opt, &n);
    if (l->opt != NULL && others == NULL)
        tl_tape_fail(tl_nowhere(t), TL_ENOMEM, "no memory for names of parameters");
    for (int i = 0; t != NULL && i < tl_st_count(l->f); i++) {
        tl_st_entry e = tl_st_at(l->f, i);
        const char *of = tl_opt_state_of(e.name);
        gradient g;
        if (tl_is_none(tl_model_find(l->m, e.name)) && !is_gradient(l, e.name, &g) &&
            !tl_is_rotary_table(e.name, &e.array) &&
            tl_names_find(others, n, sizeof *others, of) == NULL)
            tl_buffer(t, l->m, e.name, e.array.dtype, tl_array_shape(&e.array));
    }
    tl_status s = tl_failed(t)
                      ? tl_fail(l->file.err, tl_error_status(t), "its tensors: %s", tl_error(t))
                      : TL_OK;
    tl_free_raw(others);
    tl_object_end(t);
    return s;
}

/* Whether the file names that tensor as the state of an optimizer other than the one that it was
 * saved with. */
static bool is_of_others(const loading *l, const char *name)
{
    const char *line = tl_st_meta_get(l->f, "tally.others"), *end;
    const size_t n = strlen(name);
    for (; line != NULL && (end = strchr(line, '\n')) != NULL; line = end + 1)
        if ((size_t)(end - line) == n && memcmp(line, name, n) == 0)
            return true;
    return false;
}

/* Makes the optimizer the owner of state of its kind: of what the file holds for it, and of what it
 * or nobody owns. State that the file holds for other optimizers waits for them. If `now` is false,
 * only checks that this can be done. */
static tl_status own_state(const loading *l, bool now)
{
    const char *kind = l->opt != NULL && l->opt->adam ? "adamw." : "sgd.";
    for (int k = 0; l->opt != NULL && k < tl_model_count(l->m); k++) {
        const tl_named x = tl_model_at(l->m, k);
        const void *whose = tl_opt_state_owner(l->m, &x);
        const bool mine = whose == NULL || whose == l->opt;
        if (!tl_opt_is_state(l->m, &x))
            continue;
        if (is_of_others(l, x.name)) {
            if (now && mine)
                tl_buffer_give(l->m, x.name, whose, &tl_opt_elsewhere);
        } else if (strncmp(x.name, kind, strlen(kind)) == 0 &&
                   (mine || tl_st_find(l->f, x.name) >= 0)) {
            if (whose != &tl_opt_elsewhere)
                TL_TRY(tl_opt_check_owner(l->opt, x.name, whose, l->file.err));
            if (now)
                tl_buffer_give(l->m, x.name, whose, l->opt);
        }
    }
    return TL_OK;
}

/* Fills the tape's accumulators. If that fails, it has none, as before. */
static tl_status open_gradients(const loading *l)
{
    tl_status s = TL_OK;
    for (int i = 0; l->t != NULL && s == TL_OK && i < tl_st_count(l->f); i++) {
        tl_st_entry e = tl_st_at(l->f, i);
        gradient g;
        tl_array acc;
        if (!is_gradient(l, e.name, &g))
            continue;
        s = tl_accumulator_open(l->t, g.param, g.call, g.kind, e.array.dtype,
                                tl_array_shape(&e.array), &acc);
        if (s == TL_OK && *g.kind != '\0')
            tl_array_copy(&acc, &e.array);
    }
    if (s == TL_OK)
        return s;
    tl_err said = {.status = TL_OK};
    tl_fail(&said, s, "its gradients: %s", tl_error(l->t));
    tl_grad_clear(l->t);
    tl_error_clear(l->t); /* and its model's */
    return tl_fail(l->file.err, s, "%s", said.message);
}

/* Copies the contents, which cannot fail: everything is there and alike. A loader whose place the
 * file lacks starts over, and so does state that it lacks, unless another optimizer owns it. Other
 * optimizers do not go with the model any more if the file overwrites state of theirs or, as that
 * of one of them, the parameters of steps that they have made. */
static void copy_all(const loading *l)
{
    for (int k = 0; k < tl_model_count(l->m); k++) {
        tl_named x = tl_model_at(l->m, k);
        size_t bytes = (size_t)tl_array_count(&x.array) * tl_dtype_size(x.array.dtype);
        const void *whose = tl_opt_state_owner(l->m, &x);
        tl_opt *other = whose == l->opt || whose == &tl_opt_elsewhere ? NULL : (tl_opt *)whose;
        int i = tl_st_find(l->f, x.name);
        if (other != NULL)
            other->behind |= l->opt == NULL ? i >= 0 : other->steps != other->loaded;
        if (other != NULL && l->opt != NULL) /* its own checkpoint has it */
            continue;
        if (i >= 0)
            tl_write(l->m, x.tensor, tl_st_at(l->f, i).array.data, bytes);
        else if (bytes > 0 &&
                 (tl_is_loader_place(x.name, &x.array) ||
                  (tl_opt_is_state(l->m, &x) && other == NULL && whose != &tl_opt_elsewhere)))
            tl_write(l->m, x.tensor, memset(x.array.data, 0, bytes), bytes); /* notes the change */
    }
}

static tl_status check_keys(const char *const *keys, const void *values, int n, const char *who,
                            tl_err *err)
{
    TL_TRY(tl_need(err, who, "keys", keys != NULL, n));
    TL_TRY(tl_need(err, who, "values", values != NULL, n));
    for (int i = 0; i < n; i++)
        TL_TRY(tl_need(err, who, "a key", keys[i] != NULL, 1));
    return TL_OK;
}

static void copy_notes(const tl_st_file *f, const char *const *keys, char (*values)[TL_NOTE_MAX],
                       int n)
{
    for (int i = 0; i < n; i++) {
        const char *v = tl_st_meta_get(f, keys[i]);
        snprintf(values[i], TL_NOTE_MAX, "%s", v == NULL ? "" : v);
    }
}

tl_status tl_checkpoint_notes(tl_model *m, const char *path, const char *const *keys,
                              char (*values)[TL_NOTE_MAX], int n)
{
    tl_st_file *f;
    TL_TRY(tl_error_begin(m));
    TL_TRY(check_keys(keys, values, n, "tl_checkpoint_notes", tl_error_record(m)));
    TL_TRY(tl_told_by("tl_checkpoint_notes", tl_st_open(&f, path, tl_error_record(m)), m));
    copy_notes(f, keys, values, n);
    tl_st_close(f);
    return TL_OK;
}

/* Everything that can fail. */
static tl_status prepare(loading *l)
{
    TL_TRY(read_steps(l));
    TL_TRY(read_seed(l));
    TL_TRY(check(l));
    TL_TRY(make_absent(l));
    TL_TRY(own_state(l, false));
    TL_TRY(open_gradients(l));
    return own_state(l, true);
}

static tl_status load(tl_model *m, tl_tape *t, tl_opt *opt, const char *path,
                      const char *const *keys, char (*values)[TL_NOTE_MAX], int n)
{
    loading l = {.m = m, .t = t, .opt = opt, .file = {path, tl_error_record(m)}};
    const char *who = t == NULL ? "tl_checkpoint_load" : "tl_checkpoint_load_tape";
    TL_TRY(check_keys(keys, values, n, who, l.file.err));
    TL_TRY(tl_st_open(&l.f, path, l.file.err));
    uint32_t mark = tl_model_mark(m);
    tl_status s = prepare(&l);
    if (s != TL_OK) {
        tl_model_rollback(m, mark);
    } else {
        copy_all(&l);
        copy_notes(l.f, keys, values, n);
        tl_model_reseed(m, l.seed);
    }
    if (s == TL_OK && opt == NULL) /* weights alone: any optimizer may begin */
        tl_buffer_give(m, NULL, &tl_opt_elsewhere, NULL);
    if (s == TL_OK && opt != NULL) {
        opt->found = 0; /* what it has looked up may be another's now */
        opt->steps = opt->loaded = l.steps;
        opt->behind = false;
        opt->lr_set = l.lr > 0;
        opt->o.lr = opt->lr_set ? l.lr : opt->lr_made;
        opt->bytes = tl_opt_cut_of(m, 0).all;
        opt->moved = false; /* all parts are there */
        opt->pow1 = power(opt->o.beta1, l.steps);
        opt->pow2 = power(opt->o.beta2, l.steps);
    }
    tl_st_close(l.f);
    return s;
}

tl_status tl_checkpoint_load(tl_model *m, tl_opt *opt, const char *path, const char *const *keys,
                             char (*values)[TL_NOTE_MAX], int n)
{
    TL_TRY(tl_checkpoint_begin(m, NULL, opt, "tl_checkpoint_load"));
    return tl_told_by("tl_checkpoint_load", load(m, NULL, opt, path, keys, values, n), m);
}

tl_status tl_checkpoint_load_tape(tl_tape *t, tl_opt *opt, const char *path,
                                  const char *const *keys, char (*values)[TL_NOTE_MAX], int n)
{
    tl_model *m = tl_tape_model(t);
    TL_TRY(tl_checkpoint_begin(m, t, opt, "tl_checkpoint_load_tape"));
    if (tl_accumulating_count(t) > 0)
        return tl_fail(tl_error_record(m), TL_EUSAGE,
                       "tl_checkpoint_load_tape: the tape holds gradients of a step that is not "
                       "finished; tl_grad_clear drops them");
    return tl_told_by("tl_checkpoint_load_tape", load(m, t, opt, path, keys, values, n), m);
}
