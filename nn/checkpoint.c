/* checkpoint.c: a model, its optimizer and notes in one safetensors file. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/opt.h"
#include "tensor/safetensors.h"

enum { OWN_NOTES = 4 };

static tl_err *error_of(tl_model *m) { return &((tl_object *)(void *)m)->err; }

tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes, int n)
{
    if (m == NULL)
        return TL_ENOMEM;
    tl_error_clear(m);
    int count = tl_model_count(m), n_meta = 0;
    tl_st_entry *e = tl_calloc((size_t)count + 1, sizeof *e);
    tl_st_meta *meta = tl_calloc((size_t)(n + OWN_NOTES), sizeof *meta);
    char steps[32], pow1[40], pow2[40];
    tl_status s = TL_OK;
    if (e == NULL || meta == NULL)
        s = tl_fail(error_of(m), TL_ENOMEM, "tl_checkpoint_save: no memory for %d entries", count);
    for (int i = 0; s == TL_OK && i < count; i++) {
        tl_named t = tl_model_at(m, i);
        e[i] = (tl_st_entry){t.name, t.array};
    }
    for (int i = 0; s == TL_OK && i < n; i++)
        meta[n_meta++] = (tl_st_meta){notes[i].key, notes[i].value};
    if (s == TL_OK && opt != NULL) {
        snprintf(steps, sizeof steps, "%" PRId64, opt->steps);
        snprintf(pow1, sizeof pow1, "%a", opt->pow1);
        snprintf(pow2, sizeof pow2, "%a", opt->pow2);
        meta[n_meta++] = (tl_st_meta){"tally.optimizer", opt->adamw ? "adamw" : "sgd"};
        meta[n_meta++] = (tl_st_meta){"tally.steps", steps};
        meta[n_meta++] = (tl_st_meta){"tally.beta1_power", pow1};
        meta[n_meta++] = (tl_st_meta){"tally.beta2_power", pow2};
    }
    if (s == TL_OK)
        s = tl_st_write(path, e, count, meta, n_meta, error_of(m));
    tl_free_raw(e);
    tl_free_raw(meta);
    return s;
}

/* The optimizer's part of the notes. */
static tl_status read_optimizer(const tl_st_file *f, const tl_opt *opt, const char *path, tl_opt *into, tl_err *err)
{
    const char *kind = tl_st_meta_get(f, "tally.optimizer"), *steps = tl_st_meta_get(f, "tally.steps");
    const char *p1 = tl_st_meta_get(f, "tally.beta1_power"), *p2 = tl_st_meta_get(f, "tally.beta2_power");
    const char *want = opt->adamw ? "adamw" : "sgd";
    if (kind == NULL || steps == NULL || p1 == NULL || p2 == NULL)
        return tl_fail(err, TL_EFORMAT, "%.200s: holds no optimizer state", path);
    if (strcmp(kind, want) != 0)
        return tl_fail(err, TL_EFORMAT, "%.200s: was saved with %.20s, not %s", path, kind, want);
    char *end[3];
    into->steps = strtoll(steps, &end[0], 10);
    into->pow1 = strtod(p1, &end[1]);
    into->pow2 = strtod(p2, &end[2]);
    if (*end[0] != '\0' || *end[1] != '\0' || *end[2] != '\0' || into->steps < 0 || !(into->pow1 >= 0 && into->pow1 <= 1) ||
        !(into->pow2 >= 0 && into->pow2 <= 1))
        return tl_fail(err, TL_EFORMAT, "%.200s: optimizer state '%.30s' steps, powers '%.30s' and '%.30s' make no sense", path,
                       steps, p1, p2);
    return TL_OK;
}

/* Every tensor of the file exists in the model alike; buffers the model has not yet
 * (optimizer state) are reported by *absent. */
static tl_status check(tl_model *m, const tl_st_file *f, const char *path, int *absent, tl_err *err)
{
    *absent = 0;
    for (int i = 0; i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        tl_tensor x = tl_model_find(m, e.name);
        if (tl_is_none(x)) {
            if (strncmp(e.name, "adamw.", 6) != 0 && strncmp(e.name, "sgd.", 4) != 0)
                return tl_fail(err, TL_ENAME, "%.200s: has a tensor '%.100s' that the model has not", path, e.name);
            ++*absent;
            continue;
        }
        for (int k = 0; k < tl_model_count(m); k++) {
            tl_named t = tl_model_at(m, k);
            char a[TL_SHAPE_TEXT], b[TL_SHAPE_TEXT];
            if (strcmp(t.name, e.name) == 0 && (!tl_array_same_shape(&t.array, &e.array) || t.array.dtype != e.array.dtype))
                return tl_fail(err, TL_ESHAPE, "%.200s: '%.100s' is %s %s there, %s %s in the model", path, e.name,
                               tl_array_shape_text(a, &e.array), tl_dtype_name(e.array.dtype), tl_array_shape_text(b, &t.array),
                               tl_dtype_name(t.array.dtype));
        }
    }
    for (int k = 0; k < tl_model_count(m); k++)
        if (tl_model_at(m, k).param && tl_st_find(f, tl_model_at(m, k).name) < 0)
            return tl_fail(err, TL_ENAME, "%.200s: has no tensor '%.100s', which the model has", path, tl_model_at(m, k).name);
    return TL_OK;
}

/* Makes the absent buffers; needs a tape only to report on. */
static tl_status make_absent(tl_model *m, const tl_st_file *f, tl_err *err)
{
    tl_tape *t = tl_tape_new(m);
    for (int i = 0; t != NULL && i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        if (tl_is_none(tl_model_find(m, e.name)))
            tl_buffer(t, m, e.name, e.array.dtype, tl_array_shape(&e.array));
    }
    tl_status s = tl_failed(t) ? tl_fail(err, TL_ENOMEM, "tl_checkpoint_load: %.300s", tl_error(t)) : TL_OK;
    tl_free(t);
    return s;
}

tl_status tl_checkpoint_load(tl_model *m, tl_opt *opt, const char *path, const char *const *keys, char (*values)[TL_NOTE_MAX], int n)
{
    if (m == NULL)
        return TL_ENOMEM;
    tl_error_clear(m);
    tl_err *err = error_of(m);
    tl_st_file *f;
    tl_opt read = {.steps = 0};
    int absent;
    TL_TRY(tl_st_open(&f, path, err));
    tl_status s = opt != NULL ? read_optimizer(f, opt, path, &read, err) : TL_OK;
    if (s == TL_OK)
        s = check(m, f, path, &absent, err);
    if (s == TL_OK && absent > 0)
        s = make_absent(m, f, err);
    for (int i = 0; s == TL_OK && i < tl_st_count(f); i++) {
        tl_st_entry e = tl_st_at(f, i);
        s = tl_write(m, tl_model_find(m, e.name), e.array.data, (size_t)tl_array_count(&e.array) * tl_dtype_size(e.array.dtype));
    }
    for (int i = 0; s == TL_OK && i < n; i++) {
        const char *v = tl_st_meta_get(f, keys[i]);
        snprintf(values[i], TL_NOTE_MAX, "%s", v == NULL ? "" : v);
    }
    if (s == TL_OK && opt != NULL) {
        opt->steps = read.steps;
        opt->pow1 = read.pow1;
        opt->pow2 = read.pow2;
    }
    tl_st_close(f);
    return s;
}
