/* sum_tree.h: the order of addition of a sum, as a tree. Public.
 *
 * The leaves are the terms 0 .. n-1. An inner node is one addition that rounds once, of two values
 * or (in fused instructions) of several. As addition commutes, children are listed by their least
 * terms.
 *
 * In text, parentheses stand for a left fold: (0 + 1 + 2) is (0 + 1) + 2. Braces stand for values
 * that are added with one rounding: (0 + {1, 2}). Like steps are abbreviated: (0 + 32 + ... + 992),
 * ((0 + 1) + (2 + 3) + ... + (8 + 9)). */
#ifndef TL_ORDER_H
#define TL_ORDER_H

#include <stdint.h>
#include <stdio.h>

#include "tensor/status.h"
TL_BEGIN

typedef struct tl_order tl_order;

/* An order of n >= 1 terms, without additions yet. NULL when out of memory; the functions below
 * take that for an order of no terms. */
tl_order *tl_order_new(int64_t n);
void tl_order_free(tl_order *o); /* NULL is fine */

/* Adds k >= 2 values with one rounding, each a term or an earlier result that is not used yet.
 * Returns the result, or -1 if an index is out of range or a value is used twice. */
int64_t tl_order_add(tl_order *o, const int64_t *value, int k);

/* Child i of an inner node, by ascending least term; -1 past the end, and for a term. */
int64_t tl_order_child(const tl_order *o, int64_t node, int64_t i);
/* How many terms are under a node; 0 if there is no such node. */
int64_t tl_order_size(const tl_order *o, int64_t node);
/* The last addition, which has all terms under it; -1 while some terms are left over. */
int64_t tl_order_root(const tl_order *o);
/* The addition in which terms i and j first meet; -1 if they do not. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j);
/* Whether both are complete, and the same tree. */
bool tl_order_same(const tl_order *a, const tl_order *b);

/* Writes the tree as one line, without a newline, to buf of cap bytes. TL_EUSAGE: terms are left
 * over. TL_EDOMAIN: the text was cut; the message says how many bytes it takes. */
tl_status tl_order_format(char *buf, size_t cap, const tl_order *o, tl_err *err);
/* Prints the tree to f: on one line if that fits 100 columns, else a line for each addition, with
 * its parts indented below. TL_EUSAGE as above, TL_EIO. */
tl_status tl_order_print(FILE *f, const tl_order *o, tl_err *err);
TL_END
#endif
