/* recur.h: what the op of recurrent layers (recur.c) and the derivative of its gradient
 * (recur_twice.c) share: attributes and the order of inputs. Private to ops/. */
#ifndef TL_OPS_RECUR_H
#define TL_OPS_RECUR_H

#include "ops/build.h"

typedef struct {
    int64_t cell; /* tl_cell */
    bool reverse;
} tl_recur_attrs;

/* Gates of a cell. */
static inline int tl_recur_gates(int64_t cell)
{
    return cell == TL_LSTM ? 4 : cell == TL_GRU ? 3 : 1;
}

/* recur(gates, w, bias?, h0?, c0?, start?, end?) -> y, c, a, hn, cn */
enum { RECUR_GATES, RECUR_W, RECUR_BIAS, RECUR_H0, RECUR_C0, RECUR_START, RECUR_END, RECUR_IN };
/* recur_grad(dy?, dc?, da?, y, c, a, w, h0?, c0?, start?, end?, dhn?, dcn?) -> dgates, du,
 * dh0, dc0 */
enum { BACK_DY, BACK_DC, BACK_DA, BACK_Y, BACK_C, BACK_A, BACK_W, BACK_H0, BACK_C0, BACK_START };
enum { BACK_END = BACK_START + 1, BACK_DHN, BACK_DCN, BACK_IN };

void tl_recur_grad_vjp(tl_vjp *g); /* recur_twice.c */

/* The state before each step, (b, s, n), in primitives: h0 (b, n), (n) or none, then x without its
 * last step (recur_twice.c). */
tl_tensor tl_recur_before(tl_tape *t, tl_tensor x, tl_tensor h0, bool reverse);

#endif
