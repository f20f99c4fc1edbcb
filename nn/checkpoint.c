/* checkpoint.c: a model, its optimizer, gradients under way and notes into one safetensors file,
 * and back. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/layers.h"
#include "nn/opt.h"
#include "tensor/files/file.h"
#include "tensor/files/safetensors.h"
#include "tensor/operands.h"
#include "tensor/threads.h"

enum { OWN_NOTES = 4 };

enum { KIND = 256, GRADIENT_NAME = TL_NAME_MAX + KIND + 32, MOST_CALLS = 1 << 20 };

/* The entries of a file while they are collected. */
typedef struct {
    tl_st_entry *e;
    char (*name)[GRADIENT_NAME]; /* of the gradients' entries */
    int n;
} entries;

/* grad.CALL.KIND.NAME for each accumulator (NAME: "=..." of what is made of parameters alone);
 * grad.0..NAME, a 0, for a parameter that backward has reached, but nothing has come to. */
static tl_status add_gradients(entries *x, tl_tape *t, tl_err *err)
{
    static int64_t nothing;
    for (int i = 0; i < tl_accumulating_count(t); i++) {
        tl_accumulating g = tl_accumulating_at(t, i);
        if (*g.param ==
            '\0') /* that of a value made of parameters is put together when asked for */
            return tl_fail(err, TL_ENOMEM, "tl_checkpoint_save: no memory for a gradient's name");
        snprintf(x->name[i], GRADIENT_NAME, "grad.%d.%s.%s", g.call, g.kind, g.param);
        if (*g.kind == '\0')
            g.array = tl_array_make(TL_I64, &TL_SCALAR, &nothing);
        x->e[x->n++] = (tl_st_entry){x->name[i], g.array};
    }
    return TL_OK;
}

/* t may be NULL. */
static tl_status write_file(tl_model *m, tl_tape *t, const char *path, const tl_st_meta *meta,
                            int n_meta)
{
    tl_err *err = tl_error_record(m);
    int count = tl_model_count(m), more = tl_accumulating_count(t);
    entries x = {.e = tl_calloc((size_t)(count + more) + 1, sizeof *x.e),
                 .name = tl_calloc((size_t)more + 1, sizeof *x.name)};
    tl_status s = TL_OK;
    if (tl_waiting_at(t, 0) != NULL)
        s = tl_fail(err, TL_EUSAGE,
                    "tl_checkpoint_save: a gradient of '%s' waits for tl_accumulate",
                    tl_waiting_at(t, 0));
    else if (x.e == NULL || x.name == NULL)
        s = tl_fail(err, TL_ENOMEM, "tl_checkpoint_save: no memory for %d entries", count + more);
    for (int i = 0; s == TL_OK && i < count; i++) {
        tl_named p = tl_model_at(m, i);
        x.e[x.n++] = (tl_st_entry){p.name, p.array};
    }
    if (s == TL_OK && t != NULL)
        s = add_gradients(&x, t, err);
    if (s == TL_OK)
        s = tl_st_write(path, x.e, x.n, meta, n_meta, err);
    tl_free_raw(x.e);
    tl_free_raw(x.name);
    return s;
}

/* How a call begins that may be given a tape and an optimizer besides m. */
static tl_status begin(tl_model *m, tl_tape *t, const tl_opt *opt, const char *who)
{
    if (t != NULL && m == NULL)
        return tl_failed(t)
                   ? tl_error_status(t)
                   : tl_tape_fail(tl_nowhere(t), TL_EUSAGE, "%s: the tape has no model", who);
    TL_TRY(tl_error_begin(m));
    if (opt != NULL && (!tl_object_given(opt) || opt->model != m))
        return tl_fail(tl_error_record(m), tl_object_given(opt) ? TL_EUSAGE : TL_ESTALE,
                       "%s: the optimizer %s", who,
                       tl_object_given(opt) ? "is of another model" : "has been freed");
    return t == NULL ? TL_OK : tl_error_status(t); /* failed: half a gradient may be in it */
}

static tl_status save(tl_model *m, tl_tape *t, const tl_opt *opt, const char *path,
                      const tl_note *notes, int n)
{
    int n_meta = 0;
    char steps[32], seed[32];
    tl_status s = TL_OK;
    TL_TRY(tl_need(tl_error_record(m), "tl_checkpoint_save", "path", path != NULL, 1));
    TL_TRY(tl_need(tl_error_record(m), "tl_checkpoint_save", "notes", notes != NULL, n));
    if (opt != NULL && opt->o.parts > 1)
        return tl_fail(tl_error_record(m), TL_EUSAGE,
                       "tl_checkpoint_save: the optimizer has the state of part %d of %d; "
                       "tl_group_save gathers that of all",
                       opt->o.part, opt->o.parts);
    tl_st_meta *meta = tl_calloc((size_t)(n + OWN_NOTES), sizeof *meta);
    if (meta == NULL)
        return tl_fail(tl_error_record(m), TL_ENOMEM, "tl_checkpoint_save: no memory for %d notes",
                       n);
    for (int i = 0; s == TL_OK && i < n; i++) {
        s = tl_need(tl_error_record(m), "tl_checkpoint_save", "a note's key or value",
                    notes[i].key != NULL && notes[i].value != NULL, 1);
        if (s != TL_OK)
            break;
        if (strlen(notes[i].value) >= TL_NOTE_MAX)
            s = tl_fail(
                tl_error_record(m), TL_EDOMAIN,
                "tl_checkpoint_save: the note '%.60s' has %zu bytes; at most %d are possible",
                notes[i].key, strlen(notes[i].value), TL_NOTE_MAX - 1);
        meta[n_meta++] = (tl_st_meta){notes[i].key, notes[i].value};
    }
    snprintf(seed, sizeof seed, "%" PRIu64, tl_model_seed(m));
    meta[n_meta++] = (tl_st_meta){"tally.seed", seed};
    meta[n_meta++] = (tl_st_meta){TL_ST_SEAL, ""};
    if (s == TL_OK && opt != NULL) {
        snprintf(steps, sizeof steps, "%" PRId64, opt->steps);
        meta[n_meta++] = (tl_st_meta){"tally.optimizer", opt->name};
        meta[n_meta++] = (tl_st_meta){"tally.steps", steps};
    }
    if (s == TL_OK)
        s = write_file(m, t, path, meta, n_meta);
    tl_free_raw(meta);
    return s;
}

tl_status tl_checkpoint_writable(tl_model *m, const char *path)
{
    TL_TRY(tl_error_begin(m));
    TL_TRY(TL_NEED(tl_error_record(m), path));
    return tl_file_writable(path, tl_error_record(m));
}

tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes,
                             int n)
{
    TL_TRY(begin(m, NULL, opt, "tl_checkpoint_save"));
    return save(m, NULL, opt, path, notes, n);
}

tl_status tl_checkpoint_save_tape(tl_tape *t, const tl_opt *opt, const char *path,
                                  const tl_note *notes, int n)
{
    tl_model *m = tl_tape_model(t);
    TL_TRY(begin(m, t, opt, "tl_checkpoint_save_tape"));
    return save(m, t, opt, path, notes, n);
}

/* ---- read back, all of it or nothing ---- */

/* beta^n by successive products, as the steps took it. */
static __attribute__((noinline)) double product(double beta, int64_t n)
{
    double p = 1, last = 2;
    for (int64_t i = 0; i < n && p < last; i++) { /* it sticks at 0, or a subnormal */
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

/* The optimizer's part of the notes. */
static tl_status read_steps(const tl_st_file *f, const tl_opt *opt, const char *path,
                            int64_t *steps, tl_err *err)
{
    const char *kind = tl_st_meta_get(f, "tally.optimizer"),
               *text = tl_st_meta_get(f, "tally.steps");
    const char *want = opt->name;
    char *end;
    if (kind == NULL || text == NULL)
        return tl_fail(err, TL_EFORMAT, "%.200s: holds no optimizer state", path);
    if (strcmp(kind, want) != 0)
        return tl_fail(err, TL_EFORMAT, "%.200s: was saved with %.20s, not %s", path, kind, want);
    errno = 0;
    *steps = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || errno != 0 || *steps < 0 || *steps > INT64_C(1) << 40)
        return tl_fail(err, TL_EFORMAT, "%.200s: '%.30s' is no number of optimizer steps", path,
                       text);
    return TL_OK;
}

/* Draws go on as they would have; a file without a seed leaves the model's. */
static tl_status read_seed(const tl_st_file *f, const char *path, uint64_t *seed, tl_err *err)
{
    const char *text = tl_st_meta_get(f, "tally.seed");
    char *end;
    if (text == NULL)
        return TL_OK;
    errno = 0;
    *seed = strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || errno != 0)
        return tl_fail(err, TL_EFORMAT, "%.200s: '%.30s' is no seed", path, text);
    return TL_OK;
}

/* The parameter whose gradient a tensor of that name is part of; NULL for others. */
static const char *gradient_of(const char *name, int *call, char kind[KIND])
{
    char *end;
    if (strncmp(name, "grad.", 5) != 0 || name[5] < '0' || name[5] > '9')
        return NULL;
    long n = strtol(name + 5, &end, 10);
    const char *dot = *end == '.' ? strchr(end + 1, '.') : NULL;
    *call = (int)(n < MOST_CALLS ? n : MOST_CALLS);
    if (dot == NULL || dot - end > KIND)
        return NULL;
    snprintf(kind, KIND, "%.*s", (int)(dot - end - 1), end + 1);
    return dot + 1;
}

static tl_status check_alike(const tl_st_entry *e, const tl_named *t, const char *path, tl_err *err)
{
    char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
    if (tl_array_same_shape(&t->array, &e->array) && t->array.dtype == e->array.dtype)
        return TL_OK;
    return tl_fail(err, TL_ESHAPE, "%.200s: '%.100s' is %s %s there, '%.60s' %s %s in the model",
                   path, e->name, tl_array_shape_text(a, &e->array), tl_dtype_name(e->array.dtype),
                   t->name, tl_array_shape_text(b, &t->array), tl_dtype_name(t->array.dtype));
}

static tl_named named(tl_model *m, const char *name)
{
    for (int k = 0; k < tl_model_count(m); k++)
        if (strcmp(tl_model_at(m, k).name, name) == 0)
            return tl_model_at(m, k);
    return (tl_named){0};
}

/* A tensor grad.CALL.KIND.NAME; t: the tape that it is for. */
static tl_status check_gradient(tl_model *m, const tl_tape *t, const tl_st_entry *e,
                                const char *path, tl_err *err)
{
    int call;
    char kind[KIND];
    const char *param = gradient_of(e->name, &call, kind);
    tl_named p = named(m, param);
    if (t == NULL)
        return tl_fail(err, TL_EUSAGE,
                       "%.200s: holds gradients of a step that is not finished; "
                       "tl_checkpoint_load_tape takes them",
                       path);
    const bool derived = p.name == NULL && *param == '=';
    const bool sums = e->array.dtype == TL_F32 || e->array.dtype == TL_F64;
    if (call == MOST_CALLS || (derived && !sums) ||
        (!derived && (p.name == NULL || !p.param || p.frozen)))
        return tl_fail(err, TL_EFORMAT,
                       "%.200s: '%.100s' belongs to no accumulator that the model can have", path,
                       e->name);
    if (*kind == '\0' || derived)
        return TL_OK;
    p.array.dtype = e->array.dtype == TL_F64 /* folds in f64, chains in the compute type */
                        ? TL_F64
                        : tl_dtype_compute(p.array.dtype);
    return check_alike(e, &p, path, err);
}

/* Every tensor of the file belongs to the model, or is the state of one of its
 * parameters that the model has not yet; every parameter is in the file. */
static tl_status check(tl_model *m, const tl_tape *tape, const tl_st_file *f, const char *path,
                       tl_err *err)
{
    if (tl_model_parameters(m) == 0 && tl_st_count(f) > 0)
        return tl_fail(err, TL_ENAME,
                       "%.200s: has %d tensors, the model no parameter yet; the first forward pass "
                       "makes them, so load after one",
                       path, tl_st_count(f));
    for (int i = 0; i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        tl_named t = named(m, e.name);
        int call;
        char kind[KIND];
        if (t.name == NULL && gradient_of(e.name, &call, kind) != NULL) {
            TL_TRY(check_gradient(m, tape, &e, path, err));
            continue;
        }
        if (t.name == NULL) { /* state has its parameter's shape and compute type */
            t = named(m, tl_opt_state_of(e.name));
            t.array.dtype = tl_dtype_compute(t.array.dtype);
        }
        if (t.name == NULL)
            return tl_fail(err, TL_ENAME, "%.200s: has a tensor '%.100s' that the model has not",
                           path, e.name);
        TL_TRY(check_alike(&e, &t, path, err));
    }
    for (int k = 0; k < tl_model_count(m); k++)
        if (tl_model_at(m, k).param && tl_st_find(f, tl_model_at(m, k).name) < 0)
            return tl_fail(err, TL_ENAME, "%.200s: has no tensor '%.100s', which the model has",
                           path, tl_model_at(m, k).name);
    return TL_OK;
}

/* Makes the state buffers that only the file has; a tape is needed to report on. */
static tl_status make_absent(tl_model *m, const tl_opt *opt, const tl_st_file *f, tl_err *err)
{
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; t != NULL && i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        int call;
        char kind[KIND];
        const char *of = tl_opt_state_of(e.name);
        if (tl_is_none(tl_model_find(m, e.name)) && gradient_of(e.name, &call, kind) == NULL &&
            (*of == '\0' || opt == NULL || tl_opt_updates(opt, of)))
            tl_buffer(t, m, e.name, e.array.dtype, tl_array_shape(&e.array));
    }
    tl_status s = tl_failed(t) ? tl_fail(err, TL_ENOMEM, "tl_checkpoint_load: %.300s", tl_error(t))
                               : TL_OK;
    tl_object_end(t);
    return s;
}

/* What there is of state of its kind is opt's, before any of it is read. */
static tl_status own_state(tl_model *m, tl_opt *opt, tl_err *err)
{
    for (int k = 0; opt != NULL && k < tl_model_count(m); k++) {
        const char *name = tl_model_at(m, k).name;
        if (strncmp(name, opt->adam ? "adamw." : "sgd.", opt->adam ? 6 : 4) == 0 &&
            named(m, tl_opt_state_of(name)).param)
            TL_TRY(tl_opt_own(opt, name, err));
    }
    return TL_OK;
}

/* Fills the tape's accumulators; on failure it has none, as before. */
static tl_status open_gradients(tl_model *m, tl_tape *t, const tl_st_file *f, tl_err *err)
{
    tl_status s = TL_OK;
    for (int i = 0; t != NULL && s == TL_OK && i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        int call;
        char kind[KIND];
        tl_array acc;
        const char *param = named(m, e.name).name == NULL ? gradient_of(e.name, &call, kind) : NULL;
        if (param == NULL)
            continue;
        s = tl_accumulator_open(t, param, call, kind, e.array.dtype, tl_array_shape(&e.array),
                                &acc);
        if (s == TL_OK && *kind != '\0')
            tl_array_copy(&acc, &e.array);
    }
    if (s == TL_OK)
        return s;
    tl_err said = {.status = TL_OK};
    tl_fail(&said, s, "tl_checkpoint_load: %.300s", tl_error(t));
    tl_error_clear(t); /* and its model's */
    return tl_fail(err, s, "%s", said.message);
}

/* Cannot fail: everything is there and alike. Optimizer state that the file lacks begins at zero.
 */
static void copy_all(tl_model *m, const tl_st_file *f, bool state)
{
    for (int k = 0; k < tl_model_count(m); k++) {
        tl_named t = tl_model_at(m, k);
        size_t bytes = (size_t)tl_array_count(&t.array) * tl_dtype_size(t.array.dtype);
        int i = tl_st_find(f, t.name);
        if (i >= 0)
            tl_write(m, t.tensor, tl_st_at(f, i).array.data, bytes);
        else if (state && bytes > 0 && named(m, tl_opt_state_of(t.name)).param)
            tl_write(m, t.tensor, memset(t.array.data, 0, bytes), bytes); /* so noted as changed */
    }
}

static tl_status check_keys(const char *const *keys, const void *values, int n, tl_err *err)
{
    TL_TRY(tl_need(err, "tl_checkpoint_load", "keys", keys != NULL, n));
    TL_TRY(tl_need(err, "tl_checkpoint_load", "values", values != NULL, n));
    for (int i = 0; i < n; i++)
        TL_TRY(tl_need(err, "tl_checkpoint_load", "a key", keys[i] != NULL, 1));
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
    TL_TRY(check_keys(keys, values, n, tl_error_record(m)));
    TL_TRY(tl_st_open(&f, path, tl_error_record(m)));
    copy_notes(f, keys, values, n);
    tl_st_close(f);
    return TL_OK;
}

static tl_status load(tl_model *m, tl_tape *t, tl_opt *opt, const char *path,
                      const char *const *keys, char (*values)[TL_NOTE_MAX], int n)
{
    tl_err *err = tl_error_record(m);
    tl_st_file *f;
    int64_t steps = 0;
    TL_TRY(check_keys(keys, values, n, err));
    TL_TRY(tl_st_open(&f, path, err));
    uint64_t seed = tl_model_seed(m);
    uint32_t mark = tl_model_mark(m);
    tl_status s = opt != NULL ? read_steps(f, opt, path, &steps, err) : TL_OK;
    if (s == TL_OK)
        s = read_seed(f, path, &seed, err);
    if (s == TL_OK)
        s = check(m, t, f, path, err);
    if (s == TL_OK)
        s = make_absent(m, opt, f, err);
    if (s == TL_OK)
        s = own_state(m, opt, err);
    if (s == TL_OK)
        s = open_gradients(m, t, f, err);
    if (s == TL_OK) {
        copy_all(m, f, opt != NULL);
        copy_notes(f, keys, values, n);
        tl_model_reseed(m, seed);
    }
    if (s == TL_OK && opt != NULL) {
        opt->steps = steps;
        opt->bytes = tl_opt_cut_of(m, 0).all;
        opt->pow1 = power(opt->o.beta1, steps);
        opt->pow2 = power(opt->o.beta2, steps);
    }
    if (s != TL_OK)
        tl_model_rollback(m, mark);
    tl_st_close(f);
    return s;
}

tl_status tl_checkpoint_load(tl_model *m, tl_opt *opt, const char *path, const char *const *keys,
                             char (*values)[TL_NOTE_MAX], int n)
{
    TL_TRY(begin(m, NULL, opt, "tl_checkpoint_load"));
    return load(m, NULL, opt, path, keys, values, n);
}

tl_status tl_checkpoint_load_tape(tl_tape *t, tl_opt *opt, const char *path,
                                  const char *const *keys, char (*values)[TL_NOTE_MAX], int n)
{
    tl_model *m = tl_tape_model(t);
    TL_TRY(begin(m, t, opt, "tl_checkpoint_load_tape"));
    if (tl_accumulating_count(t) > 0)
        return tl_fail(tl_error_record(m), TL_EUSAGE,
                       "tl_checkpoint_load_tape: the tape holds gradients of a step that is not "
                       "finished; tl_grad_clear drops them");
    return load(m, t, opt, path, keys, values, n);
}
