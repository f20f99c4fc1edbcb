/* checkpoint.c: a model, its optimizer, gradients under way and notes into one safetensors file. */
#include "nn/checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "tensor/files/file.h"

enum { OWN_NOTES = 4 };

/* The entries of a file while they are collected. */
typedef struct {
    tl_st_entry *e;
    char (*name)[TL_NAME_MAX]; /* of the gradients' entries */
    int64_t *uses;
    int n, n_named, n_uses;
} entries;

static int accumulators(tl_tape *t)
{
    int n = 0;
    for (int i = 0; i < tl_accumulating_count(t); i++)
        n += 1 + tl_accumulating_at(t, i).uses;
    return n;
}

/* grad.uses.NAME and, for each use to which something has come, grad.K.NAME. */
static void add_gradients(entries *x, tl_tape *t)
{
    static const tl_shape scalar = {0};
    for (int i = 0; i < tl_accumulating_count(t); i++) {
        tl_accumulating g = tl_accumulating_at(t, i);
        for (int k = -1; k < g.uses; k++) {
            tl_array acc = tl_array_make(TL_I64, &scalar, &x->uses[x->n_uses]);
            if (k >= 0 && !tl_accumulator(t, g.param, k, &acc))
                continue;
            if (k < 0)
                x->uses[x->n_uses++] = g.uses;
            char *name = x->name[x->n_named++], number[16];
            snprintf(number, sizeof number, "%d", k);
            snprintf(name, TL_NAME_MAX, "grad.%s.%s", k < 0 ? "uses" : number, g.param);
            x->e[x->n++] = (tl_st_entry){name, acc};
        }
    }
}

/* t may be NULL. */
static tl_status write_file(tl_model *m, tl_tape *t, const char *path, const tl_st_meta *meta,
                            int n_meta)
{
    tl_err *err = tl_error_record(m);
    int count = tl_model_count(m), more = t == NULL ? 0 : accumulators(t);
    entries x = {.e = tl_calloc((size_t)(count + more) + 1, sizeof *x.e),
                 .name = tl_calloc((size_t)more + 1, sizeof *x.name),
                 .uses = tl_calloc((size_t)more + 1, sizeof *x.uses)};
    tl_status s = TL_OK;
    if (x.e == NULL || x.name == NULL || x.uses == NULL)
        s = tl_fail(err, TL_ENOMEM, "tl_checkpoint_save: no memory for %d entries", count + more);
    for (int i = 0; s == TL_OK && i < count; i++) {
        tl_named p = tl_model_at(m, i);
        x.e[x.n++] = (tl_st_entry){p.name, p.array};
    }
    if (s == TL_OK && t != NULL)
        add_gradients(&x, t);
    if (s == TL_OK)
        s = tl_st_write(path, x.e, x.n, meta, n_meta, err);
    tl_free_raw(x.e);
    tl_free_raw(x.name);
    tl_free_raw(x.uses);
    return s;
}

static tl_status save(tl_model *m, tl_tape *t, const tl_opt *opt, const char *path,
                      const tl_note *notes, int n)
{
    int n_meta = 0;
    char steps[32], seed[32];
    tl_status s = TL_OK;
    TL_TRY(tl_need(tl_error_record(m), "tl_checkpoint_save", "notes", notes != NULL, n));
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
        meta[n_meta++] = (tl_st_meta){"tally.optimizer", tl_opt_kind(opt)};
        meta[n_meta++] = (tl_st_meta){"tally.steps", steps};
    }
    if (s == TL_OK)
        s = write_file(m, t, path, meta, n_meta);
    tl_free_raw(meta);
    return s;
}

tl_status tl_checkpoint_writable(tl_model *m, const char *path)
{
    if (m == NULL)
        return TL_ENOMEM;
    TL_TRY(tl_error_begin(m));
    return tl_file_writable(path, tl_error_record(m));
}

tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes,
                             int n)
{
    if (m == NULL)
        return TL_ENOMEM;
    TL_TRY(tl_error_begin(m));
    return save(m, NULL, opt, path, notes, n);
}

tl_status tl_checkpoint_save_tape(tl_tape *t, const tl_opt *opt, const char *path,
                                  const tl_note *notes, int n)
{
    tl_model *m = tl_tape_model(t);
    if (m == NULL)
        return TL_ENOMEM;
    TL_TRY(tl_error_begin(m));
    if (tl_failed(t)) /* half a gradient may be in it */
        return tl_error_status(t);
    return save(m, t, opt, path, notes, n);
}
