/* composed.c: cases of losses and rows that are compositions of ops: NUMERICS 6.13 to 6.15, 9.5;
 * and of rms_norm over several dims without a weight. */
#include "tests/cases/cases.h"

/* p: mask of dims, keepdims */
static int b_lse(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    tl_shape s = {.ndim = 0};
    for (int d = 0; d < 8; d++)
        if ((unsigned)c->p[0] >> d & 1)
            s.dim[s.ndim++] = d;
    out[0] = tl_logsumexp(t, in[0], s, c->p[1] != 0);
    return 1;
}

static void r_lse(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_logsumexp(&in[0], (unsigned)c->p[0], c->p[1] != 0);
}

static void g_lse(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)out;
    tl_case_continue(&acc[0], ref_logsumexp_grad(dy, &in[0], (unsigned)c->p[0]));
}

/* in: x, y, weight?, pos_weight?; p: reduction */
static int b_bce(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_bce_with_logits(t, in[0], in[1], (tl_reduction)c->p[0], .weight = in[2],
                                .pos_weight = in[3]);
    return 1;
}

static ref_reduction how(const tl_case *c)
{
    return c->p[0] == TL_EACH ? REF_EACH : c->p[0] == TL_SUM ? REF_SUM : REF_MEAN;
}

static void r_bce(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_bce(&in[0], &in[1], tl_case_opt(&in[2]), tl_case_opt(&in[3]), how(c));
}

/* The accumulator of a leaf takes one use after the other (10.3). What was cast is a value of its
 * own, whose uses are added before (10.2). */
static void bce_uses(ref_tensor *acc, ref_tensor use[2], int n, ref_dtype dtype)
{
    ref_tensor sum = n == 1 ? ref_copy(&use[0]) : ref_add(&use[0], &use[1]);
    for (int i = 0; i < n && acc->data != NULL && dtype == use[0].dtype; i++)
        tl_case_continue(acc, ref_copy(&use[i]));
    if (acc->data != NULL && dtype != use[0].dtype)
        tl_case_continue(acc, ref_cast(&sum, dtype));
    tl_case_free(3, (ref_tensor[]){sum, use[0], use[1]});
}

static void g_bce(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dl, ref_tensor *acc)
{
    ref_tensor dx[2], dy[2];
    (void)out;
    ref_bce_grad(dl, &in[0], &in[1], tl_case_opt(&in[2]), tl_case_opt(&in[3]), how(c), dx, dy);
    bce_uses(&acc[0], dx, 2, in[0].dtype);
    bce_uses(&acc[1], dy, in[3].data != NULL ? 2 : 1, in[1].dtype);
}

/* in: z, targets, weight?, count?, total?; p: reduction, ignored target (100: none), smoothing, dim
 * of the classes */
static tl_cross_entropy_options options(const tl_tensor *in, const tl_case *c)
{
    return (tl_cross_entropy_options){.reduction = (tl_reduction)c->p[0],
                                      .ignore = c->p[1] < 100,
                                      .ignore_index = c->p[1] < 100 ? (int64_t)c->p[1] : 0,
                                      .smoothing = c->p[2],
                                      .dim = (int)c->p[3],
                                      .weight = in[2],
                                      .count = in[3],
                                      .total = in[4]};
}

static int b_loss(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_cross_entropy_at(TL_AT(t), in[0], in[1], options(in, c)), 1;
}

static int b_nll(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_nll_at(TL_AT(t), in[0], in[1], options(in, c)), 1;
}

/* z with its classes last; order: its dims as they then stand. */
static ref_tensor classes_last(const tl_case *c, const ref_tensor *z, int order[8])
{
    int n = z->ndim, d = (int)(c->p[3] < 0 ? c->p[3] + n : c->p[3] > 0 ? c->p[3] : n - 1), k = 0;
    for (int i = 0; i < n; i++)
        if (i != d)
            order[k++] = i;
    order[k] = d;
    return ref_permute(z, order);
}

static ref_loss_options loss_options(const tl_case *c, const ref_tensor *count)
{
    return (ref_loss_options){c->p[0] == TL_MEAN, c->p[1] < 100 ? (int64_t)c->p[1] : INT64_MIN,
                              count->data ? (int64_t)ref_get(count, 0) : -1};
}

static bool is_fused(const tl_case *c, const ref_tensor *in)
{
    return in[2].data == NULL && c->p[0] != TL_EACH && c->p[2] == 0;
}

static void picked(const tl_case *c, const ref_tensor *in, int logits, ref_tensor *out)
{
    int order[8];
    ref_tensor z = classes_last(c, &in[0], order), wide = ref_cast(&z, ref_compute(z.dtype)),
               v = logits ? ref_log_softmax(&wide, z.ndim - 1) : ref_copy(&wide),
               total = in[4].data ? ref_copy(&in[4]) : ref_new(REF_F64, 0, NULL);
    ref_loss_options o = loss_options(c, &in[3]);
    out[0] = logits && is_fused(c, in)
                 ? ref_cross_entropy(&z, &in[1], o, wide.dtype, &total)
                 : ref_picked(&v, &in[1], tl_case_opt(&in[2]), c->p[2], how(c), o, &total);
    tl_case_free(4, (ref_tensor[]){z, wide, v, total});
}

/* The gradient of z, or of nll's logp. It is cast to their dtype, where nll does not take them as
 * they are; in ignored rows it is +0. */
static void picked_grad(const tl_case *c, const ref_tensor *in, const ref_tensor *dy, int logits,
                        ref_tensor *acc)
{
    int order[8], back[8];
    ref_tensor z = classes_last(c, &in[0], order), wide = ref_cast(&z, ref_compute(z.dtype)),
               v = logits ? ref_log_softmax(&wide, z.ndim - 1) : ref_copy(&wide), d;
    ref_loss_options o = loss_options(c, &in[3]);
    if (logits && is_fused(c, in)) {
        d = ref_cross_entropy_grad(dy, &z, &in[1], o);
    } else {
        const int64_t n = z.dim[z.ndim - 1];
        ref_tensor dv = ref_picked_grad(dy, &v, &in[1], tl_case_opt(&in[2]), c->p[2], how(c), o),
                   dz = logits ? ref_log_softmax_grad(&dv, &v, z.ndim - 1) : ref_copy(&dv);
        for (int64_t i = 0; i < ref_numel(&dz); i++)
            if (ref_get_i64(&in[1], i / n) == o.ignore_index)
                ref_set(&dz, i, 0);
        d = !logits && is_fused(c, in) ? ref_copy(&dz) : ref_cast(&dz, z.dtype);
        tl_case_free(2, (ref_tensor[]){dv, dz});
    }
    for (int i = 0; i < z.ndim; i++)
        back[order[i]] = i;
    tl_case_continue(&acc[0], ref_permute(&d, back));
    tl_case_free(4, (ref_tensor[]){z, wide, v, d});
}

static void r_loss(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    picked(c, in, 1, out);
}
static void r_nll(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    picked(c, in, 0, out);
}

static void g_loss(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                   const ref_tensor *dy, ref_tensor *acc)
{
    (void)out, picked_grad(c, in, dy, 1, acc);
}
static void g_nll(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                  const ref_tensor *dy, ref_tensor *acc)
{
    (void)out, picked_grad(c, in, dy, 0, acc);
}

/* p: the row that pads, as given, as it is numbered */
static int b_padded(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_embedding_padded(t, in[0], in[1], (int64_t)c->p[0]), 1;
}

static void r_padded(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    (void)c, out[0] = ref_embedding(&in[0], &in[1]);
}

static void g_padded(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                     const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor d = ref_copy(dy);
    int64_t n = in[0].dim[1];
    (void)out;
    for (int64_t i = 0; i < ref_numel(&d); i++)
        if (ref_get_i64(&in[1], i / n) == (int64_t)c->p[1])
            ref_set(&d, i, 0);
    ref_tensor dw = ref_embedding_grad(&d, &in[1], in[0].dim[0], &acc[0]);
    ref_free(&dw);
    ref_free(&d);
}

/* p: dims */
static int b_norm(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    return out[0] = tl_rms_norm_dims(t, in[0], (int)c->p[0], 1e-3), 1;
}

static void r_norm(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_rms_norm(&in[0], NULL, (int)c->p[0], 1e-3, &out[0], NULL);
}

#define LSE(name, in, how, ...)                                                             \
    {                                                                                       \
        .op = "log", name, in, b_lse, r_lse, {__VA_ARGS__}, .rows = how, .gradient = g_lse, \
        .acc = "c"                                                                          \
    }
#define BCE(name, in, how, p, ...)                                              \
    {                                                                           \
        .op = "softplus", name, in, b_bce, r_bce, {p}, .rows = how, __VA_ARGS__ \
    }
#define BCE_GRAD .gradient = g_bce, .acc = "dd--"
/* The same with the gradient of input 0, beside which all others are fixed. */
#define PICKED(op_, f, name, in, how, ...)                                                \
    {                                                                                     \
        .op = op_, name, in, b_##f, r_##f, {__VA_ARGS__}, .rows = how, .gradient = g_##f, \
        .acc = "c----"                                                                    \
    }
#define PICK(op_, f, name, in, how, ...)                              \
    {                                                                 \
        .op = op_, name, in, b_##f, r_##f, {__VA_ARGS__}, .rows = how \
    }

const tl_case tl_cases_composed[] = {
    LSE("logsumexp 33", "*[3,33]:strided", "b", 2, 0),
    LSE("logsumexp kept", "*[2,3,5]:turned", "b", 6, 1),
    LSE("logsumexp of a middle dim", "*[3,4,5]", "b", 2, 0),
    LSE("logsumexp of all", "*[3,4]", NULL, 3, 0),
    LSE("logsumexp of rows of one", "*[33,1]", "b", 2, 0),
    LSE("logsumexp of no rows", "*[0,3]", NULL, 2, 0),
    {.op = "log", "logsumexp of many", "*[70,301]", b_lse, r_lse, {2, 0}, .flags = CASE_BIG},
    BCE("bce mean", "*[4,3] *[4,3]:unit - -", NULL, TL_MEAN, BCE_GRAD),
    BCE("bce sum of views", "*[4,3]:turned *[4,3]:strided - -", NULL, TL_SUM, BCE_GRAD),
    BCE("bce each", "*[5,3] *[5,3]:unit - -", "bb--", TL_EACH, BCE_GRAD),
    BCE("bce weighted", "*[4,3] *[4,3]:unit *[3]:pos -", NULL, TL_MEAN, .flags = 0),
    BCE("bce by fixed weights", "*[4,3] *[4,3]:unit *[4,1]:pos:fixed *[3]:pos:fixed", NULL, TL_MEAN,
        BCE_GRAD),
    BCE("bce each by fixed weights", "*[4,3] *[4,3] *[3]:pos:fixed *[3]:pos:fixed", "bb--", TL_EACH,
        BCE_GRAD),
    BCE("bce with positive weights", "*[4,3] *[4,3]:unit - *[3]:pos", "bb--", TL_EACH, .flags = 0),
    BCE("bce with both", "*[4,3] *[4,3]:unit *[4,1]:pos *[3]:pos", NULL, TL_SUM, .flags = 0),
    BCE("bce of labels", "*[9] i64[9]:below2 - -", "bb--", TL_EACH, BCE_GRAD),
    BCE("bce of nothing", "*[0,3] *[0,3] - -", NULL, TL_EACH, BCE_GRAD),
    PICKED("nll", loss, "weighted mean", "*[9,3] i64[9]:below3 *[3]:pos:fixed - -", NULL, TL_MEAN,
           100),
    PICK("nll", loss, "weighted sum", "*[9,3]:turned i64[9]:below3 *[3]:pos - -", NULL, TL_SUM,
         100),
    PICK("nll", loss, "weighted, some ignored", "*[9,3] i64[9]:below3 *[3]:pos - -", NULL, TL_MEAN,
         1),
    PICK("nll", loss, "weighted by a count", "*[9,3] i64[9]:below3 *[3]:pos f64[]:count7 -", NULL,
         TL_MEAN, 2),
    PICKED("nll", loss, "weighted total", "*[9,3] i64[9]:below3 *[3]:pos:fixed - f64[]:rate", NULL,
           TL_MEAN, 100),
    PICK("nll", loss, "weighted and smoothed", "*[7,33] i64[7]:below33 *[33]:pos - -", NULL,
         TL_MEAN, 3, 0.1),
    PICKED("nll", loss, "smoothed by fixed weights, some ignored",
           "*[7,33] i64[7]:below33 *[33]:pos:fixed - -", NULL, TL_MEAN, 3, 0.1),
    PICKED("nll", loss, "fixed weights and a count",
           "*[9,3] i64[9]:below3 *[3]:pos:fixed f64[]:count7 -", NULL, TL_MEAN, 2),
    PICKED("gather", loss, "each, smoothed by fixed weights",
           "*[2,3,5]:turned i64[2,3]:below5 *[5]:pos:fixed - -", "bb---", TL_EACH, 4, 0.9),
    PICKED("nll", nll, "log-probabilities by fixed weights",
           "*[9,3] i64[9]:below3 *[3]:pos:fixed - -", NULL, TL_MEAN, 1),
    PICKED("nll", nll, "log-probabilities by fixed weights, a sum",
           "*[2,5,3] i64[2,3]:below5 *[5]:pos:fixed - -", NULL, TL_SUM, 2, 0, 1),
    PICK("nll", loss, "weighted classes in the middle", "*[2,5,3] i64[2,3]:below5 *[5]:pos - -",
         NULL, TL_MEAN, 100, 0, 1),
    PICKED("gather", loss, "each", "*[9,3] i64[9]:below3 - - -", "bb---", TL_EACH, 100),
    PICKED("gather", loss, "each, some ignored", "*[9,3] i64[9]:below3 - - -", "bb---", TL_EACH, 2),
    PICK("gather", loss, "each, weighted and smoothed",
         "*[2,3,5]:turned i64[2,3]:below5 *[5]:pos - -", "bb---", TL_EACH, 4, 0.9),
    PICKED("gather", loss, "each, classes in the middle", "*[2,5,3] i64[2,3]:below5:turned - - -",
           "bb---", TL_EACH, 100, 0, 1),
    PICKED("gather", loss, "each of none", "*[0,3] i64[0]:below3 - - -", NULL, TL_EACH, 100),
    PICKED("cross_entropy", loss, "classes in the middle", "*[2,5,3] i64[2,3]:below5 - - -", NULL,
           TL_MEAN, 100, 0, 1),
    PICKED("cross_entropy", loss, "classes first", "*[5,4] i64[4]:below5 - - -", NULL, TL_SUM, 2, 0,
           -2),
    PICKED("nll", nll, "classes in the middle", "*[2,5,3] i64[2,3]:below5 - - -", NULL, TL_MEAN,
           100, 0, 1),
    PICK("nll", nll, "weighted log-probabilities", "*[9,3] i64[9]:below3 *[3]:pos - -", NULL,
         TL_MEAN, 1),
    PICKED("gather", nll, "each of log-probabilities", "*[9,3]:strided i64[9]:below3 - - -",
           "bb---", TL_EACH, 0),
    {.op = "embedding",
     "padded by 2",
     "*[5,3] i64[9]:below5",
     b_padded,
     r_padded,
     {2, 2},
     .rows = "pb",
     .gradient = g_padded,
     .acc = "c-"},
    {.op = "embedding",
     "padded by the last",
     "*[4,3] i64[3,3]:below4",
     b_padded,
     r_padded,
     {-1, 3},
     .rows = "pb",
     .gradient = g_padded,
     .acc = "c-"},
    {.op = "rms_norm",
     "two dims without a weight",
     "*[3,2,5]:strided",
     b_norm,
     r_norm,
     {2},
     .rows = "b"},
    {.op = "rms_norm",
     "three dims without a weight",
     "*[2,3,2,4]",
     b_norm,
     r_norm,
     {3},
     .rows = "b"},
};
const int tl_cases_composed_count = sizeof tl_cases_composed / sizeof tl_cases_composed[0];
