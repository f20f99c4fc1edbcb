/* print.c: a graph as text with a line for each node, as DOT for Graphviz, and why its values are
 * kept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/graph/internal.h"
#include "tensor/threads.h"

enum { TEXT = 256 };

/* "812 bytes", "4.2 KB", "17.0 MB". */
enum { BYTES_TEXT = 32 };
static const char *bytes_text(size_t bytes, char buf[BYTES_TEXT])
{
    tl_textenv saved = tl_textenv_enter();
    if (bytes < 1000)
        snprintf(buf, BYTES_TEXT, "%zu byte%s", bytes, bytes == 1 ? "" : "s");
    else
        snprintf(buf, BYTES_TEXT, "%.1f %s", (double)bytes / (bytes < 999950 ? 1e3 : 1e6),
                 bytes < 999950 ? "KB" : "MB");
    tl_textenv_leave(saved);
    return buf;
}

/* Results are numbered in the order in which they are made; leaves have names. */
static void number_results(tl_graph *g)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < g->n_order; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        for (int j = 0; j < n->n_out; j++)
            g->value[n->out + (uint32_t)j].number = next++;
    }
}

/* grad(w); grad(w)#1 for its second accumulator; grad(w)'1 for the one in the second part of the
 * program. */
static void accumulator_text(const tl_graph *g, tl_leaf l, char buf[TEXT])
{
    const tl_leaf_grad *r = &g->t->grad[l.at];
    int n = snprintf(buf, TEXT, "grad(%.200s)", tl_leaf_name(g->t, r->leaf));
    if (l.use > 0)
        n += snprintf(buf + n, TEXT - (size_t)n, "#%u", l.use);
    if (tl_grad_part(g->t, (int)l.at) > 0)
        snprintf(buf + n, TEXT - (size_t)n, "'%d", tl_grad_part(g->t, (int)l.at));
}

/* The value that x shows, found through stand-ins and detached leaves. */
static tl_tensor shown(const tl_graph *g, tl_tensor x)
{
    for (;;) {
        tl_tensor y = tl_graph_resolve(g, tl_attached(g->t, x));
        if (tl_same_handle(x, y))
            return x;
        x = y;
    }
}

static const char *value_text(const tl_graph *g, tl_tensor x, char buf[TEXT])
{
    x = shown(g, x);
    const tl_leaf l = tl_leaf_of(g->t, x);
    switch (l.kind) {
    case TL_LEAF_INPUT: snprintf(buf, TEXT, "in%u", l.at); break;
    case TL_LEAF_BOUND: snprintf(buf, TEXT, "host%u", l.at); break;
    case TL_LEAF_CONSTANT: snprintf(buf, TEXT, "const%u", l.at); break;
    case TL_LEAF_ACC: accumulator_text(g, l, buf); break;
    case TL_LEAF_NONE:
        if (tl_is_none(x))
            return "-";
        if (x.owner != g->t->values.owner)
            snprintf(buf, TEXT, "%.250s", tl_leaf_name(g->t, x));
        else
            snprintf(buf, TEXT, "%%%u", g->value[x.index].number);
    }
    return buf;
}

static const char *short_file(const char *file)
{
    const char *slash = file == NULL ? NULL : strrchr(file, '/');
    return file == NULL ? "?" : slash == NULL ? file : slash + 1;
}

static tl_status written(tl_graph *g, FILE *f, const char *what)
{
    return ferror(f) ? tl_fail(&g->head.err, TL_EIO, "the %s could not be written", what) : TL_OK;
}

static void print_node(const tl_graph *g, FILE *f, uint32_t i)
{
    const tl_node *n = &g->t->node[i];
    char text[TEXT];
    int width = 0;
    for (int j = 0; j < n->n_out; j++)
        width += fprintf(f, "%s%%%u", j == 0 ? "  " : ", ", g->value[n->out + (uint32_t)j].number);
    fprintf(f, "%*s = %s(", width < 12 ? 12 - width : 0, "", n->op->name);
    for (int k = 0; k < n->n_in; k++)
        fprintf(f, "%s%s", k == 0 ? "" : ", ", value_text(g, n->in[k], text));
    fprintf(f, ")%s", tl_attrs_text(n->op, n->attrs, text));
    for (int j = 0; j < n->n_out; j++) {
        const tl_array *a = &tl_values_at(&g->t->values, n->out + (uint32_t)j)->a;
        fprintf(f, "%s %s %s", j == 0 ? " :" : ",", tl_dtype_name(a->dtype), TL_TEXT(a));
    }
    fprintf(f, "%s%s   # %s:%d\n", n->op->traits & TL_VIEW ? "  view" : "",
            tl_inlined(g, i) ? "  inlined" : "", short_file(n->file), n->line);
}

static const char *plural(int n) { return n == 1 ? "" : "s"; }

tl_status tl_graph_print(tl_graph *g, FILE *f)
{
    TL_TRY(tl_graph_there(g, __func__));
    TL_TRY(TL_NEED(&g->head.err, f));
    char text[TEXT];
    number_results(g);
    fprintf(f,
            "graph: %d input%s, %d output%s, %d node%s recorded, %d needed, run in %d step%s, slab "
            "%s\n",
            g->n_in, plural(g->n_in), g->n_out, plural(g->n_out), g->stats.nodes,
            plural(g->stats.nodes), g->stats.needed, g->stats.steps, plural(g->stats.steps),
            bytes_text(g->stats.slab, text));
    for (int i = 0; i < g->n_in; i++) {
        const tl_array *a = tl_graph_array(g, g->in[i]);
        fprintf(f, "  in%d : %s %s\n", i, tl_dtype_name(a->dtype), TL_TEXT(a));
    }
    for (uint32_t i = 0; i < g->n_order; i++)
        print_node(g, f, g->order[i]);
    for (int i = 0; i < g->n_out; i++)
        fprintf(f, "%s%s%s", i == 0 ? "  return " : ", ", value_text(g, g->out[i], text),
                i == g->n_out - 1 ? "\n" : "");
    return written(g, f, "graph");
}

/* ---- DOT: attributes and places are tooltips, which an SVG shows under the mouse ---- */

static const char *colour(const tl_graph *g, const tl_node *n, uint32_t i)
{
    if (n->op->traits & TL_VIEW)
        return "white";
    if (tl_node_mutates(n))
        return "#f6c6c6"; /* changes something outside */
    if (tl_inlined(g, i))
        return "#e8e8e8";
    return n->op->traits & TL_POINTWISE   ? "#d5e8d4"
           : n->op->traits & TL_REDUCTION ? "#fff2cc"
                                          : "#dae8fc";
}

/* s escaped for a quoted string of DOT. */
static const char *quoted(const char *s, char to[2 * TEXT])
{
    size_t n = 0;
    for (; *s != '\0' && n + 3 < 2 * TEXT; s++) {
        if (*s == '"' || *s == '\\')
            to[n++] = '\\';
        to[n++] = *s;
    }
    to[n] = '\0';
    return to;
}

/* A leaf is drawn once for each node that reads it: one picture of a parameter would draw lines
 * across the whole graph. */
static void dot_leaf(const tl_graph *g, FILE *f, uint32_t node, int k, tl_tensor x)
{
    char text[TEXT], safe[2 * TEXT];
    fprintf(f,
            "  l%u_%d [label=\"%s\", shape=plaintext, style=\"\", fontcolor=\"#666666\", "
            "fontsize=9];\n  l%u_%d -> n%u [color=\"#bbbbbb\"];\n",
            node, k, quoted(value_text(g, x, text), safe), node, k, node);
}

static void dot_node(const tl_graph *g, FILE *f, uint32_t i)
{
    const tl_node *node = &g->t->node[i];
    char attrs[TEXT], shape[TL_SHAPE_TEXT] = "", safe[3][2 * TEXT];
    if (node->n_out > 0)
        tl_array_shape_text(shape, &tl_values_at(&g->t->values, node->out)->a);
    fprintf(f, "  n%u [label=\"%s\\n%s\", tooltip=\"%s:%d%s\", fillcolor=\"%s\"%s];\n", i,
            quoted(node->op->name, safe[0]), shape, quoted(short_file(node->file), safe[1]),
            node->line, quoted(tl_attrs_text(node->op, node->attrs, attrs), safe[2]),
            colour(g, node, i),
            node->op->traits & TL_VIEW || tl_inlined(g, i) ? ", style=\"rounded,filled,dashed\""
                                                           : "");
    for (int k = 0; k < node->n_in; k++) {
        tl_tensor x = shown(g, node->in[k]);
        if (tl_is_none(x))
            continue;
        int32_t from = tl_maker_at(g->t, x);
        if (from < 0)
            dot_leaf(g, f, i, k, x);
        else
            fprintf(f, "  n%d -> n%u;\n", from, i);
    }
}

tl_status tl_graph_dot(tl_graph *g, FILE *f)
{
    TL_TRY(tl_graph_there(g, __func__));
    TL_TRY(TL_NEED(&g->head.err, f));
    number_results(g);
    fputs("digraph tally {\n  rankdir=TB;\n  node [shape=box, style=\"rounded,filled\", "
          "fontname=\"Helvetica\", fontsize=11];\n  edge [arrowsize=0.6];\n",
          f);
    for (uint32_t i = 0; i < g->n_order; i++)
        dot_node(g, f, g->order[i]);
    for (int i = 0; i < g->n_out; i++) {
        tl_tensor x = tl_graph_resolve(g, g->out[i]);
        int32_t from = tl_maker_at(g->t, x);
        char text[TEXT], safe[2 * TEXT];
        fprintf(f, "  out%d [label=\"output %d%s%s\", shape=ellipse, fillcolor=\"#ffe6cc\"];\n", i,
                i, from < 0 ? ": " : "", from < 0 ? quoted(value_text(g, x, text), safe) : "");
        if (from >= 0)
            fprintf(f, "  n%d -> out%d;\n", from, i);
    }
    fputs("}\n", f);
    return written(g, f, "graph");
}

/* ---- why each value is kept or computed again ---- */

/* Writes a line for each value that was asked about, and counts those that are kept: kept[true]. */
static void explain_all(const tl_graph *g, const tl_decision *list, const char *otherwise, FILE *f,
                        int kept[2])
{
    for (uint32_t i = 0; i < g->n_order && list != NULL; i++) {
        const tl_node *n = &g->t->node[g->order[i]];
        const tl_decision *d = &list[g->order[i]];
        if (d->answer.rule == NULL)
            continue;
        const tl_array *a = &tl_values_at(&g->t->values, n->out)->a;
        fprintf(f,
                "%-14s %-5s%-20s %5d %12" PRId64 " %12" PRId64 " %12" PRId64 " %12" PRId64
                "  %-7s %-20s %.40s:%d\n",
                n->op->name, tl_dtype_name(a->dtype), TL_TEXT(a), d->question.users,
                d->question.read, d->question.written, d->answer.inlined, d->answer.kept,
                d->answer.keep ? "kept" : otherwise, d->answer.rule, short_file(n->file), n->line);
        kept[d->answer.keep]++;
    }
}

tl_status tl_graph_explain(tl_graph *g, FILE *f)
{
    TL_TRY(tl_graph_there(g, __func__));
    TL_TRY(TL_NEED(&g->head.err, f));
    int kept[2] = {0}, resting[2] = {0};
    fprintf(f, "%-14s %-25s %5s %12s %12s %12s %12s  %-7s %-20s %s\n", "value", "", "users",
            "T read", "O written", "inline T*u", "keep", "verdict", "rule", "place");
    explain_all(g, g->decision, "inlined", f, kept);
    fputs("kept from forward to backward, or computed again there (two users):\n", f);
    explain_all(g, g->rest, "again", f, resting);
    if (resting[false] + resting[true] == 0)
        fputs("(none)\n", f);
    char text[4][BYTES_TEXT];
    fprintf(f,
            "%d values kept, %d inlined; %d kept for backward, %d computed again; a run writes %s "
            "and reads %s of values; slab %s, side by side %s\n",
            kept[true], kept[false], resting[true], resting[false],
            bytes_text(g->stats.written, text[0]), bytes_text(g->stats.read, text[1]),
            bytes_text(g->stats.slab, text[2]), bytes_text(g->stats.values, text[3]));
    return written(g, f, "explanation");
}
