/* match_ask.c: what an extra_check may ask about a match. */
#include <math.h>
#include <string.h>

#include "autograd/replace/internal.h"

static int index_of(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_in; i++)
        if (strcmp(m->rule->o.example_inputs[i].name, name) == 0)
            return i;
    return -1;
}

const tl_array *tl_match_input(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    return i < 0 ? NULL : &m->array[i];
}

const tl_array *tl_match_constant(const tl_match *m, const char *name)
{
    int i = index_of(m, name);
    if (i < 0 || m->arg[i].owner != m->pass->t->values.owner)
        return NULL;
    const tl_leaf l = tl_leaf_of(m->pass->t, m->arg[i].index);
    return l.kind == TL_LEAF_CONSTANT ? &m->pass->g->tracing->constant[l.at].a : NULL;
}

double tl_match_scalar(const tl_match *m, const char *name)
{
    for (int i = 0; m != NULL && name != NULL && i < m->rule->o.n_scalars; i++)
        if (strcmp(m->rule->o.scalars[i].name, name) == 0)
            return m->scalar[i];
    return (double)NAN;
}

const char *tl_match_place(const tl_match *m, int *line)
{
    if (m == NULL)
        return NULL;
    const tl_node *n = &m->pass->t->node[m->node[m->search->out[0].node]];
    if (line != NULL)
        *line = n->line;
    return n->file;
}
