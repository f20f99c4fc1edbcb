/* checkpoint.c: writes a model, its optimizer, gradients under way and notes to one safetensors
 * file. */
#include <inttypes.h>
#include <stdlib.h>

#include "nn/files.h"
#include "nn/opt.h"
#include "tensor/files/file.h"
#include "tensor/memory.h"

enum { OWN_NOTES = 6 };

tl_status tl_checkpoint_begin(tl_model *m, tl_tape *t, const tl_opt *opt, const char *who)
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
    return t == NULL ? TL_OK : tl_error_status(t); /* a failed tape may hold half a gradient */
}

/* The entries of a file while they are collected. */
typedef struct {
    tl_st_entry *e;
    char (*name)[TL_GRADIENT_NAME]; /* of the gradients' entries */
    int n;
} entries;

/* Adds grad.CALL.KIND.NAME for each accumulator. NAME begins with "=" for a value that is made of
 * parameters alone. A parameter that backward has reached without a gradient is grad.0..NAME, a
 * single 0. */
static tl_status add_gradients(entries *x, tl_tape *t, tl_err *err)
{
    static int64_t nothing;
    tl_accumulating g;
    for (int i = 0; (g = tl_accumulating_at(t, i)).param != NULL; i++) {
        if (*g.param == '\0') /* the name of a derived value is put together when it is asked for */
            return tl_fail(err, TL_ENOMEM, "no memory for a gradient's name");
        /* a model in which it is frozen would refuse the file */
        if (tl_model_named(tl_tape_model(t), g.param).frozen)
            return tl_fail(err, TL_EUSAGE,
                           "'%.100s' was frozen after it got a gradient; thaw it "
                           "(tl_model_freeze), or clear the gradients (tl_grad_clear)",
                           g.param);
        char *at = x->name[i] + snprintf(x->name[i], TL_GRADIENT_NAME, "grad.%d.", g.call);
        for (const char *k = g.kind; *k != '\0'; k++) /* the name of a user's op may have dots */
            *at++ = *k == '.' ? TL_GRADIENT_DOT : *k;
        snprintf(at, TL_GRADIENT_NAME - (size_t)(at - x->name[i]), ".%s", g.param);
        if (*g.kind == '\0')
            g.array = tl_array_make(TL_I64, &TL_SCALAR, &nothing);
        x->e[x->n++] = (tl_st_entry){x->name[i], g.array};
    }
    return TL_OK;
}

/* State without an owner starts at zero when an optimizer takes it, so what it holds is not saved.
 * (Masters have no owner either, but are saved: they belong to their parameters.) */
static bool is_forgotten(tl_model *m, const tl_opt *opt, const tl_named *x)
{
    return opt != NULL && !opt->gathered && tl_opt_is_state(m, x) &&
           strncmp(x->name, "master.", 7) != 0 && tl_opt_state_owner(m, x) == NULL;
}

/* t and opt may be NULL. */
static tl_status write_file(tl_model *m, tl_tape *t, const tl_opt *opt, const char *path,
                            const tl_st_meta *meta, int n_meta)
{
    tl_err *err = tl_error_record(m);
    int count = tl_model_count(m), more = tl_accumulating_count(t);
    entries x = {.e = tl_calloc((size_t)(count + more) + 1, sizeof *x.e),
                 .name = tl_calloc((size_t)more + 1, sizeof *x.name)};
    tl_status s = TL_OK;
    if (tl_waiting_at(t, 0) != NULL)
        s = tl_fail(err, TL_EUSAGE, "a gradient of '%s' waits for tl_accumulate",
                    tl_waiting_at(t, 0));
    else if (x.e == NULL || x.name == NULL)
        s = tl_fail(err, TL_ENOMEM, "no memory for %d entries", count + more);
    for (int i = 0; s == TL_OK && i < count; i++) {
        tl_named p = tl_model_at(m, i);
        if (!is_forgotten(m, opt, &p))
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

static tl_status check_notes(const tl_note *notes, int n, const char *who, tl_err *err)
{
    TL_TRY(tl_need(err, who, "notes", notes != NULL, n));
    for (int i = 0; i < n; i++) {
        TL_TRY(tl_need(err, who, "a note's key or value",
                       notes[i].key != NULL && notes[i].value != NULL, 1));
        if (strncmp(notes[i].key, "tally.", 6) == 0)
            return tl_fail(err, TL_ENAME, "the note '%.60s': 'tally.' begins the library's own",
                           notes[i].key);
        if (strlen(notes[i].value) >= TL_NOTE_MAX)
            return tl_fail(err, TL_EDOMAIN,
                           "the note '%.60s' has %zu bytes; at most %d are possible", notes[i].key,
                           strlen(notes[i].value), TL_NOTE_MAX - 1);
    }
    return TL_OK;
}

/* The names of the state that other optimizers own, one a line; empty if there is none, NULL
 * without memory. Free it with free. */
static char *state_of_others(tl_model *m, const tl_opt *opt)
{
    char *text = NULL;
    size_t bytes;
    FILE *list = open_memstream(&text, &bytes);
    for (int i = 0; list != NULL && opt != NULL && i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        const void *whose = tl_opt_state_owner(m, &x);
        if (whose != NULL && whose != opt)
            fprintf(list, "%s\n", x.name);
    }
    if (tl_text_close(list, &text))
        return text;
    free(text);
    return NULL;
}

static tl_status save(tl_model *m, tl_tape *t, const tl_opt *opt, const char *path,
                      const tl_note *notes, int n)
{
    tl_err *err = tl_error_record(m);
    char steps[32], seed[32], lr[TL_OPT_NUMBER];
    const char *who = t == NULL ? "tl_checkpoint_save" : "tl_checkpoint_save_tape";
    TL_TRY(tl_need(err, who, "path", path != NULL, 1));
    TL_TRY(check_notes(notes, n, who, err));
    if (opt != NULL && opt->o.parts > 1 && !opt->gathered)
        return tl_fail(err, TL_EUSAGE,
                       "the optimizer has the state of part %d of %d; "
                       "tl_group_save gathers that of all",
                       opt->o.part, opt->o.parts);
    tl_st_meta *meta = tl_calloc((size_t)(n + OWN_NOTES), sizeof *meta), *end = meta;
    char *others = state_of_others(m, opt);
    if (meta == NULL || others == NULL) {
        tl_free_raw(meta);
        free(others);
        return tl_fail(err, TL_ENOMEM, "no memory for %d notes", n);
    }
    for (int i = 0; i < n; i++)
        *end++ = (tl_st_meta){notes[i].key, notes[i].value};
    snprintf(seed, sizeof seed, "%" PRIu64, tl_model_seed(m));
    *end++ = (tl_st_meta){"tally.seed", seed};
    *end++ = (tl_st_meta){TL_ST_SEAL, ""};
    if (opt != NULL) {
        snprintf(steps, sizeof steps, "%" PRId64, opt->steps);
        *end++ = (tl_st_meta){"tally.optimizer", opt->name};
        *end++ = (tl_st_meta){"tally.steps", steps};
        if (opt->lr_set)
            *end++ = (tl_st_meta){"tally.lr", tl_opt_number(lr, opt->o.lr)};
        if (*others != '\0')
            *end++ = (tl_st_meta){"tally.others", others};
    }
    tl_status s = write_file(m, t, opt, path, meta, (int)(end - meta));
    tl_free_raw(meta);
    free(others);
    return s;
}

tl_status tl_checkpoint_writable(tl_model *m, const char *path)
{
    TL_TRY(tl_error_begin(m));
    TL_TRY(TL_NEED(tl_error_record(m), path));
    return tl_told_by("tl_checkpoint_writable", tl_file_writable(path, tl_error_record(m)), m);
}

tl_status tl_checkpoint_save(tl_model *m, const tl_opt *opt, const char *path, const tl_note *notes,
                             int n)
{
    TL_TRY(tl_checkpoint_begin(m, NULL, opt, "tl_checkpoint_save"));
    return tl_told_by("tl_checkpoint_save", save(m, NULL, opt, path, notes, n), m);
}

tl_status tl_checkpoint_save_tape(tl_tape *t, const tl_opt *opt, const char *path,
                                  const tl_note *notes, int n)
{
    tl_model *m = tl_tape_model(t);
    TL_TRY(tl_checkpoint_begin(m, t, opt, "tl_checkpoint_save_tape"));
    return tl_told_by("tl_checkpoint_save_tape", save(m, t, opt, path, notes, n), m);
}
