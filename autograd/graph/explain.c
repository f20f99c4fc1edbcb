/* explain.c: why each value is kept or computed again, in lines. */
#include <inttypes.h>
#include <string.h>

#include "autograd/graph/internal.h"

static const char *short_file(const char *file)
{
    const char *slash = file == NULL ? NULL : strrchr(file, '/');
    return file == NULL ? "?" : slash == NULL ? file : slash + 1;
}

const char *tl_bytes_text(size_t bytes, char buf[TL_BYTES_TEXT])
{
    if (bytes < 1000)
        snprintf(buf, TL_BYTES_TEXT, "%zu byte%s", bytes, bytes == 1 ? "" : "s");
    else
        snprintf(buf, TL_BYTES_TEXT, "%.1f %s", (double)bytes / (bytes < 999950 ? 1e3 : 1e6),
                 bytes < 999950 ? "KB" : "MB");
    return buf;
}

static void explain_one(const tl_graph *g, uint32_t i, const tl_decision *d, const char *otherwise,
                        FILE *f)
{
    const tl_node *n = &g->t->node[i];
    const tl_array *a = &tl_values_at(&g->t->values, n->out)->a;
    char shape[TL_SHAPE_TEXT], place[64];
    snprintf(place, sizeof place, "%.40s:%d", short_file(n->file), n->line);
    fprintf(f,
            "%-14s %-5s%-20s %5d %12" PRId64 " %12" PRId64 " %12" PRId64 " %12" PRId64
            "  %-7s %-20s %s\n",
            n->op->name, tl_dtype_name(a->dtype), tl_array_shape_text(shape, a), d->question.users,
            d->question.read, d->question.written, d->answer.inlined, d->answer.kept,
            d->answer.keep ? "kept" : otherwise, d->answer.rule, place);
}

/* A line for each value that was asked about; how many are kept, and how many not. */
static void explain_all(const tl_graph *g, const tl_decision *list, const char *otherwise, FILE *f,
                        int *kept, int *not_kept)
{
    *kept = *not_kept = 0;
    for (uint32_t i = 0; i < g->n_order && list != NULL; i++) {
        const tl_decision *d = &list[g->order[i]];
        if (!d->asked)
            continue;
        explain_one(g, g->order[i], d, otherwise, f);
        *(d->answer.keep ? kept : not_kept) += 1;
    }
}

tl_status tl_graph_explain(tl_graph *g, FILE *f)
{
    TL_TRY(tl_graph_there(g, __func__));
    TL_TRY(TL_NEED(&g->head.err, f));
    int kept, inlined, resting, again;
    fprintf(f, "%-14s %-25s %5s %12s %12s %12s %12s  %-7s %-20s %s\n", "value", "", "users",
            "T read", "O written", "inline T*u", "keep", "verdict", "rule", "place");
    explain_all(g, g->decision, "inlined", f, &kept, &inlined);
    fputs("kept from forward to backward, or computed again there (two users):\n", f);
    explain_all(g, g->rest, "again", f, &resting, &again);
    char text[4][TL_BYTES_TEXT];
    fprintf(f,
            "%d values kept, %d inlined; %d kept for backward, %d computed again; a run writes %s "
            "and reads %s of values; slab %s, side by side %s\n",
            kept, inlined, resting, again, tl_bytes_text(g->stats.written, text[0]),
            tl_bytes_text(g->stats.read, text[1]), tl_bytes_text(g->stats.slab, text[2]),
            tl_bytes_text(g->stats.values, text[3]));
    return ferror(f) ? tl_fail(&g->head.err, TL_EIO, "the explanation could not be written")
                     : TL_OK;
}
