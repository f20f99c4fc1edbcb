/* readers.h: who reads each value of a graph, and when each memory changes. Private to
 * autograd/graph/. */
#ifndef TL_READERS_H
#define TL_READERS_H

#include "autograd/graph/internal.h"

typedef struct tl_reader {
    uint32_t node;
    bool walks; /* a loop that reads it element by element, in its own tile type */
    struct tl_reader *next;
} tl_reader;

/* Positions in order, ascending. */
typedef struct {
    uint32_t *at, n, cap;
} tl_positions;

typedef struct {
    tl_graph *g;
    tl_reader **of;       /* by value: who reads it, also through plain views */
    bool *pinned;         /* by value: needed in memory whoever reads it */
    uint32_t *position;   /* of a node in order */
    tl_positions *writes; /* by root: of the nodes that change it */
} tl_readers;

/* False when out of memory. */
bool tl_readers_find(tl_readers *r, tl_graph *g);
/* x's memory changes after position from and before position to. */
bool tl_readers_changes(const tl_readers *r, tl_tensor x, uint32_t from, uint32_t to);

#endif
