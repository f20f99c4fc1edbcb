/* attention.c: cases of attention and its gradient as an op: NUMERICS 7. */
#include <math.h>

#include "tests/cases/cases.h"

/* p: scale (0: 1/sqrt(d)), full */
static int b_attention(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_attention(t, in[0], in[1], in[2], .scale = c->p[0], .full = c->p[1] != 0,
                          .key_start = in[3], .key_end = in[4]);
    return 1;
}

static double scale_of(const tl_case *c, const ref_tensor *q)
{
    return c->p[0] != 0 ? c->p[0] : 1 / sqrt((double)q->dim[3]);
}

/* start and end may be absent */
static ref_keys keys_of(const tl_case *c, const ref_tensor *range)
{
    return (ref_keys){c->p[1] == 0, tl_case_opt(&range[0]), tl_case_opt(&range[1])};
}

static void r_attention(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_attention(&in[0], &in[1], &in[2], scale_of(c, &in[0]), keys_of(c, &in[3]));
}

static void g_attention(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                        const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor d[3];
    (void)out;
    ref_attention_grad(dy, &in[0], &in[1], &in[2], scale_of(c, &in[0]), keys_of(c, &in[3]), &d[0],
                       &d[1], &d[2]);
    for (int i = 0; i < 3; i++)
        tl_case_continue(&acc[i], d[i]);
}

/* in: dy, q, k, v, key_start, key_end */
static int b_grad(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    const tl_op *op = tl_op_find("attention_grad");
    case_attrs a = {.bytes = {0}};
    tl_case_attr(op, &a, "scale", c->p[0]);
    tl_case_attr(op, &a, "full", c->p[1]);
    tl_apply(TL_AT(t), op, &a, in, 6, out);
    return 3;
}

static void r_grad(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    ref_attention_grad(&in[0], &in[1], &in[2], &in[3], scale_of(c, &in[1]), keys_of(c, &in[4]),
                       &out[0], &out[1], &out[2]);
}

/* in: q, k, v, key_start, mask, bias, offset; p: softcap, full; out: o, lse */
static int b_written(tl_tape *t, const tl_tensor *in, const tl_case *c, tl_tensor *out)
{
    out[0] = tl_attention(t, in[0], in[1], in[2], .softcap = c->p[0], .full = c->p[1] != 0,
                          .key_start = in[3], .mask = in[4], .bias = in[5], .offset = in[6],
                          .lse = &out[1]);
    return 2;
}

static void r_written(const tl_case *c, const ref_tensor *in, ref_tensor *out)
{
    out[0] = ref_attention_written(&in[0], &in[1], &in[2], keys_of(c, &in[3]).start,
                                   tl_case_opt(&in[4]), tl_case_opt(&in[5]), tl_case_opt(&in[6]),
                                   c->p[0], c->p[1] == 0, &out[1]);
}

/* q, k and v are cast first, so each gradient is cast back. */
static void g_written(const tl_case *c, const ref_tensor *in, const ref_tensor *out,
                      const ref_tensor *dy, ref_tensor *acc)
{
    ref_tensor d[3];
    (void)out;
    ref_attention_written_grad(dy, &in[0], &in[1], &in[2], keys_of(c, &in[3]).start,
                               tl_case_opt(&in[4]), tl_case_opt(&in[5]), tl_case_opt(&in[6]),
                               c->p[0], c->p[1] == 0, d);
    for (int i = 0; i < 3; i++) {
        tl_case_continue(&acc[i], ref_cast(&d[i], in[i].dtype));
        ref_free(&d[i]);
    }
}

#define WRITTEN_GRAD(name, in, how, softcap, full, ...)                                 \
    {                                                                                   \
        .op = "softmax", "attention, " name, in, b_written, r_written, {softcap, full}, \
        .rows = how, .diff = 2, .gradient = g_written, .acc = "ccc----", __VA_ARGS__    \
    }
#define WRITTEN(name, in, how, ...)                                                                \
    {                                                                                              \
        .op = "softmax", "attention, " name, in, b_written, r_written, {__VA_ARGS__}, .rows = how, \
        .diff = 2                                                                                  \
    }

#define QKV(q, qm, kv, kvm) "*[" q "]" qm " *[" kv "]" kvm " *[" kv "]" kvm
#define FORM(name, q, qm, kv, kvm, scale, full, ...)                                         \
    {.op = "attention",                                                                      \
     name,                                                                                   \
     QKV(q, qm, kv, kvm),                                                                    \
     b_attention,                                                                            \
     r_attention,                                                                            \
     {scale, full},                                                                          \
     .rows = "bbb",                                                                          \
     .gradient = g_attention,                                                                \
     .acc = "ccc",                                                                           \
     __VA_ARGS__},                                                                           \
    {                                                                                        \
        .op = "attention_grad", name, "*[" q "]" qm " " QKV(q, qm, kv, kvm), b_grad, r_grad, \
        {scale, full}, .rows = "bbbb", .diff = 3, __VA_ARGS__                                \
    }

/* The same with ranges of keys: b or nothing as word of each. */
#define RANGES(name, q, qm, kv, kvm, start, s, end, e, scale, full, ...)                       \
    {.op = "attention",                                                                        \
     name,                                                                                     \
     QKV(q, qm, kv, kvm) " " start " " end,                                                    \
     b_attention,                                                                              \
     r_attention,                                                                              \
     {scale, full},                                                                            \
     .rows = "bbb" s e,                                                                        \
     .gradient = g_attention,                                                                  \
     .acc = "ccc--",                                                                           \
     __VA_ARGS__},                                                                             \
    {                                                                                          \
        .op = "attention_grad", name, "*[" q "]" qm " " QKV(q, qm, kv, kvm) " " start " " end, \
        b_grad, r_grad, {scale, full}, .rows = "bbbb" s e, .diff = 3, __VA_ARGS__              \
    }

const tl_case tl_cases_attention[] = {
    WRITTEN_GRAD("lse", "*[2,2,3,4] *[2,2,5,4] *[2,2,5,4] - - - -", "bbb----", 0, 0),
    WRITTEN_GRAD("no dims of keys", "*[2,1,2,0] *[2,1,3,0] *[2,1,3,2] - - - -", "bbb----", 0, 1),
    WRITTEN_GRAD("full, wide values", "*[2,4,3,4] *[2,2,5,4] *[2,2,5,7] - - - -", "bbb----", 0, 1),
    WRITTEN("softcap and a bias", "*[2,2,3,4]:turned *[2,1,5,4] *[2,1,5,3] - - *[2,2,3,5] -",
            "bbb--b-", 2, 0),
    WRITTEN_GRAD("softcap in groups",
                 "*[3,4,4,3] *[3,2,6,3] *[3,2,6,2] i64[3]:below3 bool[4,6]:mask "
                 "*[4,1,6]:fixed i64[3]:from2",
                 "bbbb--b", 1.5, 0, .flags = CASE_NO_CHECK), /* a query without keys: lse -inf */
    WRITTEN("a bias of keys", "*[2,2,3,4] *[2,2,5,4] *[2,2,5,4] - - *[5] -", "bbb----", 0, 1),
    WRITTEN_GRAD("a mask", "*[2,2,3,4] *[2,2,9,4] *[2,2,9,4] - bool[2,1,3,9]:mask - -", "bbb-b--",
                 0, 1),
    WRITTEN_GRAD("offsets", "*[3,2,4,3] *[3,2,6,3] *[3,2,6,3] - - - i64[3]:below4", "bbb---b", 0,
                 0),
    WRITTEN("all of them",
            "*[3,4,4,3] *[3,2,6,3] *[3,2,6,2] i64[3]:below3 bool[4,6]:mask *[4,1,6] "
            "i64[3]:from2",
            "bbbb--b", 1.5, 0),
    FORM("causal", "2,1,3,4", "", "2,1,3,4", "", 0, 0, .flags = 0),
    FORM("full", "1,1,3,4", "", "1,1,3,4", "", 0, 1, .flags = 0),
    FORM("two heads", "2,2,5,3", "", "2,2,5,3", "", 0, 0, .flags = 0),
    FORM("groups of 2", "1,4,3,4", "", "1,2,3,4", "", 0, 0, .flags = 0),
    FORM("groups of 4", "1,4,3,2", "", "1,1,3,2", "", 0, 0, .flags = 0),
    FORM("memory by position", "2,2,3,4", ":heads", "2,2,3,4", ":heads", 0, 0, .flags = 0),
    FORM("memory by position, groups", "2,4,3,4", ":heads", "2,2,3,4", ":heads", 0.3, 1,
         .flags = 0),
    FORM("turned", "1,2,3,5", ":turned", "1,2,4,5", ":turned", 0, 0, .flags = 0),
    FORM("strided", "1,2,3,5", ":strided", "1,2,3,5", ":padded", 0, 0, .flags = 0),
    FORM("more keys", "1,2,2,4", "", "1,1,5,4", "", 0, 0, .flags = 0),
    FORM("more keys, full", "1,1,2,4", "", "1,1,5,4", "", 0, 1, .flags = 0),
    FORM("fewer keys: rows without any", "1,1,5,4", "", "1,1,2,4", "", 0, 0, .flags = 0),
    FORM("one query", "2,2,1,4", "", "2,1,7,4", "", 0, 0, .flags = 0),
    FORM("one of all", "1,1,1,1", "", "1,1,1,1", "", 0, 0,
         .flags = CASE_NO_CHECK), /* p = 1: gradient zero by q and k */
    FORM("negative scale", "1,1,4,4", "", "1,1,4,4", "", -0.7, 0, .flags = 0),
    FORM("33 keys", "1,1,3,5", "", "1,1,33,5", "", 0, 0, .flags = 0),
    FORM("33 queries", "1,2,33,8", "", "1,1,33,8", "", 0, 0, .flags = CASE_NO_CHECK), /* slow */
    FORM("65 keys, 17 dims", "1,2,7,17", "", "1,2,65,17", "", 0, 1, .flags = CASE_NO_CHECK),
    FORM("70 of both, 64 dims", "1,2,70,64", ":heads", "1,1,70,64", ":heads", 0, 0,
         .flags = CASE_BIG),
    FORM("140 of both", "2,2,140,16", "", "2,1,140,16", "", 0, 0, .flags = CASE_BIG),
    FORM("no queries", "1,1,0,4", "", "1,1,3,4", "", 0, 1,
         .flags = CASE_NO_CHECK), /* no elements */
    FORM("no keys", "1,1,3,4", "", "1,1,0,4", "", 0, 1, .flags = CASE_NO_CHECK),
    FORM("no batch", "0,2,3,4", "", "0,1,3,4", "", 0, 0, .flags = CASE_NO_CHECK),
    RANGES("padded on the left", "3,2,5,4", "", "3,1,5,4", "", "i64[3]:below5", "b", "-", "-", 0, 0,
           .flags = 0),
    RANGES("padded on the right", "3,1,4,3", "", "3,1,6,3", "", "-", "-", "i64[3]:below7:strided",
           "b", 0, 1, .flags = 0),
    RANGES("padded on both sides", "2,2,3,4", ":heads", "2,2,6,4", ":heads", "i64[2]:below4", "b",
           "i64[2]:from4", "b", 0.4, 1, .flags = 0),
    RANGES("both sides, causal", "3,1,6,2", ":strided", "3,1,6,2", ":turned", "i64[3]:below3", "b",
           "i64[3]:from4", "b", 0, 0, .flags = 0),
    RANGES("one query, ranges", "3,2,1,4", "", "3,1,9,4", "", "i64[3]:below4", "b", "i64[3]:from4",
           "b", 0, 0, .flags = 0),
    RANGES("no keys allowed", "2,1,3,4", "", "2,1,3,4", "", "-", "-", "i64[2]:below1", "b", 0, 1,
           .flags = CASE_NO_CHECK), /* all zero */
    RANGES("ranges of 70", "3,2,70,16", "", "3,1,70,16", "", "i64[3]:below40", "b", "i64[3]:from66",
           "b", 0, 0, .flags = CASE_NO_CHECK), /* slow */
    RANGES("ranges of 140", "3,2,140,16", "", "3,2,140,16", ":heads", "i64[3]:below70", "b",
           "i64[3]:from100", "b", 0, 0, .flags = CASE_BIG),
};
const int tl_cases_attention_count = sizeof tl_cases_attention / sizeof tl_cases_attention[0];
