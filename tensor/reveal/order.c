/* order.c: the tree. Children hang on a list from their parent, sorted by least term. */
#include "tensor/reveal/order.h"

#include <stdlib.h>

struct tl_order {
    int64_t n, nodes;                              /* terms; terms and additions so far */
    int64_t *parent, *child, *next, *size, *least; /* -1: none. At most 2n - 1 nodes */
};

tl_order *tl_order_new(int64_t n)
{
    if (n < 1 || n > INT64_MAX / 128)
        return NULL;
    tl_order *o = calloc(1, sizeof *o);
    int64_t *room = malloc((size_t)(2 * n - 1) * 5 * sizeof *room);
    if (o == NULL || room == NULL) {
        free(o);
        free(room);
        return NULL;
    }
    int64_t most = 2 * n - 1;
    *o = (tl_order){n, n, room, room + most, room + 2 * most, room + 3 * most, room + 4 * most};
    for (int64_t i = 0; i < n; i++) {
        o->parent[i] = o->child[i] = o->next[i] = -1;
        o->size[i] = 1;
        o->least[i] = i;
    }
    return o;
}

void tl_order_free(tl_order *o)
{
    if (o != NULL)
        free(o->parent);
    free(o);
}

static bool there(const tl_order *o, int64_t v) { return o != NULL && v >= 0 && v < o->nodes; }
static bool is_free(const tl_order *o, int64_t v) { return there(o, v) && o->parent[v] < 0; }

int64_t tl_order_terms(const tl_order *o) { return o == NULL ? 0 : o->n; }
int64_t tl_order_size(const tl_order *o, int64_t node)
{
    return there(o, node) ? o->size[node] : 0;
}
int64_t tl_order_least(const tl_order *o, int64_t node)
{
    return there(o, node) ? o->least[node] : -1;
}

/* Puts v among the children of node, where its least term belongs. */
static void hang(tl_order *o, int64_t node, int64_t v)
{
    int64_t *at = &o->child[node];
    while (*at >= 0 && o->least[*at] < o->least[v])
        at = &o->next[*at];
    o->next[v] = *at;
    *at = v;
    o->parent[v] = node;
    o->size[node] += o->size[v];
    if (o->least[v] < o->least[node])
        o->least[node] = o->least[v];
}

int64_t tl_order_add(tl_order *o, const int64_t *value, int k)
{
    if (o == NULL || value == NULL || k < 2 || o->nodes >= 2 * o->n - 1)
        return -1;
    int64_t node = o->nodes;
    for (int i = 0; i < k; i++) {
        if (!is_free(o, value[i]))
            return -1;
        for (int j = 0; j < i; j++)
            if (value[j] == value[i])
                return -1;
    }
    o->nodes++;
    o->parent[node] = o->child[node] = o->next[node] = -1;
    o->size[node] = 0;
    o->least[node] = o->n;
    for (int i = 0; i < k; i++)
        hang(o, node, value[i]);
    return node;
}

int64_t tl_order_add2(tl_order *o, int64_t a, int64_t b)
{
    if (a < 0 || b < 0)
        return a < 0 ? b : a;
    return tl_order_add(o, (int64_t[]){a, b}, 2);
}

int64_t tl_order_child(const tl_order *o, int64_t node, int64_t i)
{
    int64_t c = there(o, node) ? o->child[node] : -1;
    while (c >= 0 && i-- > 0)
        c = o->next[c];
    return c;
}

int64_t tl_order_root(const tl_order *o)
{
    int64_t last = o == NULL ? -1 : o->nodes - 1;
    return there(o, last) && o->size[last] == o->n ? last : -1;
}

/* A parent always has a higher number than its children. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j)
{
    while (i != j && there(o, i) && there(o, j)) {
        if (i < j)
            i = o->parent[i];
        else
            j = o->parent[j];
    }
    return i == j && there(o, i) ? i : -1;
}

/* Nodes stand for one another when they hold the same terms: it is enough that each term's, and
 * then each addition's, parent does. */
bool tl_order_same(const tl_order *a, const tl_order *b)
{
    if (tl_order_root(a) < 0 || tl_order_root(b) < 0 || a->n != b->n || a->nodes != b->nodes)
        return false;
    int64_t *of = malloc((size_t)a->nodes * sizeof *of); /* b's node for a's */
    bool same = of != NULL;
    for (int64_t v = 0; same && v < a->nodes; v++)
        of[v] = v < a->n ? v : -1;
    for (int64_t v = 0; same && v < a->nodes - 1; v++) {
        int64_t p = a->parent[v], q = b->parent[of[v]];
        same = q >= 0 && (of[p] < 0 || of[p] == q) && a->size[p] == b->size[q];
        of[p] = q;
    }
    free(of);
    return same;
}
