/* axes_losses.c: cross_entropy and nll over a batch in parts, with rows of padding before and
 * after: their targets are ignored, the count is given, the total goes on from part to part. Every
 * real row's gradient, the total and the last loss stay as they are. */
#include <stdio.h>

#include "autograd/model.h"
#include "tests/support/axes.h"

enum { BATCH = 7, CLASSES = 37, IGNORED = -1, ROWS = BATCH + 40 };

typedef struct {
    bool nll;
    double smoothing;
    tl_dtype dtype;
} loss;

typedef struct {
    int64_t rows;
    ref_tensor logits; /* (rows, classes) */
    int64_t target[ROWS];
} batch;

/* Rows [at, to) of b; their gradients into grad from row `at` on. */
static ref_tensor run_part(tl_tape *t, const loss *l, const batch *b, int64_t at, int64_t to,
                           ref_tensor *grad)
{
    int64_t row[ROWS];
    for (int64_t i = at; i < to; i++)
        row[i - at] = i;
    ref_tensor part = tl_case_gather(&b->logits, (int)(to - at), row);
    tl_tape_reset(t);
    tl_tensor x = tl_case_leaf(t, &part);
    tl_require_grad(t, x);
    tl_cross_entropy_options o = {.reduction = TL_MEAN,
                                  .ignore = true,
                                  .ignore_index = IGNORED,
                                  .count = tl_scalar(t, TL_F64, BATCH),
                                  .total = tl_buffer(t, tl_tape_model(t), "total", TL_F64,
                                                     TL_SCALAR),
                                  .smoothing = l->smoothing};
    tl_tensor target = tl_data(t, b->target + at, TL_I64, TL_DIMS(to - at));
    tl_tensor y = l->nll ? tl_nll_at(TL_AT(t), x, target, o)
                         : tl_cross_entropy_at(TL_AT(t), x, target, o);
    tl_backward(t, y);
    ref_tensor value = tl_case_read(t, y), g = tl_case_read(t, tl_grad(t, x));
    if (grad->data == NULL && g.data != NULL)
        *grad = ref_new(g.dtype, 2, (int64_t[]){b->rows, CLASSES});
    for (int64_t i = 0; g.data != NULL && i < ref_numel(&g); i++)
        ref_set(grad, at * CLASSES + i, ref_get(&g, i));
    ref_free(&g);
    ref_free(&part);
    return value;
}

/* out: the last loss, the total; grad: of all rows. */
static case_result run_loss(tl_tape *t, const loss *l, const batch *b, int64_t part)
{
    case_result r = {.n_out = 2};
    double zero = 0;
    tl_tensor total = tl_model_find(tl_tape_model(t), "total");
    if (!tl_is_none(total))
        tl_write(tl_tape_model(t), total, &zero, sizeof zero);
    for (int64_t at = 0; at < b->rows; at += part) {
        ref_free(&r.out[0]);
        r.out[0] = run_part(t, l, b, at, at + part < b->rows ? at + part : b->rows, &r.grad[0]);
    }
    r.out[1] = tl_case_read(t, tl_model_find(tl_tape_model(t), "total"));
    return r;
}

static batch padded(const batch *b, int64_t before, int64_t after, uint64_t *state)
{
    batch y = {.rows = before + b->rows + after};
    int64_t row[ROWS];
    for (int64_t i = 0; i < y.rows; i++) {
        bool real = i >= before && i < before + b->rows;
        row[i] = real ? i - before : (int64_t)(tl_case_random(state) % (uint64_t)b->rows);
        y.target[i] = real ? b->target[i - before] : IGNORED;
    }
    y.logits = tl_case_gather(&b->logits, (int)y.rows, row);
    return y;
}

static void one_loss(tl_tape *t, const loss *l, uint64_t *state)
{
    char label[64];
    int64_t row[BATCH];
    snprintf(label, sizeof label, "%s in %s, smoothing %g", l->nll ? "nll" : "cross_entropy",
             tl_dtype_name(l->dtype), l->smoothing);
    batch b = {.rows = BATCH,
               .logits = tl_case_values(tl_case_ref_dtype(l->dtype), &TL_DIMS(BATCH, CLASSES),
                                        state, CASE_PLAIN)};
    for (int64_t i = 0; i < BATCH; i++)
        b.target[i] = i == 3 ? IGNORED : (int64_t)(tl_case_random(state) % CLASSES);
    case_result want = run_loss(t, l, &b, BATCH);
    for (int trial = 0; trial < 12 && !tl_axes_failed(t, label); trial++) {
        int64_t before = trial % 3 == 1 ? 1 + (int64_t)(tl_case_random(state) % 20) : 0,
                after = trial % 3 == 2 ? 1 + (int64_t)(tl_case_random(state) % 20) : 0;
        batch y = padded(&b, before, after, state);
        case_result got = run_loss(t, l, &y,
                                   1 + (int64_t)(tl_case_random(state) % (uint64_t)y.rows));
        for (int64_t i = 0; i < BATCH; i++)
            row[i] = before + i;
        if (!tl_axes_failed(t, label)) {
            ref_tensor own = tl_case_gather(&got.grad[0], BATCH, row);
            tl_axes_same(label, "gradient", 0, &own, &want.grad[0]);
            tl_axes_same(label, "total", 1, &got.out[1], &want.out[1]);
            if (after == 0)
                tl_axes_same(label, "loss", 2, &got.out[0], &want.out[0]);
            ref_free(&own);
            static const test_axis axes[] = {AXIS_micro, AXIS_left, AXIS_right};
            tl_axes_ran(t, axes[trial % 3]);
            if (trial % 3 == 1) /* another place in another batch */
                tl_axes_ran_too(t, AXIS_rows);
        }
        tl_case_result_free(&got);
        ref_free(&y.logits);
    }
    tl_case_result_free(&want);
    ref_free(&b.logits);
}

void tl_axis_losses(void)
{
    uint64_t state = tl_axes_seed();
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    for (int k = 0; k < 12; k++)
        one_loss(t, &(loss){k / 4 == 0, k / 4 == 2 ? 0.1 : 0, (tl_dtype)(TL_F64 + k % 4)}, &state);
    tl_free(t, m);
}
