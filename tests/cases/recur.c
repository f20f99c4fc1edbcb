/* recur.c: cases of recurrent layers and their gradient: NUMERICS 6.18, 6.19. */
#include "tests/cases/cases.h"

/* in: gates, w, bias?, h0?, c0?, start?, end?; p: cell, reverse. y and the last h; an LSTM's c and
 * last c. */
static int b_recur(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_recur(t, in[0], in[1], (tl_cell)c->p[0], .bias = in[2], .h = in[3], .c = in[4],
                      .start = in[5], .end = in[6], .reverse = c->p[1] != 0, .last_h = &out[1],
                      .cells = &out[2], .last_c = &out[3]);
    return c->p[0] == TL_LSTM ? 4 : 2;
}

static ref_recur_options options(const tl_case *c, const ref_tensor *h0)
{
    return (ref_recur_options){.cell = (ref_cell)c->p[0],
                               .reverse = c->p[1] != 0,
                               .h0 = tl_case_opt(&h0[0]),
                               .c0 = tl_case_opt(&h0[1]),
                               .start = tl_case_opt(&h0[2]),
                               .end = tl_case_opt(&h0[3])};
}

static void r_recur(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor a, cells, last[2];
    ref_recur(&in[0], &in[1], tl_case_opt(&in[2]), options(c, &in[3]), &out[0], &cells, &a, last);
    out[1] = last[0];
    if (c->p[0] == TL_LSTM) {
        out[2] = cells;
        out[3] = last[1];
    } else
        tl_case_free(2, (ref_tensor[]){cells, last[1]});
    ref_free(&a);
}

/* All: y, c, a, and the last states. */
static int b_all(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {0};
    tl_tensor y[5];
    int n = 0;
    tl_case_attr(&tl_op_recur, &a, "cell", c->p[0]);
    tl_case_attr(&tl_op_recur, &a, "reverse", c->p[1]);
    tl_apply(TL_AT(t), &tl_op_recur, &a, in, 7, y);
    for (int i = 0; i < 5; i++)
        if (c->p[0] == TL_LSTM || (i != 1 && i != 4))
            out[n++] = y[i];
    return n;
}

static void r_all(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor y[5];
    int n = 0;
    ref_recur(&in[0], &in[1], tl_case_opt(&in[2]), options(c, &in[3]), &y[0], &y[1], &y[2], &y[3]);
    for (int i = 0; i < 5; i++)
        if (c->p[0] == TL_LSTM || (i != 1 && i != 4))
            out[n++] = y[i];
        else
            ref_free(&y[i]);
}

static void g_recur(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                    const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor y, cells, a, d[4], last[2];
    ref_recur_options o = options(c, &in[3]);
    (void)out;
    ref_recur(&in[0], &in[1], tl_case_opt(&in[2]), o, &y, &cells, &a, last);
    ref_recur_grad(dy, NULL, NULL, &y, &cells, &a, &in[1], o, d);
    const ref_tensor *du = &d[c->p[0] == TL_GRU];
    if (acc[1].data != NULL)
        ref_recur_weight(du, &y, o, &acc[1]);
    if (acc[2].data != NULL)
        tl_case_continue(&acc[2], ref_copy(du));
    for (int i = 0; i < 3; i++) {
        int to = i == 0 ? 0 : 2 + i, from = i == 0 ? 0 : 1 + i;
        if (acc[to].data != NULL)
            tl_case_continue(&acc[to], ref_copy(&d[from]));
    }
    tl_case_free(4, d);
    tl_case_free(5, (ref_tensor[]){y, cells, a, last[0], last[1]});
}

/* in: dy?, dc?, da?, y, c, a, w, h0?, c0?, start?, end?, dhn?, dcn? */
static int b_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    case_attrs a = {0};
    tl_tensor d[4];
    tl_case_attr(&tl_op_recur_grad, &a, "cell", c->p[0]);
    tl_case_attr(&tl_op_recur_grad, &a, "reverse", c->p[1]);
    tl_apply(TL_AT(t), &tl_op_recur_grad, &a, in, 13, d);
    int n = 0;
    out[n++] = d[0];
    if (c->p[0] == TL_GRU)
        out[n++] = d[1];
    for (int i = 2; i < 4; i++)
        if (!tl_is_none(in[5 + i]))
            out[n++] = d[i];
    return n;
}

static void r_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_tensor d[4];
    ref_recur_options o = options(c, &in[7]);
    o.dhn = tl_case_opt(&in[11]);
    o.dcn = tl_case_opt(&in[12]);
    ref_recur_grad(tl_case_opt(&in[0]), tl_case_opt(&in[1]), tl_case_opt(&in[2]), &in[3], &in[4],
                   &in[5], &in[6], o, d);
    int n = 0;
    for (int i = 0; i < 4; i++)
        if (i == 0 || (i == 1 && c->p[0] == TL_GRU) || (i > 1 && in[5 + i].data != NULL))
            out[n++] = d[i];
        else
            ref_free(&d[i]);
}

#define RECUR(name, in, how, n, accs, ...)                                                \
    {                                                                                     \
        .op = "recur", name, in, b_recur, r_recur, {__VA_ARGS__}, .diff = n, .rows = how, \
        .gradient = g_recur, .acc = accs                                                  \
    }
#define GRAD(name, in, how, n, ...)                                                         \
    {                                                                                       \
        .op = "recur_grad", name, in, b_grad, r_grad, {__VA_ARGS__}, .diff = n, .rows = how \
    }

const tl_case tl_cases_recur[] = {
    RECUR("lstm", "*[3,4,12] *[12,3] - - - - -", "bp-----", 4, "cc-----", TL_LSTM),
    RECUR("lstm with all", "*[2,5,8] *[8,2] *[8] *[2,2] *[2,2] i64[2]:below3 i64[2]:from3",
          "bppbbbb", 4, "ccdcc--", TL_LSTM),
    RECUR("lstm reversed", "*[2,5,8] *[8,2] *[8] *[2] *[2] - i64[2]:from3", "bpppp-b", 4, "ccddd--",
          TL_LSTM, 1),
    RECUR("gru", "*[3,4,9] *[9,3] *[9] - - - -", "bpp----", 2, "ccd----", TL_GRU),
    RECUR("gru with all", "*[2,5,6] *[6,2] *[6] *[2,2] - i64[2]:below3 i64[2]:from3", "bppb-bb", 2,
          "ccdc---", TL_GRU, 1),
    RECUR("tanh", "*[3,4,3] *[3,3] *[3] *[3,3] - - i64[3]:from2", "bppb--b", 2, "ccdc---",
          TL_RNN_TANH),
    RECUR("tanh reversed", "*[2,3,2]:padded *[2,2]:turned - - - i64[2]:below2 -", "bp---b-", 2,
          "cc-----", TL_RNN_TANH, 1),
    RECUR("relu", "*[3,4,3]:heads *[3,3]:turned *[3] - - - -", "bpp----", 2, "ccd----",
          TL_RNN_RELU),
    {.op = "recur",
     "one step of one",
     "*[1,1,4] *[4,1] *[4] - - - -",
     b_recur,
     r_recur,
     {TL_LSTM},
     .diff = 4,
     .rows = "bpp----",
     .gradient = g_recur,
     .acc = "ccd----",
     .flags = CASE_NO_CHECK}, /* w does nothing */
    {.op = "recur",
     "no samples",
     "*[0,3,4] *[4,1] - - - - -",
     b_recur,
     r_recur,
     {TL_LSTM},
     .diff = 4,
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "recur",
     "no steps",
     "*[2,0,4] *[4,1] - - - - -",
     b_recur,
     r_recur,
     {TL_LSTM},
     .diff = 4,
     .flags = CASE_NO_CHECK}, /* no elements */
    {.op = "recur",           /* the last states are the first ones */
     "no steps from states",
     "*[2,0,4] *[4,1] - *[2,1] *[2,1] - -",
     b_recur,
     r_recur,
     {TL_LSTM},
     .diff = 4},
    {.op = "recur",
     "no steps from one state",
     "*[3,0,6] *[6,2] *[6] *[2] - - -",
     b_recur,
     r_recur,
     {TL_GRU},
     .diff = 2},
    {.op = "recur",
     "lstm wide",
     "*[5,3,132] *[132,33] *[132] - - - -",
     b_recur,
     r_recur,
     {TL_LSTM},
     .diff = 4,
     .rows = "bpp----",
     .gradient = g_recur,
     .acc = "ccd----",
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "recur",           /* a state is rounded piece by piece */
     "tanh of a long state",
     "*[1,2,300] *[300,300] - - - - -",
     b_recur,
     r_recur,
     {TL_RNN_TANH},
     .diff = 2,
     .flags = CASE_NO_CHECK}, /* slow */
    {.op = "recur",
     "many",
     "*[33,9,192] *[192,64] *[192] - - - i64[33]:from5",
     b_recur,
     r_recur,
     {TL_GRU},
     .gradient = g_recur,
     .acc = "ccd----",
     .flags = CASE_BIG},
    {.op = "recur",
     "lstm and its gates",
     "*[2,3,8] *[8,2] - *[2,2] - i64[2]:below2 i64[2]:from2",
     b_all,
     r_all,
     {TL_LSTM},
     .diff = 5,
     .rows = "bp-b-bb"},
    {.op = "recur",
     "gru and its gates",
     "*[2,3,6] *[6,2] *[6] - - - i64[2]:from2",
     b_all,
     r_all,
     {TL_GRU, 1},
     .diff = 3,
     .rows = "bpp---b"},
    GRAD("lstm", "*[2,3,2] - - *[2,3,2]:fixed *[2,3,2] c[2,3,8]:unit *[8,2] - - - - - -",
         "b--bbbp------", 1, TL_LSTM),
    GRAD("lstm of no steps",
         "- - - *[2,0,2] *[2,0,2] c[2,0,8] *[8,2] *[2,2]:fixed *[2,2] - - *[2,2] *[2,2]",
         "---bbbpbb--bb", 2, TL_LSTM),
    GRAD("gru of no steps", "- - - *[2,0,2] - c[2,0,8] *[6,2] *[2,2]:fixed - - - *[2,2] -",
         "---b-bpb---b-", 1, TL_GRU),
    GRAD("lstm with all",
         "*[2,4,2] *[2,4,2] c[2,4,8] *[2,4,2]:fixed *[2,4,2] c[2,4,8]:unit *[8,2] *[2,2]:fixed "
         "*[2,2] "
         "- i64[2]:from3 *[2,2] *[2,2]",
         "bbbbbbpbb-bbb", 3, TL_LSTM),
    GRAD("lstm reversed",
         "- *[2,3,2] - *[2,3,2]:fixed *[2,3,2] c[2,3,8]:unit *[8,2]:turned *[2,2]:fixed *[2,2] "
         "i64[2]:below2 - *[2,2] -",
         "-b-bbbpbbb-b-", 3, TL_LSTM, 1),
    GRAD("gru", "*[2,3,2] - - *[2,3,2] - c[2,3,8]:unit *[6,2] - - - - *[2,2] -", "b--b-bp----b-", 2,
         TL_GRU),
    GRAD("gru with all",
         "*[2,4,2] - c[2,4,8] *[2,4,2] - c[2,4,8]:unit *[6,2] *[2,2] - i64[2]:below2 "
         "i64[2]:from3 - -",
         "b-bb-bpb-bb--", 3, TL_GRU, 1),
    GRAD("tanh", "*[2,3,2] - - *[2,3,2]:unit - - *[2,2] *[2,2]:fixed - - i64[2]:from2 *[2,2] -",
         "b--b--pb--bb-", 2, TL_RNN_TANH),
    GRAD("relu", "*[2,3,2] - - *[2,3,2]:away:fixed - - *[2,2] - - i64[2]:below2 - - -",
         "b--b--p--b---", 1, TL_RNN_RELU, 1),
};
const int tl_cases_recur_count = sizeof tl_cases_recur / sizeof tl_cases_recur[0];
