/* agree.c: what ranks tell each other: counts, and what must be the same in all of them. It also
 * refuses what would differ for another number of ranks. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/group/internal.h"
#include "nn/layers.h"
#include "nn/opt.h"

/* Adds up n from rank 0 to the last, whose sum goes round to all. */
static tl_status count(tl_group *g, int64_t n, int64_t *all)
{
    int unused = 0;
    if (g->link.rank > 0)
        TL_TRY(tl_group_receive_number(g, COUNT, &unused, all));
    *all += n;
    if (!is_last(g))
        TL_TRY(tl_group_send(g, COUNT, 0, all, sizeof *all));
    TL_TRY(tl_group_round(g, COUNT, &unused, all));
    return tl_group_settle(g, NULL);
}

int64_t tl_group_count(tl_group *g, int64_t n)
{
    int64_t all = 0;
    if (tl_group_size(g) == 1)
        return n;
    if (tl_group_begins(g) == TL_OK)
        count(g, n, &all);
    return tl_group_ends(g) == TL_OK ? all : 0;
}

tl_status tl_group_promise(tl_group *g, tl_at at, tl_tensor y)
{
    char why[TL_MESSAGE_MAX / 2], text[TL_MESSAGE_MAX];
    if (tl_batch_of(at.tape, y) == TL_FREE && !is_last(g)) {
        snprintf(text, sizeof text,
                 "a loss of parameters alone would count once for each of %d ranks; call its "
                 "tl_backward (.partial, .ragged) after tl_group_share or, with .put_off before "
                 "tl_group_fold, in the last rank alone",
                 g->link.size);
    } else {
        if (tl_explain_invariance(at.tape, y, why, sizeof why) <= 0)
            return tl_error_status(at.tape);
        why[strcspn(why, "\n")] = 0;
        snprintf(text, sizeof text, "the hash would depend on how many ranks there are: %s", why);
    }
    tl_group_over(g, text);
    return tl_tape_fail(at, TL_EUSAGE, "tl_group: %s", text);
}

tl_status tl_group_parts_meet(tl_group *g, const head *h)
{
    const int64_t from = g->link.rank == 0 ? 0 : h->until, of = g->part.of;
    if (g->link.rank > 0 && (h->of != of || from != g->part.first))
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group: rank %d takes samples from %" PRId64 " on, of %" PRId64
                             "; those of rank %d ended at %" PRId64 " of %" PRId64,
                             g->link.rank, g->part.first, of, rank_before(g), h->until, h->of);
    const int64_t until = g->part.first + g->part.n;
    if (from != g->part.first || (is_last(g) && until != of))
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group: rank %d of %d takes samples %" PRId64 " to %" PRId64
                             " of %" PRId64 ": the first is missing, or the last",
                             g->link.rank, g->link.size, g->part.first, until, of);
    return TL_OK;
}

tl_status tl_group_programs_meet(tl_group *g, const head *h)
{
    const uint64_t mine = tl_programs(g->t),
                   came = g->link.rank > 0 || g->round > 0 ? h->program : 0;
    const int64_t before = g->link.rank > 0 ? h->until : 0; /* samples of the ranks before */
    if (mine == 0 && came > 1 && g->part.n > 0)
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group_fold: rank %d takes %" PRId64
                             " samples and calls no tl_backward; rank %d or one before it does",
                             g->link.rank, g->part.n, rank_before(g));
    if (mine > 1 && came == 0 && before > 0)
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group_fold: the ranks before rank %d take %" PRId64
                             " samples and call no tl_backward; rank %d does",
                             g->link.rank, before, g->link.rank);
    if (mine > 1 && came > 1 && mine != came)
        return tl_group_fail(g, TL_EUSAGE,
                             "tl_group_fold: rank %d runs another program than rank %d or one "
                             "before it: other ops, or another number of tl_backward",
                             g->link.rank, rank_before(g));
    g->program = mine > 1 || came == 0 ? mine : came;
    return TL_OK;
}

/* ---- what must be the same in every rank: a list of keys and values, each with its NUL ---- */

static void add(FILE *list, const char *key, const char *value)
{
    fprintf(list, "%s%c%s%c", key, 0, value, 0);
}

static void add_number(FILE *list, const char *key, double x)
{
    char text[TL_OPT_NUMBER];
    add(list, key, tl_opt_number(text, x));
}

/* All that decides an update, except the state of each parameter. */
static void add_optimizer(FILE *list, const tl_opt *o)
{
    const tl_schedule *s = &o->o.schedule;
    add(list, "the optimizer", o->name);
    add_number(list, "optimizer's steps", (double)o->steps);
    add_number(list, "lr", o->o.lr);
    add_number(list, "momentum", o->o.momentum);
    add_number(list, "weight_decay", o->o.weight_decay);
    add_number(list, "beta1", o->o.beta1);
    add_number(list, "beta2", o->o.beta2);
    add_number(list, "eps", o->o.eps);
    add_number(list, "clip", o->o.clip);
    add_number(list, "nesterov", o->o.nesterov);
    add_number(list, "decoupled", o->o.decoupled);
    add_number(list, "schedule.kind", s->kind);
    add_number(list, "schedule.warmup", (double)s->warmup);
    add_number(list, "schedule.total", (double)s->total);
    add_number(list, "schedule.min_ratio", s->min_ratio);
    add_number(list, "schedule.decay", (double)s->decay);
    for (int i = 0; i < o->n_groups; i++) {
        add(list, "tl_opt_group of", o->group[i].pattern);
        add_number(list, "its lr_scale", o->group[i].lr_scale);
        add_number(list, "its weight_decay", o->group[i].weight_decay);
    }
}

char *tl_group_settings(tl_group *g, size_t *bytes)
{
    const tl_opt *o = g->opt != NULL ? g->opt : g->stepped;
    char *text = NULL;
    *bytes = 0;
    FILE *list = open_memstream(&text, bytes);
    if (list != NULL && tl_object_given(o))
        add_optimizer(list, o);
    const bool whole = list != NULL && !ferror(list);
    if ((list != NULL && fclose(list) != 0) || !whole || text == NULL) {
        tl_group_fail(g, TL_ENOMEM, "tl_group: no memory for an optimizer's settings");
        free(text);
        return NULL;
    }
    return text;
}

static tl_status write_list(tl_group *g, const tl_note *notes, int n, FILE *list)
{
    tl_model *m = tl_tape_model(g->t);
    char text[256], hex[65];
    snprintf(text, sizeof text, "%d", g->link.size);
    add(list, "processes", text);
    snprintf(text, sizeof text, "%" PRIu64, tl_model_seed(m));
    add(list, "seed", text);
    for (int i = 0; i < n; i++)
        add(list, notes[i].key, notes[i].value);
    if (tl_object_given(g->opt)) /* cut: it decides what each rank does to its part */
        add_optimizer(list, g->opt);
    for (int i = 0; i < tl_model_count(m); i++) {
        const tl_named x = tl_model_at(m, i);
        if (g->sharded && tl_opt_is_state(m, &x))
            continue; /* each rank has that of other parameters */
        if (!x.param && tl_is_rotary_table(x.name, &x.array))
            continue; /* ranks may have seen other lengths; contents follow from names */
        TL_TRY(tl_sha256(g->t, x.tensor, hex));
        snprintf(text, sizeof text, "%s %s %s%s, sha256 %.16s", x.param ? "parameter" : "buffer",
                 tl_dtype_name(x.array.dtype), TL_TEXT(&x.array), x.frozen ? " frozen" : "", hex);
        add(list, x.name, text);
    }
    return TL_OK;
}

void tl_group_compare(const tl_group *g, const char *mine, size_t n, int whose, const char *its,
                      size_t bytes, char out[TL_MESSAGE_MAX])
{
    const char *a = mine, *b = its;
    *out = '\0';
    while (a < mine + n && b < its + bytes) {
        const char *va = a + strlen(a) + 1, *vb = b + strlen(b) + 1;
        if (vb > its + bytes) /* no rank writes such a list; a NUL ends it */
            vb = its + bytes;
        if (strcmp(a, b) != 0 || strcmp(va, vb) != 0) {
            size_t same = 0; /* of long values only the part around the difference is shown */
            while (strcmp(a, b) == 0 && va[same] != '\0' && va[same] == vb[same])
                same++;
            const size_t from = same > 80 ? same - 20 : 0;
            const char *cut = from > 0 ? "..." : "";
            snprintf(out, TL_MESSAGE_MAX, "rank %d has %.60s %s%.100s, rank %d has %.60s%s%s%.100s",
                     g->link.rank, a, cut, va + from, whose, strcmp(a, b) == 0 ? "" : b,
                     strcmp(a, b) == 0 ? "" : " ", cut, vb + from);
            return;
        }
        a = va + strlen(va) + 1;
        b = vb + strlen(vb) + 1;
    }
    const bool more = a < mine + n;
    if (more || b < its + bytes)
        snprintf(out, TL_MESSAGE_MAX, "rank %d has %s %.100s, unlike rank %d", g->link.rank,
                 more ? "a" : "no", more ? a : b, whose);
}

/* Rank 0's list goes from rank to rank, followed by the first difference from it that a rank has
 * found. From the last rank that difference goes round to all. */
static tl_status agree(tl_group *g, const char *list, size_t bytes)
{
    char differs[TL_MESSAGE_MAX] = "", own[TL_MESSAGE_MAX];
    head h;
    if (g->link.rank == 0) {
        TL_TRY(tl_group_send(g, NOTES, 0, list, bytes));
    } else {
        TL_TRY(tl_group_expect(g, &h, NOTES));
        tl_group_compare(g, list, bytes, 0, g->text, (size_t)h.bytes, own);
        TL_TRY(is_last(g) ? TL_OK : tl_group_send(g, NOTES, 0, g->text, (size_t)h.bytes));
        TL_TRY(tl_group_expect(g, &h, NOTES));
        snprintf(differs, sizeof differs, "%s", *g->text != '\0' ? g->text : own);
    }
    if (!is_last(g)) {
        TL_TRY(tl_group_send(g, NOTES, 0, differs, strlen(differs)));
        TL_TRY(tl_group_expect(g, &h, NOTES));
        snprintf(differs, sizeof differs, "%s", g->text);
    }
    if (hands_on(g))
        TL_TRY(tl_group_send(g, NOTES, 0, differs, strlen(differs)));
    TL_TRY(tl_group_settle(g, NULL));
    if (*differs == '\0')
        return TL_OK;
    g->told = true; /* all ranks fail */
    return tl_group_fail(g, TL_EUSAGE, "tl_group_agree: %s", differs);
}

tl_status tl_group_agree(tl_group *g, const tl_note *notes, int n)
{
    tl_err e = {.status = TL_OK};
    tl_need(&e, __func__, "notes", notes != NULL, n);
    for (int i = 0; i < n && e.status == TL_OK; i++)
        tl_need(&e, __func__, "a note", notes[i].key != NULL && notes[i].value != NULL, 1);
    if (e.status != TL_OK && g != NULL)
        tl_group_fail(g, e.status, "%s", e.message);
    if (tl_group_size(g) == 1)
        return e.status;
    char *text = NULL;
    size_t bytes = 0;
    if (tl_group_begins(g) == TL_OK) {
        FILE *list = open_memstream(&text, &bytes);
        const tl_status s = list == NULL ? TL_OK : write_list(g, notes, n, list);
        const bool whole = list != NULL && !ferror(list);
        if ((list != NULL && fclose(list) != 0) || !whole || text == NULL)
            tl_group_fail(g, TL_ENOMEM, "tl_group_agree: no memory");
        else if (s == TL_OK)
            agree(g, text, bytes);
    }
    free(text);
    return tl_group_ends(g);
}
