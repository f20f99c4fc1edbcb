/* order.h: the order of addition of a sum, as a tree. Public.
 *
 * The leaves are the terms 0 .. n-1. An inner node is one addition that rounds once, of two values
 * or (in fused instructions) of several. As additions commute, children are listed by their least
 * terms.
 *
 * In text, parentheses are a left fold: (0 + 1 + 2) is (0 + 1) + 2; braces are what is added with
 * one rounding: (0 + {1, 2}). Equal steps are abbreviated: (0 + 32 + ... + 992), ((0 + 1) + (2 + 3)
 * + ... + (8 + 9)). */
#ifndef TL_ORDER_H
#define TL_ORDER_H

#include <stdint.h>
#include <stdio.h>

#include "tensor/status.h"
TL_BEGIN

typedef struct tl_order tl_order;

/* n terms (n >= 1) and no additions yet. NULL when out of memory, which the functions below take
 * for an order of no terms. */
tl_order *tl_order_new(int64_t n);
void tl_order_free(tl_order *o); /* NULL is fine */

/* Adds k >= 2 values, each a term or an earlier result not used yet, in one rounding; returns the
 * result, or -1: an index out of range, a value used twice. */
int64_t tl_order_add(tl_order *o, const int64_t *value, int k);

/* Child i of an inner node, by ascending least term; -1 past the end, and of a term. */
int64_t tl_order_child(const tl_order *o, int64_t node, int64_t i);
/* How many terms are under a node; 0 if there is no such node. */
int64_t tl_order_size(const tl_order *o, int64_t node);
/* The last addition, which holds all terms; -1 while some are left over. */
int64_t tl_order_root(const tl_order *o);
/* The addition in which terms i and j first meet; -1 if they do not. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j);
/* Whether both are whole, and the same tree. */
bool tl_order_same(const tl_order *a, const tl_order *b);

/* One line, without a newline, in buf of cap bytes. TL_EUSAGE: terms are left over. TL_EDOMAIN: it
 * was cut; the message says how many bytes it takes. */
tl_status tl_order_format(char *buf, size_t cap, const tl_order *o, tl_err *err);
/* Prints the tree to f: on one line if that fits 100 columns, else a line for each addition, with
 * its parts indented below. TL_EUSAGE as above, TL_EIO. */
tl_status tl_order_print(FILE *f, const tl_order *o, tl_err *err);
TL_END
#endif
