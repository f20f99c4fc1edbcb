/* order.h: the order of addition of a sum, as a tree. Public.
 *
 * Leaves are the terms 0 .. n-1; an inner node is one addition that rounds once, of two values or
 * (fused instructions) of several. Additions commute, so children have no order of their own: they
 * stand by their least term.
 *
 * In text a left fold stands in parentheses, (0 + 1 + 2) for (0 + 1) + 2; what is added several at
 * a time in braces, (0 + {1, 2}) for one rounding of 0 + 1 + 2. Like steps are folded: (0 + 32 +
 * ... + 992), ((0 + 1) + (2 + 3) + ... + (8 + 9)). */
#ifndef TL_ORDER_H
#define TL_ORDER_H

#include <stdint.h>
#include <stdio.h>

#include "tensor/status.h"
TL_BEGIN

typedef struct tl_order tl_order;

/* n terms (n >= 1) and no additions yet; the caller frees it. NULL when out of memory, which the
 * functions below take for an order of no terms. */
tl_order *tl_order_new(int64_t n);
void tl_order_free(tl_order *o); /* NULL is skipped */

int64_t tl_order_terms(const tl_order *o);

/* Adds k >= 2 values, each a term or an earlier result that nothing has used, in one rounding;
 * returns the result. -1 when that cannot be (an index out of range, a value used twice). */
int64_t tl_order_add(tl_order *o, const int64_t *value, int k);
/* The same for two: a + b. -1 as an operand gives the other one, so that folds can start from
 * nothing. */
int64_t tl_order_add2(tl_order *o, int64_t a, int64_t b);

/* What an inner node adds: its children by ascending least term, -1 past the end. Of a term,
 * none. */
int64_t tl_order_child(const tl_order *o, int64_t node, int64_t i);
/* The terms under a node, and the least of them; 0 and -1 of a node that there is not. */
int64_t tl_order_size(const tl_order *o, int64_t node);
int64_t tl_order_least(const tl_order *o, int64_t node);
/* The last addition: what holds all the terms. -1 while some are left over. */
int64_t tl_order_root(const tl_order *o);
/* The addition in which terms i and j first meet; -1 if they do not. */
int64_t tl_order_meeting(const tl_order *o, int64_t i, int64_t j);

/* Both are whole, and the same tree. */
bool tl_order_same(const tl_order *a, const tl_order *b);

/* One line without its newline into buf, of cap bytes with the NUL. Errors: TL_EUSAGE (terms are
 * left over), TL_EDOMAIN (the text was cut; the message says how many bytes it takes). */
tl_status tl_order_format(char *buf, size_t cap, const tl_order *o, tl_err *err);
/* The tree to f: on one line if it fits into 100 columns, else a line for each addition, parts
 * indented under it. Errors: TL_EUSAGE, TL_EIO, TL_ENOMEM. */
tl_status tl_order_print(FILE *f, const tl_order *o, tl_err *err);
TL_END
#endif
