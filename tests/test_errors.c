/* Misuse of every op: the status, the message with its numbers and the caller's place, and nothing
 * recorded. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tally_extend.h>

#include "ops/optimize.h"
#include "ops/norm.h"

extern const struct CMUnitTest tl_tests_errors[];
extern const size_t tl_tests_errors_count;

static tl_tape *t;
static tl_tape_memory before;
static tl_tensor image, a21, a23, a32, a24, v3, v4, empty, scalar, d23, h23, i3, i23, b23,
    x4; /* by dtype (a F32, d F64, h F16, i I64, b BOOL) and shape */

static int make(void **unused)
{
    static const double numbers[64];
    const void *zeros = numbers; /* of any dtype */
    (void)unused;
    t = tl_tape_new(NULL);
    a23 = tl_data(t, zeros, TL_F32, TL_DIMS(2, 3));
    a32 = tl_data(t, zeros, TL_F32, TL_DIMS(3, 2));
    a21 = tl_data(t, zeros, TL_F32, TL_DIMS(2, 1));
    a24 = tl_data(t, zeros, TL_F32, TL_DIMS(2, 4));
    v3 = tl_data(t, zeros, TL_F32, TL_DIMS(3));
    v4 = tl_data(t, zeros, TL_F32, TL_DIMS(4));
    empty = tl_data(t, zeros, TL_F32, TL_DIMS(0, 3));
    scalar = tl_data(t, zeros, TL_F32, TL_SCALAR);
    d23 = tl_data(t, zeros, TL_F64, TL_DIMS(2, 3));
    h23 = tl_data(t, zeros, TL_F16, TL_DIMS(2, 3));
    i3 = tl_data(t, zeros, TL_I64, TL_DIMS(3));
    image = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 2, 2));
    i23 = tl_data(t, zeros, TL_I64, TL_DIMS(2, 3));
    b23 = tl_data(t, zeros, TL_BOOL, TL_DIMS(2, 3));
    x4 = tl_data(t, zeros, TL_F32, TL_DIMS(1, 4, 2, 6));
    before = tl_memory_stats(t);
    return tl_failed(t);
}

static int end(void **unused)
{
    (void)unused;
    tl_free(t);
    return 0;
}

/* The message ends in this file's name and a line of the call; compilers count a macro that spans
 * several lines at its first or at its last one. */
static int names_the_place(int line)
{
    const char *place = strstr(tl_error(t), "(" __FILE__ ":");
    int said = place == NULL ? -1 : atoi(place + sizeof "(" __FILE__);
    return said > line - 5 && said < line + 5;
}

static void refused(tl_tensor got, tl_status want, const char *op, const char *words, int line,
                    const char *call)
{
    tl_tape_memory now = tl_memory_stats(t);
    if (!tl_failed(t) || !tl_is_none(got))
        fail_msg("line %d: %s is accepted", line, call);
    if (tl_error_status(t) != want)
        fail_msg("line %d: %s: %s wanted, got %s: %s", line, call, tl_status_name(want),
                 tl_status_name(tl_error_status(t)), tl_error(t));
    if (strncmp(tl_error(t), op, strlen(op)) != 0 ||
        strncmp(tl_error(t) + strlen(op), ": ", 2) != 0)
        fail_msg("line %d: %s: the op is not named: %s", line, call, tl_error(t));
    if (strstr(tl_error(t), words) == NULL || !names_the_place(line))
        fail_msg("line %d: %s: '%s' and its place wanted in: %s", line, call, words, tl_error(t));
    if (now.nodes != before.nodes || now.values != before.values ||
        now.tape.used != before.tape.used || now.tape.blocks != before.tape.blocks)
        fail_msg("line %d: %s: something was recorded or kept", line, call);
    tl_error_clear(t);
}

#define REFUSES(status, op, words, call) refused((call), TL_##status, op, words, __LINE__, #call)
#define L(x) ((int64_t)(x))
static const int64_t FAR = INT64_MAX;

static void pointwise(void **unused)
{
    (void)unused;
#define UNARY(name)                                    \
    REFUSES(EDTYPE, #name, "I64", tl_##name(t, i23));  \
    REFUSES(EDTYPE, #name, "BOOL", tl_##name(t, b23)); \
    REFUSES(ESTALE, #name, "failed", tl_##name(t, TL_NONE));
    TL_UNARY_OPS(UNARY)
#define BINARY(name)                                                     \
    REFUSES(ESHAPE, #name, "[2, 3] and [2, 4]", tl_##name(t, a23, a24)); \
    REFUSES(ESHAPE, #name, "3 and 4", tl_##name(t, v3, v4));             \
    REFUSES(EDTYPE, #name, "F32 and F64", tl_##name(t, a23, d23));       \
    REFUSES(EDTYPE, #name, "F16", tl_##name(t, d23, h23));               \
    REFUSES(ESTALE, #name, "failed", tl_##name(t, TL_NONE, a23));
    TL_BINARY_OPS(BINARY)
    REFUSES(EDTYPE, "add", "I64", tl_add(t, a23, i23));
    REFUSES(EDTYPE, "div", "I64", tl_div(t, i23, i23));
    REFUSES(EDTYPE, "swiglu", "I64", tl_swiglu(t, a23, i23));
    REFUSES(EDTYPE, "lt", "I64", tl_lt(t, a23, i23));
    REFUSES(EDTYPE, "eq", "bool", tl_eq(t, b23, b23));
    REFUSES(EDTYPE, "scale", "I64", tl_scale(t, i3, 2));
    REFUSES(EDTYPE, "shift", "BOOL", tl_shift(t, b23, 2));
    REFUSES(EDTYPE, "pow", "I64", tl_pow(t, i3, 2));
    REFUSES(EDOMAIN, "pow", "exponent is NaN", tl_pow(t, a23, (double)NAN));
    double to;
    REFUSES(ESHAPE, "tl_watch", "[2, 3]", (tl_watch(t, a23, &to), TL_NONE));
    REFUSES(EDTYPE, "where", "F32", tl_where(t, a23, a23, a23));
    REFUSES(EDTYPE, "where", "I64 and F32", tl_where(t, b23, i23, a23));
    REFUSES(EDTYPE, "where", "F64", tl_where(t, b23, a23, d23));
    REFUSES(ESHAPE, "where", "[2, 3] and [2, 4]", tl_where(t, b23, a23, a24));
    REFUSES(ESHAPE, "where", "[2, 4]", tl_where(t, b23, a24, a24));
    REFUSES(EDTYPE, "cast", "42", tl_cast(t, a23, (tl_dtype)42));
    REFUSES(EDTYPE, "fill", "-1", tl_fill(t, (tl_dtype)-1, TL_DIMS(2), 0));
    REFUSES(EDOMAIN, "scalar", "0.5 is not an i64", tl_scalar(t, TL_I64, 0.5));
    REFUSES(EDOMAIN, "fill", "nan is not an i64", tl_fill(t, TL_I64, TL_DIMS(2), (double)NAN));
    REFUSES(EDOMAIN, "fill", "9.2233720368547758e+18", tl_fill(t, TL_I64, TL_DIMS(2), 0x1p63));
    REFUSES(ESHAPE, "fill", "-2", tl_fill(t, TL_F32, TL_DIMS(3, -2), 0));
    REFUSES(ESHAPE, "fill", "[4611686018427387904, 4]",
            tl_fill(t, TL_F32, TL_DIMS(L(1) << 62, 4), 0));
    REFUSES(ENOMEM, "fill", "4611686018427387904", tl_fill(t, TL_F32, TL_DIMS(L(1) << 60), 0));
    REFUSES(ESHAPE, "fill", "9 dims", tl_fill(t, TL_F32, ((tl_shape){9, {1}}), 0));
}

static void views(void **unused)
{
    (void)unused;
    tl_tensor part[2];
    REFUSES(ESHAPE, "split", "pieces of 0; 1 is the least",
            (tl_split(t, a23, 0, 1, part, 2), TL_NONE));
    REFUSES(ESHAPE, "reshape", "[2, 3] has 6 elements, [4] would have 4",
            tl_reshape(t, a23, TL_DIMS(4)));
    REFUSES(ESHAPE, "reshape", "[4, -1]", tl_reshape(t, a23, TL_DIMS(4, -1)));
    REFUSES(ESHAPE, "reshape", "-1", tl_reshape(t, a23, TL_DIMS(-1, -1)));
    REFUSES(ESHAPE, "reshape", "-2", tl_reshape(t, a23, TL_DIMS(-2, -3)));
    REFUSES(ESHAPE, "reshape", "[0, -1]", tl_reshape(t, empty, TL_DIMS(0, -1)));
    REFUSES(ESHAPE, "reshape", "[1099511627776, 1099511627776]",
            tl_reshape(t, a23, TL_DIMS(L(1) << 40, L(1) << 40)));
    REFUSES(ESHAPE, "reshape", "[4294967296, 4294967296]",
            tl_reshape(t, empty, TL_DIMS(L(1) << 32, L(1) << 32)));
    REFUSES(ESHAPE, "reshape", "[2617318, 7047956753329]: that overflows", /* to 6 */
            tl_reshape(t, a23, TL_DIMS(2617318, L(7047956753329))));
    REFUSES(ESHAPE, "reshape", "9 dims", tl_reshape(t, a23, ((tl_shape){9, {1}})));
    REFUSES(ESHAPE, "permute", "1 dims listed for a tensor of 2", tl_permute(t, a23, TL_DIMS(0)));
    REFUSES(ESHAPE, "permute", "dim 1 is listed twice", tl_permute(t, a23, TL_DIMS(1, -1)));
    REFUSES(ESHAPE, "permute", "dim 2 does not exist in 2 dims", tl_permute(t, a23, TL_DIMS(0, 2)));
    REFUSES(ESHAPE, "transpose", "dim -3 does not exist in [2, 3], which has 2",
            tl_transpose(t, a23, -3, 0));
    REFUSES(ESHAPE, "transpose", "dim 7 does not exist in [2, 3]", tl_transpose(t, a23, 0, 7));
    REFUSES(ESHAPE, "transpose", "dim 5 does not exist in [], which has 0",
            tl_transpose(t, scalar, 5, 9));
    REFUSES(EDTYPE, "floor_divide", "input 0 is F32", tl_floor_divide(t, a23, a23));
    REFUSES(EDTYPE, "add", "bool operands", tl_add(t, b23, b23));
    REFUSES(EDTYPE, "mul", "I64 and F32 do not mix", tl_mul(t, i23, a23));
    REFUSES(EDOMAIN, "floor_divide", "element 0 of the divisor is 0", tl_floor_divide(t, i23, i23));
    REFUSES(EDOMAIN, "remainder", "element 0 of the divisor is 0", tl_remainder(t, i23, i23));
    REFUSES(EDOMAIN, "arange", "from 0 to 3 by 0", tl_arange(t, TL_F32, 0, 3, 0));
    REFUSES(EDOMAIN, "arange", "from 3 to 0 by 0; the step must", tl_arange(t, TL_F32, 3, 0, 0));
    REFUSES(EDOMAIN, "arange", "from 0.5 by 1; I64 needs", tl_arange(t, TL_I64, 0.5, 3, 1));
    REFUSES(EDOMAIN, "arange", "from 0 by 0.5; I64 needs", tl_arange(t, TL_I64, 0, 3, 0.5));
    REFUSES(EDOMAIN, "arange", "the numbers are doubles",
            tl_arange(t, TL_I64, 0x1p53, 0x1p53 + 4, 1));
    REFUSES(EDOMAIN, "arange", "the numbers are doubles",
            tl_arange(t, TL_I64, -0x1p53, -0x1p53 - 4, -1));
    REFUSES(EDOMAIN, "arange", "and that far apart",
            tl_arange(t, TL_I64, -0x1p53, 0x1p53, 4503599627370497));
    REFUSES(EDOMAIN, "arange", "by nan", tl_arange(t, TL_F32, 0, 3, (double)NAN));
    REFUSES(ESHAPE, "tril", "x has 0 dims", tl_tril(t, scalar, 0));
    REFUSES(ESHAPE, "diagonal", "dim 1 of [2, 3] is listed twice", tl_diagonal(t, a23, 0, 1, -1));
    REFUSES(EDTYPE, "attention", "the mask is F32",
            tl_attention(t, image, image, image, .mask = scalar));
    REFUSES(EDOMAIN, "attention", "the scale is NaN",
            tl_attention(t, image, image, image, .scale = (double)NAN));
    REFUSES(EDOMAIN, "attention", "softcap is -1",
            tl_attention(t, image, image, image, .softcap = -1));
    REFUSES(ESHAPE, "attention", "key_end has shape [3]; one number for each of the 2 samples",
            tl_attention(t, image, image, image, .softcap = 1, .key_end = i3));
    REFUSES(ESHAPE, "attention", "offset has shape [3]",
            tl_attention(t, image, image, image, .offset = i3));
    REFUSES(EDTYPE, "attention", "key_start is F32; I64 is needed",
            tl_attention(t, image, image, image, .softcap = 1, .key_start = v3));
    REFUSES(ESHAPE, "attention", "(b, hkv, sk, dv)",
            tl_attention(t, image, image, a23, .softcap = 1));
    REFUSES(ESHAPE, "conv2d", "x [2, 3] and w [2, 3] with .groups = 1", tl_conv2d(t, a23, a23));
    REFUSES(ESHAPE, "conv2d", "with .groups = 2", tl_conv2d(t, image, image, .groups = 2));
    REFUSES(EDOMAIN, "conv2d", "a kernel of 2 with stride -1, dilation 1 and padding 0",
            tl_conv2d(t, image, image, .stride = {-1}));
    REFUSES(EDOMAIN, "conv2d",
            "a kernel of 2 with stride 1, dilation 3 and padding 0 finds no place in 2",
            tl_conv2d(t, image, image, .dilation = {3}));
    REFUSES(EDOMAIN, "conv2d", "over 2: all must be below 2^30",
            tl_conv2d(t, image, image, .padding = {L(1) << 40}));
    REFUSES(ESHAPE, "max_pool1d", "x has 2 dims; it needs 3", tl_max_pool1d(t, a23));
    REFUSES(EDOMAIN, "attention", "softcap is inf",
            tl_attention(t, image, image, image, .softcap = (double)INFINITY));
    REFUSES(EDOMAIN, "max_pool2d",
            "pool_places: windows of 2 with stride 2, dilation 1 and padding 2 find no element",
            tl_max_pool2d(t, image, .kernel = {2, 2}, .padding = {2}));
    REFUSES(EDOMAIN, "avg_pool2d", ".kernel 2, .stride -1, .padding 0, .dilation 0; none can be",
            tl_avg_pool2d(t, image, .kernel = {2, 2}, .stride = {-1}));
    REFUSES(EDOMAIN, "max_pool2d", ".kernel -1", tl_max_pool2d(t, image, .kernel = {2, -1}));
    REFUSES(EDOMAIN, "clamp", "from nan to 1; bounds are numbers",
            tl_clamp(t, a23, (double)NAN, 1));
    REFUSES(EDOMAIN, "arange", "from 0 to inf by 1; fewer than 2^53",
            tl_arange(t, TL_F32, 0, (double)INFINITY, 1));
    REFUSES(EDOMAIN, "arange", "fewer than 2^53", tl_arange(t, TL_F32, 0, 0x1p53, 1));
    REFUSES(EDOMAIN, "pad", "-1 before and 0 after dim 1", tl_pad(t, a23, 1, -1, 0, 0));
    REFUSES(EDOMAIN, "topk", "4 of dim 1, which has 3", tl_topk(t, a23, 4, 1, false, NULL));
    REFUSES(EDOMAIN, "topk", "-1 of dim 1", tl_topk(t, a23, -1, 1, false, NULL));
    REFUSES(EDTYPE, "argsort", "x is BOOL", tl_argsort(t, b23, 1, false));
    REFUSES(ESHAPE, "index_select", "x has 2 dims, ids 2", tl_index_select(t, a23, 0, i23));
    REFUSES(EINDEX, "slice", "by 0", tl_slice(t, a23, 1, 0, 1, 0));
    REFUSES(EINDEX, "slice", "by -1", tl_slice(t, a23, 1, 0, 1, -1));
    REFUSES(ESHAPE, "slice", "dim 2 does not exist in 2 dims", tl_slice(t, a23, 2, 0, 1, 1));
    REFUSES(ESHAPE, "slice", "dim 0 does not exist in 0 dims", tl_slice(t, scalar, 0, 0, 1, 1));
    REFUSES(EINDEX, "select", "index 3 of dim 1, which has size 3", tl_select(t, a23, 1, 3));
    REFUSES(EINDEX, "select", "index -4", tl_select(t, a23, 1, -4));
    REFUSES(EINDEX, "select", "index 0 of dim 0, which has size 0", tl_select(t, empty, 0, 0));
    REFUSES(EINDEX, "select", "-9223372036854775808", tl_select(t, a23, 0, INT64_MIN));
    REFUSES(ESHAPE, "select", "dim -3", tl_select(t, a23, -3, 0));
    REFUSES(ESHAPE, "expand", "[2, 3] does not expand to [4, 3]", tl_expand(t, a23, TL_DIMS(4, 3)));
    REFUSES(ESHAPE, "expand", "[2, 3] does not expand to [3]", tl_expand(t, a23, TL_DIMS(3)));
    REFUSES(ESHAPE, "expand", "-1", tl_expand(t, scalar, TL_DIMS(-1)));
    REFUSES(ESHAPE, "expand", "[4611686018427387904, 8]",
            tl_expand(t, scalar, TL_DIMS(L(1) << 62, 8)));
    REFUSES(ESHAPE, "concat", "input 1 has shape [3, 2], input 0 [2, 3]",
            tl_concat(t, ((tl_tensor[]){a23, a32}), 2, 0));
    REFUSES(ESHAPE, "concat", "[3]", tl_concat(t, ((tl_tensor[]){a23, v3}), 2, 0));
    REFUSES(EDTYPE, "concat", "input 1 is F64, input 0 F32",
            tl_concat(t, ((tl_tensor[]){a23, d23}), 2, 0));
    REFUSES(ESHAPE, "concat", "dim 2", tl_concat(t, ((tl_tensor[]){a23, a23}), 2, 2));
    REFUSES(ESHAPE, "concat", "nothing", tl_concat(t, NULL, 0, 0));
    REFUSES(ESHAPE, "concat", "0 dims", tl_concat(t, &scalar, 1, 0));
    REFUSES(EINDEX, "slice_grad", "3 elements from 1 by 1 do not fit in size 3",
            tl_slice_grad(t, a23, 3, 1, 1, 1));
    REFUSES(EINDEX, "slice_grad", "by 0", tl_slice_grad(t, a23, 3, 1, 0, 0));
    REFUSES(EINDEX, "slice_grad", "from -1", tl_slice_grad(t, a23, 5, 1, -1, 1));
    REFUSES(EINDEX, "slice_grad", "9223372036854775807", tl_slice_grad(t, a23, 5, 1, 1, FAR));
    REFUSES(EINDEX, "slice_grad", "1 elements from 3 by 2 do not fit in size 3",
            tl_slice_grad(t, a21, 3, 1, 3, 2));
    REFUSES(EINDEX, "slice_grad", "0 elements from -1", tl_slice_grad(t, empty, 5, 0, -1, 1));
    REFUSES(EINDEX, "slice_grad", "in size -1", tl_slice_grad(t, empty, -1, 0, 0, 1));
}

/* What is made of other ops is named first, and then the op that refuses. */
static void named(tl_tensor got, const char *op, const char *words, const char *call)
{
    if (!tl_is_none(got) || strncmp(tl_error(t), op, strlen(op)) != 0 ||
        strncmp(tl_error(t) + strlen(op), ": ", 2) != 0 || strstr(tl_error(t), words) == NULL)
        fail_msg("%s: '%s: ... %s' wanted in: %s", call, op, words, tl_error(t));
    tl_error_clear(t);
    before = tl_memory_stats(t); /* steps before the one that refuses may be there */
}
#define NAMED(op, words, call) named((call), op, words, #call)

static void the_call_is_named(void **unused)
{
    (void)unused;
    NAMED("softmax", "I64", tl_softmax(t, i23, 0));
    NAMED("softmax", "dim 7", tl_softmax(t, a23, 7));
    NAMED("log_softmax", "dim 7", tl_log_softmax(t, a23, 7));
    NAMED("avg_pool1d", "dims", tl_avg_pool1d(t, a23, .kernel = {2}));
    tl_tensor line = tl_reshape(t, a23, TL_DIMS(1, 2, 3));
    NAMED("bmm", "[1, 2, 3] @ [2, 3, 1]; two tensors of 3 dims and one batch size",
          tl_bmm(t, line, tl_reshape(t, a23, TL_DIMS(2, 3, 1))));
    NAMED("max_pool1d", "windows of 1 with stride 3, dilation 1 and padding 1 find no element in 3",
          tl_max_pool1d(t, line, .kernel = {1}, .stride = {3}, .padding = {1})); /* the first */
    NAMED("max_pool1d", "a second .kernel (0), .stride (2)",
          tl_max_pool1d(t, line, .kernel = {2}, .stride = {1, 2}));
    NAMED("conv1d", "or .dilation (3)",
          tl_conv1d(t, line, tl_reshape(t, a23, TL_DIMS(1, 2, 3)), .dilation = {1, 3}));
    NAMED("max_pool1d", "windows of 4 with stride 5, dilation 1 and padding 0 find no element in 3",
          tl_max_pool1d(t, line, .kernel = {4}, .stride = {5}));
    NAMED("rotary_ids", "position ids [1, 2] for x [2, 2, 2, 2]",
          tl_rotary_ids(t, image, a32, a32, tl_zeros(t, TL_I64, TL_DIMS(1, 2)), 2, TL_ROTARY_HALF));
    NAMED("max_pool1d", "a second .kernel (3)", tl_max_pool1d(t, line, .kernel = {2, 3}));
    NAMED("conv1d", "w [3, 1, 2] with .groups = 2; (n, c, ...) and (o, c/groups, ...)",
          tl_conv1d(t, line, tl_reshape(t, a32, TL_DIMS(3, 1, 2)), .groups = 2));
    NAMED("conv1d", "a second .stride (0), .padding (2)",
          tl_conv1d(t, line, tl_reshape(t, a23, TL_DIMS(1, 2, 3)), .padding = {1, 2}));
    NAMED("avg_pool2d", "dims", tl_avg_pool2d(t, a23, .kernel = {2, 2}));
    NAMED("conv1d", "(n, c, ...)", tl_conv1d(t, a23, a23));
    NAMED("stack", "[2, 4]", tl_stack(t, ((tl_tensor[]){a23, a24}), 2, 0));
    NAMED("mm", "[2, 3]", tl_mm(t, a23, a23));
    NAMED("addmm", "[2, 3]", tl_addmm(t, a23, a23, a23, 1, 1));
    NAMED("mse", "[2, 4]", tl_mse(t, a23, a24));
    NAMED("var", "dim 7", tl_var(t, a23, TL_DIMS(7), 1, false));
    NAMED("min", "dim 7", tl_min(t, a23, TL_DIMS(7), false));
    NAMED("logsumexp", "dim 7", tl_logsumexp(t, a23, TL_DIMS(7), false));
    NAMED("scalar", "99", tl_scalar(t, (tl_dtype)99, 0));
}

static void extremes_that_are_right(void **unused)
{
    (void)unused;
    tl_tensor x = tl_slice(t, a23, 0, 0, 2, FAR); /* one element of every 2^63 - 1 */
    assert_string_equal(tl_error(t), "");
    assert_int_equal(tl_shape_of(t, x).dim[0], 1);
    assert_int_equal(tl_shape_of(t, tl_slice(t, a23, 1, 3, 3, FAR)).dim[1], 0);
    assert_int_equal(tl_shape_of(t, tl_reshape(t, empty, TL_DIMS(-1, 3))).dim[0], 0);
    assert_int_equal(tl_shape_of(t, tl_slice(t, a23, 1, 2, 1, 1)).dim[1], 0);
    assert_int_equal(tl_shape_of(t, tl_arange(t, TL_F32, 5, 2, 1)).dim[0], 0);
    assert_int_equal(tl_shape_of(t, tl_diagonal(t, a23, INT64_MIN, 0, 1)).dim[0], 0);
    assert_int_equal(tl_shape_of(t, tl_diagonal(t, a23, FAR, 0, 1)).dim[0], 0);
    tl_tensor all = tl_tril(t, a23, FAR), kept = tl_triu(t, a23, INT64_MIN);
    assert_true(tl_shape_of(t, all).dim[1] == 3 && tl_shape_of(t, kept).dim[1] == 3);
    assert_true(
        isnan(tl_item(t, tl_mean(t, empty, TL_ALL, false)))); /* 0/0, as the contract has it */
    assert_true(tl_item(t, tl_sum(t, empty, TL_ALL, false)) == 0);
    assert_int_equal(tl_shape_of(t, tl_matmul(t, tl_transpose(t, empty, 0, 1), empty)).dim[0], 3);
    assert_string_equal(tl_error(t), "");
}

static void reductions_and_rows(void **unused)
{
    (void)unused;
#define REDUCTION(name)                                                   \
    REFUSES(EDTYPE, #name, "I64", tl_##name(t, i3, TL_ALL, false));       \
    REFUSES(ESHAPE, #name, "dim 2 does not exist in [2, 3], which has 2", \
            tl_##name(t, a23, TL_DIMS(0, 2), false));                     \
    REFUSES(ESHAPE, #name, "dim -3 does not exist in [2, 3]",             \
            tl_##name(t, a23, TL_DIMS(-3), false));                       \
    REFUSES(ESHAPE, #name, "dim 1 of [2, 3] is listed twice",             \
            tl_##name(t, a23, TL_DIMS(1, -1), true));                     \
    REFUSES(ESHAPE, #name, "dim 0 does not exist in []", tl_##name(t, scalar, TL_DIMS(0), true));
    REDUCTION(sum)
    REDUCTION(mean)
    REDUCTION(max)
    REDUCTION(min)
    REFUSES(EDTYPE, "var", "x is I64", tl_var(t, i3, TL_ALL, 1, false));
    REFUSES(ESHAPE, "var", "dim 5 does not exist in [2, 3], which has 2",
            tl_var(t, a23, TL_DIMS(5), 1, false));
    REFUSES(ESHAPE, "var", "dim 0 of [2, 3] is listed twice",
            tl_var(t, a23, TL_DIMS(0, 0), 0, false));
    REFUSES(ESHAPE, "mse", "[2, 3] and [2, 4]", tl_mse(t, a23, a24));
    REFUSES(ESHAPE, "mse", "neither [2, 1] nor [3] has the shape of both, [2, 3]",
            tl_mse(t, a21, v3));
    REFUSES(EDTYPE, "mse", "F32 and I64 do not mix", tl_mse(t, a23, i23));
    REFUSES(ESHAPE, "max", "dim 0 of [0, 3] is empty", tl_max(t, empty, TL_DIMS(0), false));
    REFUSES(ESHAPE, "argmax", "[0, 3]", tl_argmax(t, empty, 0, false));
    REFUSES(ESHAPE, "argmax", "dim 5 does not exist in [2, 3], which has 2",
            tl_argmax(t, a23, 5, false));
    REFUSES(EDTYPE, "argmax", "I64", tl_argmax(t, i23, 0, false));
    REFUSES(ESHAPE, "sum_to", "[2, 3] does not fold down to [2, 2]",
            tl_sum_to(t, a23, TL_DIMS(2, 2), TL_NONE));
    REFUSES(ESHAPE, "sum_to", "[1, 2, 3]", tl_sum_to(t, a23, TL_DIMS(1, 2, 3), TL_NONE));
    REFUSES(EDTYPE, "sum_to", "I64", tl_sum_to(t, i23, TL_DIMS(3), TL_NONE));
    REFUSES(ESHAPE, "sum_to", "[4] F32", tl_sum_to(t, a23, TL_DIMS(3), v4));
    REFUSES(EDTYPE, "sum_to", "the accumulator is F16; F64", tl_sum_to(t, a23, TL_DIMS(2, 3), h23));
    REFUSES(ESHAPE, "sum_to", "accumulator [3] F32 for a fold of F32 to [3]",
            tl_sum_to(t, a23, TL_DIMS(3), v3));
    REFUSES(EDTYPE, "softmax", "I64", tl_softmax(t, i23, -1));
    REFUSES(ESHAPE, "softmax", "0-d", tl_softmax(t, scalar, -1));
    REFUSES(EDTYPE, "log_softmax", "BOOL", tl_log_softmax(t, b23, -1));
    REFUSES(ESHAPE, "softmax", "dim 2 does not exist in [2, 3], which has 2",
            tl_softmax(t, a23, 2));
    REFUSES(ESHAPE, "log_softmax", "dim -3 does not exist in [2, 3], which has 2",
            tl_log_softmax(t, a23, -3));
    REFUSES(ESHAPE, "rms_norm", "gamma has shape [4], but x ends in [3]",
            tl_rms_norm(t, a23, v4, 1e-5));
    REFUSES(ESHAPE, "rms_norm", "[3, 2], but x ends in [2, 3]", tl_rms_norm(t, a23, a32, 1e-5));
    REFUSES(ESHAPE, "rms_norm", "x has 1", tl_rms_norm(t, v3, a23, 1e-5));
    REFUSES(ESHAPE, "rms_norm", "0", tl_rms_norm(t, scalar, TL_NONE, 1e-5));
    REFUSES(EDOMAIN, "rms_norm", "-0.001", tl_rms_norm(t, a23, v3, -1e-3));
    REFUSES(EDTYPE, "rms_norm", "I64", tl_rms_norm(t, i23, TL_NONE, 1e-5));
    REFUSES(EDTYPE, "rms_norm", "gamma is F32, x F64", tl_rms_norm(t, d23, v3, 1e-5));
    REFUSES(EDTYPE, "square_sum", "I64", tl_square_sum_at(TL_AT(t), i3));
}

static void products(void **unused)
{
    const int64_t wide = L(1) << 32;
    (void)unused;
    tl_tensor row = tl_zeros(t, TL_F32, TL_DIMS(wide, 0)), column = tl_transpose(t, row, 0, 1);
    tl_tensor batch = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 3)),
              other = tl_zeros(t, TL_F32, TL_DIMS(3, 3, 2));
    tl_tensor k3 = tl_zeros(t, TL_F32, TL_DIMS(1, 3, 2, 6)),
              d4 = tl_zeros(t, TL_F64, TL_DIMS(1, 4, 2, 6));
    tl_tensor k0 = tl_zeros(t, TL_F32, TL_DIMS(1, 0, 2, 6)),
              i4 = tl_zeros(t, TL_I64, TL_DIMS(2, 4));
    tl_tensor v1 = tl_zeros(t, TL_F32, TL_DIMS(1)), two = tl_zeros(t, TL_I64, TL_DIMS(2));
    tl_tensor three = tl_data(t, ((int64_t[]){3}), TL_I64, TL_DIMS(1)),
              minus = tl_data(t, ((int64_t[]){-1}), TL_I64, TL_DIMS(1));
    before = tl_memory_stats(t);
    REFUSES(EDTYPE, "matmul_to", "I64; a float is needed", tl_matmul_to(t, a23, a32, TL_I64));
    REFUSES(ESHAPE, "matmul", "[2, 3] @ [2, 3]", tl_matmul(t, a23, a23));
    REFUSES(EDTYPE, "matmul", "F32 @ F64", tl_matmul(t, a32, d23));
    REFUSES(EDTYPE, "matmul", "I64", tl_matmul(t, a32, i23));
    REFUSES(ESHAPE, "matmul", "[2, 2, 3] @ [3, 3, 2]: the batch dims", tl_matmul(t, batch, other));
    REFUSES(ESHAPE, "matmul", "[]", tl_matmul(t, scalar, a23));
    REFUSES(ESHAPE, "matmul", "[]", tl_matmul(t, a23, scalar));
    REFUSES(ESHAPE, "matmul", "[4294967296, 4294967296]", tl_matmul(t, row, column));
    REFUSES(ESHAPE, "matmul", "[3] F32",
            tl_matmul_into_at(TL_AT(t), a23, a32, v3, (tl_matmul_attrs){.batch = TL_SCALAR}));
    REFUSES(ESHAPE, "rotary", "3 rotated dims", tl_rotary(t, a23, v3, v3, TL_ROTARY_HALF));
    REFUSES(EDOMAIN, "rotary", "pairing 0", tl_rotary(t, a24, v4, v4, (tl_rotary_pairing)0));
    REFUSES(EDOMAIN, "rotary", "pairing 3", tl_rotary(t, a24, v4, v4, (tl_rotary_pairing)3));
    REFUSES(ESHAPE, "rotary", "4", tl_rotary(t, a32, v4, v4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "table [3, 2] does not broadcast to x [2, 4]",
            tl_rotary(t, a24, a32, a32, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "[3]", tl_rotary(t, a24, v4, v3, TL_ROTARY_HALF));
    REFUSES(EDTYPE, "rotary", "I64", tl_rotary(t, i4, v4, v4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "dim", tl_rotary(t, scalar, v4, v4, TL_ROTARY_HALF));
    REFUSES(EDTYPE, "rotary", "table is F32, x F64", tl_rotary(t, d4, x4, x4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "attention", "q [2, 3]", tl_attention(t, a23, a23, a23));
    REFUSES(ESHAPE, "attention", "k [1, 3, 2, 6]", tl_attention(t, x4, k3, k3, .full = true));
    REFUSES(EDTYPE, "attention", "F64", tl_attention(t, x4, x4, d4));
    REFUSES(ESHAPE, "attention", "k [1, 0, 2, 6]", tl_attention(t, x4, k0, k0));
    REFUSES(ESHAPE, "attention", "v [1, 3, 2, 6]", tl_attention(t, x4, x4, k3));
    REFUSES(EDTYPE, "attention", "I64", tl_attention(t, i4, i4, i4));
    tl_tensor narrow = tl_zeros(t, TL_F32, TL_DIMS(1, 4, 2, 5)),
              pair = tl_zeros(t, TL_F32, TL_DIMS(2, 4, 2, 6)),
              flat = tl_zeros(t, TL_F32, TL_DIMS(1, 4, 2));
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "attention", "q [1, 4, 2, 6], k [1, 4, 2, 5]",
            tl_attention(t, x4, narrow, narrow));
    REFUSES(ESHAPE, "attention", "q [1, 4, 2, 6], k [2, 4, 2, 6]", tl_attention(t, x4, pair, pair));
    REFUSES(ESHAPE, "attention", "q [1, 4, 2], k [1, 4, 2, 6]", tl_attention(t, flat, x4, x4));
    REFUSES(ESHAPE, "attention", "k [1, 4, 2], v [1, 4, 2]", tl_attention(t, x4, flat, flat));
    REFUSES(ESHAPE, "attention", "q [1, 4, 2], k [1, 4, 2, 6]",
            tl_attention(t, flat, x4, x4, .softcap = 1));
    tl_tensor lse = x4, b3 = tl_zeros(t, TL_BOOL, TL_DIMS(3));
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "attention", "the mask is [3], which does not broadcast to [1, 4, 2, 2] (b,",
            tl_attention(t, x4, x4, x4, .mask = b3, .lse = &lse));
    assert_true(tl_is_none(lse));
    REFUSES(ESHAPE, "attention", "the bias is [3], which does not broadcast to [1, 4, 2, 2] (b,",
            tl_attention(t, x4, x4, x4, .bias = v3));
    lse = x4;
    REFUSES(ESHAPE, "attention", "q [2, 3]", tl_attention(t, a23, a23, a23, .lse = &lse));
    assert_true(tl_is_none(lse));
    REFUSES(EDTYPE, "causal_mask", "one I64 for each sample",
            tl_causal_mask(t, 2, 2, .key_start = v1));
    REFUSES(ESHAPE, "causal_mask", "one I64 for each sample",
            tl_causal_mask(t, 2, 2, .key_end = i4));
    REFUSES(EDTYPE, "attention", "key_start is F32", tl_attention(t, x4, x4, x4, .key_start = v1));
    REFUSES(ESHAPE, "attention", "key_end has shape [2]; one number for each of the 1 samples",
            tl_attention(t, x4, x4, x4, .key_end = two));
    REFUSES(EINDEX, "attention", "sample 0 may see the keys from 3 up to 2, of 2",
            tl_attention(t, x4, x4, x4, .key_start = three));
    REFUSES(EINDEX, "attention", "from 0 up to 3, of 2",
            tl_attention(t, x4, x4, x4, .key_end = three));
    REFUSES(EINDEX, "attention", "from -1 up to 2",
            tl_attention(t, x4, x4, x4, .key_start = minus));
    REFUSES(ESHAPE, "causal_mask", "one I64 for each sample",
            tl_causal_mask(t, 2, 2, .key_start = two, .key_end = three));
    REFUSES(EUSAGE, "causal_mask", ".mask is attention's", tl_causal_mask(t, 2, 2, .mask = b23));
    REFUSES(EUSAGE, "causal_mask", ".bias is attention's", tl_causal_mask(t, 2, 2, .bias = a23));
    REFUSES(EUSAGE, "causal_mask", ".softcap is", tl_causal_mask(t, 2, 2, .softcap = 2));
    REFUSES(EUSAGE, "causal_mask", ".scale is", tl_causal_mask(t, 2, 2, .scale = 2));
    REFUSES(EUSAGE, "causal_mask", ".lse is", tl_causal_mask(t, 2, 2, .lse = &lse));
}

static void indices_and_targets(void **unused)
{
    (void)unused;
    tl_tensor ids = tl_data(t, ((int64_t[]){0, 2, 1}), TL_I64, TL_DIMS(3)),
              deep = tl_zeros(t, TL_I64, TL_DIMS(1, 1, 1, 1, 1, 1, 1, 1));
    tl_tensor classes = tl_data(t, ((int64_t[]){1, -100}), TL_I64, TL_DIMS(2)),
              many = tl_data(t, ((int64_t[]){0, 3}), TL_I64, TL_DIMS(2)),
              one = tl_zeros(t, TL_F32, TL_DIMS(1));
    before = tl_memory_stats(t);
    REFUSES(EINDEX, "embedding", "id 2 at position 1; the table has 2 rows",
            tl_embedding(t, a23, ids));
    REFUSES(EINDEX, "embedding", "id -100 at position 1; the table has 3 rows",
            tl_embedding(t, a32, classes));
    REFUSES(ESHAPE, "positions_after", "starts of shape [2], I64, for 3 offsets",
            tl_positions_after(t, many, ids, 4));
    REFUSES(ESHAPE, "positions_after", "starts of shape [2, 3], F32",
            tl_positions_after(t, a23, ids, 4));
    tl_tensor last = tl_data(t, ((int64_t[]){FAR - 1}), TL_I64, TL_DIMS(1));
    int64_t place[2] = {0, 0};
    tl_keep(t, tl_positions(t, last, 2), place, sizeof place);
    assert_true(place[0] == FAR - 1 && place[1] == FAR);
    before = tl_memory_stats(t);
    REFUSES(EINDEX, "positions", "overflow 64 bits", tl_positions(t, last, 3));
    REFUSES(EINDEX, "embedding", "0 rows", tl_embedding(t, empty, ids));
    tl_tensor wide = tl_zeros(t, TL_F32, TL_DIMS(2, 0)); /* results without elements */
    before = tl_memory_stats(t);
    REFUSES(EINDEX, "embedding", "id 2 at position 1; the table has 2 rows",
            tl_embedding(t, wide, ids));
    REFUSES(EINDEX, "one_hot", "id 0 at position 0; there are 0 classes",
            tl_one_hot(t, ids, 0, TL_F32));
    REFUSES(ESHAPE, "one_hot", "2 classes for ids of 8 dims; a tensor has up to 8 dims",
            tl_one_hot(t, deep, 2, TL_F32));
    REFUSES(EINDEX, "scatter_add_dim", "id 0 at position 0; dim 0 has size 0",
            tl_scatter_add_dim(t, v3, ids, 0, TL_DIMS(0)));
    REFUSES(EDTYPE, "scatter_add_dim", "values I64, ids I64; a float and I64",
            tl_scatter_add_dim(t, ids, ids, 0, TL_DIMS(3)));
    REFUSES(ESHAPE, "scatter_add_dim", "dim 0 has size -1",
            tl_scatter_add_dim(t, v3, ids, 0, TL_DIMS(-1)));
    REFUSES(ESHAPE, "scatter_add_dim", "dy has shape [4], ids [3]",
            tl_scatter_add_dim(t, v4, ids, 0, TL_DIMS(3)));
    REFUSES(EDTYPE, "gather", "values F32, ids F32", tl_gather(t, v3, v3, 0));
    REFUSES(ESHAPE, "gather", "ids have shape [3] for values of [2, 3] along dim 0",
            tl_gather(t, a23, ids, 0));
    REFUSES(EINDEX, "one_hot", "id -100 at position 1", tl_one_hot(t, classes, 3, TL_F32));
    REFUSES(EDTYPE, "one_hot", "a dtype for the result", tl_one_hot(t, ids, 3, (tl_dtype)42));
    REFUSES(ESHAPE, "one_hot", "-1 classes for ids of 1 dims", tl_one_hot(t, ids, -1, TL_F32));
    NAMED("index_select", "id 2 at position 1; dim 0 has size 2", tl_index_select(t, wide, 0, ids));
    before = tl_memory_stats(t);
    tl_tensor low = tl_data(t, ((int64_t[]){0, 1}), TL_I64, TL_DIMS(2));
    before = tl_memory_stats(t);
    NAMED("embedding_padded", "row 2; the table has 2 rows", tl_embedding_padded(t, a23, low, 2));
    NAMED("embedding_padded", "row -3; the table", tl_embedding_padded(t, a23, low, -3));
    REFUSES(EDTYPE, "embedding", "F32", tl_embedding(t, a23, v3));
    NAMED("embedding", "id 2 at position 1; the table has 2 rows", tl_embedding(t, i23, ids));
    REFUSES(ESHAPE, "embedding", "[3]", tl_embedding(t, v3, ids));
    REFUSES(ESHAPE, "embedding", "[1, 1, 1, 1, 1, 1, 1, 1]", tl_embedding(t, a23, deep));
    REFUSES(EINDEX, "cross_entropy", "target 3 in row 1; there are 3 classes",
            tl_cross_entropy(t, a23, many, TL_MEAN));
    REFUSES(EDOMAIN, "bce_with_logits", "reduction 0",
            tl_bce_with_logits(t, a23, a23, (tl_reduction)0));
    REFUSES(ESHAPE, "bce_with_logits", "logits [2, 3] for targets [2, 4]",
            tl_bce_with_logits(t, a23, a24, TL_MEAN));
    REFUSES(ESHAPE, "logsumexp", "dim 2 does not exist", tl_logsumexp(t, a23, TL_DIMS(2), false));
    REFUSES(ESHAPE, "rms_norm_dims", "0 dims to normalize, x has 2",
            tl_rms_norm_dims(t, a23, 0, 0));
    REFUSES(ESHAPE, "rms_norm_dims", "3 dims to normalize, x has 2",
            tl_rms_norm_dims(t, a23, 3, 0));
    REFUSES(ESHAPE, "cross_entropy", "weight has shape [4] for 3 classes",
            tl_cross_entropy(t, a23, classes, TL_MEAN, .weight = v4));
    REFUSES(ESHAPE, "cross_entropy", "weight has shape [1] for 3 classes",
            tl_cross_entropy(t, a23, classes, TL_MEAN, .weight = one));
    REFUSES(EUSAGE, "cross_entropy", "losses of each row have no total",
            tl_cross_entropy(t, a23, classes, TL_EACH, .total = scalar));
    REFUSES(ESHAPE, "cross_entropy", "one number has no classes",
            tl_cross_entropy(t, scalar, classes, TL_EACH, .smoothing = 0.5));
    REFUSES(ESHAPE, "cross_entropy", "targets [2, 3] for rows [2]",
            tl_cross_entropy(t, a23, i23, TL_SUM, .weight = v3, .ignore = true));
    REFUSES(EDTYPE, "cross_entropy", "classes of I64; floats are needed",
            tl_cross_entropy(t, i23, classes, TL_EACH, .smoothing = 0.5));
    REFUSES(ESHAPE, "cross_entropy", "dim 2 does not exist in [2, 3]",
            tl_cross_entropy(t, a23, classes, TL_MEAN, .dim = 2));
    REFUSES(EINDEX, "cross_entropy", "target -100 in row 1",
            tl_cross_entropy(t, a23, classes, TL_SUM));
    REFUSES(EINDEX, "cross_entropy", "target -100",
            tl_cross_entropy(t, a23, classes, TL_SUM, .ignore = true, .ignore_index = -1));
    REFUSES(EDOMAIN, "cross_entropy", "reduction 0",
            tl_cross_entropy(t, a23, classes, (tl_reduction)0, .ignore = true));
    REFUSES(EDOMAIN, "cross_entropy", "reduction 7",
            tl_cross_entropy(t, a23, classes, (tl_reduction)7));
    REFUSES(EUSAGE, "cross_entropy", "ignore_index is 1; .ignore = true",
            tl_cross_entropy(t, a23, classes, TL_MEAN, .ignore_index = 1));
    REFUSES(EUSAGE, "nll", "ignore_index is -1; .ignore = true",
            tl_nll(t, a23, classes, TL_MEAN, .ignore_index = -1));
    REFUSES(EUSAGE, "cross_entropy", "a count divides a mean (TL_MEAN); the reduction is 2",
            tl_cross_entropy(t, a23, classes, TL_SUM, .count = scalar));
    REFUSES(EUSAGE, "cross_entropy", "a count divides a mean (TL_MEAN); the reduction is 3",
            tl_cross_entropy(t, a23, classes, TL_EACH, .count = scalar));
    REFUSES(ESHAPE, "nll", "targets [2, 3] for rows [2]", tl_nll(t, a23, i23, TL_EACH));
    REFUSES(ESHAPE, "nll", "one number has no classes", tl_nll(t, scalar, classes, TL_SUM));
    REFUSES(EDTYPE, "nll", "classes of I64; floats", tl_nll(t, i23, classes, TL_SUM));
    REFUSES(EUSAGE, "nll", "losses of each row have no total",
            tl_nll(t, a23, classes, TL_EACH, .total = scalar));
    REFUSES(EDOMAIN, "bce_with_logits", "reduction 7",
            tl_bce_with_logits(t, a23, a23, (tl_reduction)7));
    REFUSES(ESHAPE, "cross_entropy", "logits [2, 3] for targets [3]",
            tl_cross_entropy(t, a23, ids, TL_MEAN));
    REFUSES(ESHAPE, "cross_entropy", "[]", tl_cross_entropy(t, scalar, ids, TL_MEAN));
    REFUSES(EDTYPE, "cross_entropy", "F32", tl_cross_entropy(t, a23, v3, TL_MEAN));
    REFUSES(EDTYPE, "cross_entropy", "[3] I64",
            tl_cross_entropy(t, a23, many, TL_MEAN, .count = ids));
    REFUSES(EDTYPE, "cross_entropy", "the count is [] F32; one F64 is needed",
            tl_cross_entropy(t, a23, classes, TL_MEAN, .count = scalar));
    REFUSES(EDTYPE, "cross_entropy", "total", tl_cross_entropy(t, a23, many, TL_MEAN, .total = v3));
}

static void joins_and_splits(void **unused)
{
    (void)unused;
    tl_tensor part[3] = {a23, a23, a23},
              deep = tl_zeros(t, TL_F32, TL_DIMS(1, 1, 1, 1, 1, 1, 1, 1));
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "stack", "0 tensors of 0 dims along a new dim 0", tl_stack(t, NULL, 0, 0));
    REFUSES(ESHAPE, "stack", "along a new dim -4", tl_stack(t, part, 3, -4));
    REFUSES(ESHAPE, "stack", "along a new dim 3", tl_stack(t, part, 3, 3));
    REFUSES(ESHAPE, "stack", "1 tensors of 8 dims", tl_stack(t, &deep, 1, 0));
    NAMED("stack", "input 1 has shape [3, 2], input 0 [2, 3]", /* of as many elements */
          tl_stack(t, ((tl_tensor[]){a23, a32}), 2, 0));
    REFUSES(ESHAPE, "split", "dim 1 of size 3 in pieces of 2 gives 2 of them, not 3",
            (tl_split(t, a23, 2, 1, part, 3), TL_NONE));
    assert_true(tl_is_none(part[0]) && tl_is_none(part[1]) && tl_is_none(part[2]));
    REFUSES(ESHAPE, "chunk", "dim 1 of size 3 in pieces of 1 gives 3 of them, not 4",
            (tl_chunk(t, a23, 4, 1, ((tl_tensor[4]){a23})), TL_NONE));
    REFUSES(ESHAPE, "chunk", "dim -3 does not exist in [2, 3], which has 2",
            (tl_chunk(t, a23, 3, -3, part), TL_NONE));
    REFUSES(ESHAPE, "split_sizes", "size 1 is 2; 1 of dim 1's 3 are left",
            (tl_split_sizes(t, a23, ((int64_t[]){2, 2}), 2, 1, part), TL_NONE));
}

/* Windows: of convolutions and pools. */
static void windows(void **unused)
{
    (void)unused;
    tl_tensor odd = tl_zeros(t, TL_F32, TL_DIMS(1, 3, 2, 2)),
              tall = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 3, 2)),
              none = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 0, 2)),
              thin = tl_zeros(t, TL_F32, TL_DIMS(2, 1, 2, 2)),
              whole = tl_zeros(t, TL_I64, TL_DIMS(2, 2, 2, 2)),
              wide = tl_zeros(t, TL_F64, TL_DIMS(2, 2, 2, 2)),
              large = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 6, 6)),
              line = tl_zeros(t, TL_F32, TL_DIMS(2, 2, 2)),
              dot = tl_zeros(t, TL_F32, TL_DIMS(1, 1, 1, 1));
    const int64_t far = L(1) << 30;
    before = tl_memory_stats(t);
    NAMED("conv2d", "x is I64, w F32", tl_conv2d(t, whole, image));
    NAMED("conv2d", "x is F32, w I64", tl_conv2d(t, image, whole));
    NAMED("conv2d", "x is F64, w F32", tl_conv2d(t, wide, image));
    REFUSES(ESHAPE, "conv2d", "with .groups = -1", tl_conv2d(t, image, thin, .groups = -1));
    REFUSES(ESHAPE, "conv2d", "(o, c/groups, ...)", tl_conv2d(t, odd, thin, .groups = 2));
    REFUSES(EDOMAIN, "conv2d", "a kernel of 3 with stride 1", tl_conv2d(t, image, tall));
    REFUSES(EDOMAIN, "conv2d", "a kernel of 0 with stride 1", tl_conv2d(t, image, none));
    REFUSES(EDOMAIN, "conv2d", "finds no place in 2: none can be below 0",
            tl_conv2d(t, image, image, .stride = {-1}));
    REFUSES(EDOMAIN, "conv2d", "finds no place in 6: none can be below 0",
            tl_conv2d(t, large, image, .padding = {1, -1}));
    REFUSES(EDOMAIN, "conv2d", "finds no place in 2: none can be below 0",
            tl_conv2d(t, image, image, .dilation = {-1}));
    REFUSES(EDOMAIN, "conv2d", "over 2: all must be below 2^30",
            tl_conv2d(t, image, image, .stride = {far}));
    REFUSES(EDOMAIN, "conv2d", "over 2: all must be below 2^30",
            tl_conv2d(t, image, image, .dilation = {far}));
    REFUSES(EUSAGE, "conv1d", "a second .stride (2)", tl_conv1d(t, line, line, .stride = {1, 2}));
    NAMED("conv2d", "the bias has shape [2, 1]; (2) is needed",
          tl_conv2d(t, image, image, .bias = a21));
    NAMED("max_pool2d", "x is I64", tl_max_pool2d(t, whole, .kernel = {2, 2}));
    REFUSES(EDOMAIN, "max_pool2d", ".kernel must be given",
            tl_max_pool2d(t, image, .kernel = {0, 2}));
    REFUSES(EUSAGE, "max_pool1d", ".padding (1) or .dilation (0)",
            tl_max_pool1d(t, line, .kernel = {2}, .padding = {0, 1}));
    REFUSES(EUSAGE, "avg_pool1d", ".padding (0) or .dilation (1)",
            tl_avg_pool1d(t, line, .kernel = {2}, .dilation = {0, 1}));
    REFUSES(EDOMAIN, "avg_pool2d", ".padding -1, .dilation 0; none can be below 0",
            tl_avg_pool2d(t, image, .kernel = {2, 2}, .padding = {-1}));
    REFUSES(EDOMAIN, "max_pool2d", ".padding 0, .dilation -1; none can be below 0",
            tl_max_pool2d(t, image, .kernel = {2, 2}, .dilation = {-1}));
    REFUSES(EDOMAIN, "max_pool2d", "dilation 2 and padding 1 find no element in 1", /* beside it */
            tl_max_pool2d(t, dot, .kernel = {2, 2}, .dilation = {2, 2}, .padding = {1, 1}));
    REFUSES(EDOMAIN, "max_pool2d", "stride 1099511627776, dilation 1",
            tl_max_pool2d(t, image, .kernel = {2, 2}, .stride = {L(1) << 40}));
    REFUSES(EDOMAIN, "max_pool2d", "padding 4611686018427387904 find no element in 2",
            tl_max_pool2d(t, image, .kernel = {2, 2}, .padding = {L(1) << 62}));
    REFUSES(EDOMAIN, "max_pool2d", "dilation 9223372036854775807 and padding 0 find no element",
            tl_max_pool2d(t, image, .kernel = {2, 2}, .dilation = {FAR}));
    REFUSES(EDOMAIN, "pad", "0 before and -1 after dim 1", tl_pad(t, a23, 1, 0, -1, 0));
    REFUSES(ESHAPE, "pad", "dim 2 does not exist in [2, 3]", tl_pad(t, a23, 2, 0, 1, 0));
    REFUSES(ESHAPE, "pad", "dim 0 does not exist in []", tl_pad(t, scalar, 0, 0, 1, 0));
}

/* Rotations and recurrent layers. */
static void rotations_and_steps(void **unused)
{
    (void)unused;
    tl_tensor r2 = tl_zeros(t, TL_F32, TL_DIMS(2)), i4 = tl_zeros(t, TL_I64, TL_DIMS(2, 4)),
              g = tl_zeros(t, TL_F32, TL_DIMS(2, 5, 4)), w = tl_zeros(t, TL_F32, TL_DIMS(4, 1)),
              w4 = tl_zeros(t, TL_F32, TL_DIMS(4, 4)), h = tl_zeros(t, TL_F32, TL_DIMS(2, 1)),
              i2 = tl_zeros(t, TL_I64, TL_DIMS(2)), y2;
    tl_tensor ends = tl_data(t, ((int64_t[]){FAR, 0, 0}), TL_I64, TL_DIMS(3)),
              minus = tl_data(t, ((int64_t[]){-1, 0, 0}), TL_I64, TL_DIMS(3));
    const tl_norm_grad_attrs row = {.k = 1, .want_dx = true};
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "rms_norm_grad", "input 3 is F32 [2, 4] for rows of x [2, 4]",
            tl_apply1(TL_AT(t), tl_op_find("rms_norm_grad"), &row,
                      (tl_tensor[]){a24, a24, TL_NONE, a24, TL_NONE}, 5));
    REFUSES(ESHAPE, "layer_norm_grad", "input 4 is F32 [2] for rows of x [2, 4]",
            tl_apply1(TL_AT(t), tl_op_find("layer_norm_grad"), &row,
                      (tl_tensor[]){a24, a24, TL_NONE, h, r2, TL_NONE}, 6));
    REFUSES(EDTYPE, "rotary_turn", "x is I64; floats are needed",
            tl_apply1(TL_AT(t), tl_op_find("rotary_turn"), ((int64_t[2]){0}), &i4, 1));
    REFUSES(EDTYPE, "rotary", "x is I64", tl_rotary(t, i4, i4, i4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "at least one dim", tl_rotary(t, scalar, v4, v4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "at least one dim", tl_rotary(t, a24, scalar, v4, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "table [] does not", tl_rotary(t, a24, v4, scalar, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary", "table [3, 2] does not broadcast to x [2, 4]",
            tl_rotary(t, a24, a32, r2, TL_ROTARY_HALF));
    REFUSES(EDTYPE, "rotary_halves", "the halves are I64 and I64",
            tl_rotary_halves(t, i23, i23, v3, v3, false, &y2));
    REFUSES(ESHAPE, "rotary_halves", "at least one dim is needed",
            tl_rotary_halves(t, scalar, scalar, scalar, scalar, false, &y2));
    REFUSES(EDTYPE, "positions", "the offsets are F32; I64", tl_positions(t, v3, 2));
    REFUSES(ESHAPE, "positions_after", "starts of shape [3], F32, for 3 offsets",
            tl_positions_after(t, v3, i3, 2));
    REFUSES(EINDEX, "positions_after", "9223372036854775807 - -1 of sample 0 overflow 64 bits",
            tl_positions_after(t, minus, ends, 1));
    REFUSES(ESHAPE, "rotary_ids", "x [2, 2, 2, 2] with its sequence in dim 3",
            tl_rotary_ids(t, image, r2, r2, i2, 3, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary_ids", "position ids [3] for x [2, 2, 2, 2]",
            tl_rotary_ids(t, image, r2, r2, i3, 2, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary_ids", "position ids [2, 3] for x [3, 2]", /* which has no samples */
            tl_rotary_ids(t, a32, r2, r2, i23, 0, TL_ROTARY_HALF));
    REFUSES(ESHAPE, "rotary_offsets", "dim 4 does not exist in [2, 2, 2, 2]",
            tl_rotary_offsets(t, image, r2, r2, i2, 4, TL_ROTARY_HALF));
    REFUSES(EDTYPE, "cumsum", "x is I64", tl_cumsum(t, i23, 1, false));
    REFUSES(ESHAPE, "recur", "gates have shape [2, 3]", tl_recur(t, a23, w, TL_LSTM));
    REFUSES(ESHAPE, "recur", "gates have shape [2, 5, 4]; (b, s, 3*n)", tl_recur(t, g, w, TL_GRU));
    REFUSES(ESHAPE, "recur", "w is F32 [2, 1]; F32 [4, 1]", tl_recur(t, g, h, TL_LSTM));
    REFUSES(ESHAPE, "recur", "h0 is F32 [4, 1]; F32 [2, 1]", tl_recur(t, g, w, TL_LSTM, .h = w));
    REFUSES(ESHAPE, "recur", "h0 is F32 [3]; F32 [2, 1]", tl_recur(t, g, w, TL_LSTM, .h = v3));
    REFUSES(ESHAPE, "recur", "c0 is F32 [4, 1]; F32 [2, 1]", tl_recur(t, g, w, TL_LSTM, .c = w));
    REFUSES(ESHAPE, "recur", "c0 is of an LSTM alone", tl_recur(t, g, w4, TL_RNN_TANH, .c = h));
    REFUSES(ESHAPE, "recur", "bias is F32 [3]; F32 [4]", tl_recur(t, g, w, TL_LSTM, .bias = v3));
    REFUSES(EDTYPE, "recur", "start is F32 [2]", tl_recur(t, g, w, TL_LSTM, .start = r2));
    REFUSES(ESHAPE, "recur", "start is I64 [3]; I64 [2]", tl_recur(t, g, w, TL_LSTM, .start = i3));
    REFUSES(ESHAPE, "recur", "end is I64 [3]; I64 [2]", tl_recur(t, g, w, TL_LSTM, .end = i3));
    REFUSES(EDOMAIN, "recur", "is none", tl_recur(t, g, w, (tl_cell)99));
}

static void sizes_and_numbers(void **unused)
{
    (void)unused;
    tl_tensor out[3], wide = tl_zeros(t, TL_BOOL, TL_DIMS(L(1) << 62, 0)),
                      column = tl_zeros(t, TL_BOOL, TL_DIMS(L(1) << 62, 1, 0)),
                      row = tl_zeros(t, TL_BOOL, TL_DIMS(0, FAR)),
                      classes = tl_data(t, ((int64_t[]){0, 1}), TL_I64, TL_DIMS(2));
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "causal_mask", "dim 0 has size -1", tl_causal_mask(t, -1, 3));
    REFUSES(ESHAPE, "causal_mask", "dim 1 has size -1", tl_causal_mask(t, 3, -1));
    REFUSES(ESHAPE, "positions", "dim 1 has size -1", tl_positions(t, classes, -1));
    REFUSES(ESHAPE, "positions", "offsets of shape [2, 3]", tl_positions(t, i23, 2));
    REFUSES(ESHAPE, "concat", "sizes of dim 0 add up beyond 64 bits",
            tl_concat(t, ((tl_tensor[]){wide, wide, wide, wide}), 4, 0)); /* to 0 */
    REFUSES(ESHAPE, "diagonal", "no room for a diagonal", tl_diagonal(t, column, 0, 0, 1));
    REFUSES(ESHAPE, "diagonal", "no room for a diagonal", tl_diagonal(t, row, 0, 0, 1));
    REFUSES(EDOMAIN, "rotary_widen", "pairing 0 for a table of 2 dims",
            tl_rotary_widen(t, a24, (tl_rotary_pairing)0));
    REFUSES(EDOMAIN, "rotary_widen", "0 dims", tl_rotary_widen(t, scalar, TL_ROTARY_INTERLEAVED));
    REFUSES(EDOMAIN, "cross_entropy", "label smoothing is 1.5",
            tl_cross_entropy(t, a23, classes, TL_SUM, .smoothing = 1.5));
    REFUSES(EDOMAIN, "cross_entropy", "label smoothing is -0.5",
            tl_cross_entropy(t, a23, classes, TL_SUM, .smoothing = -0.5));
    REFUSES(EDOMAIN, "cross_entropy", "label smoothing is 1.5",
            tl_cross_entropy(t, a23, classes, TL_SUM, .smoothing = 1.5, .weight = v3));
    REFUSES(EDOMAIN, "cross_entropy", "label smoothing is nan",
            tl_cross_entropy(t, a23, classes, TL_SUM, .smoothing = (double)NAN, .weight = v3));
    REFUSES(EDOMAIN, "nll", "label smoothing is 0.5",
            tl_nll(t, a23, classes, TL_SUM, .smoothing = 0.5));
    REFUSES(ESHAPE, "argsort", "a 0-d tensor", tl_argsort(t, scalar, 0, false));
    REFUSES(ESHAPE, "cumsum", "a 0-d tensor", tl_cumsum(t, scalar, 0, false));
    assert_int_equal(tl_chunk(t, a23, 0, 0, out), TL_ESHAPE);
    assert_non_null(strstr(tl_error(t), "chunk: 0 pieces"));
    tl_error_clear(t);
    assert_int_equal(tl_split_sizes(t, a23, ((int64_t[]){1, 1}), 2, 1, out), TL_ESHAPE);
    assert_non_null(strstr(tl_error(t), "split_sizes: the sizes add up to 2, dim 1 has 3"));
    tl_error_clear(t);
    assert_int_equal(tl_split_sizes(t, a23, ((int64_t[]){-1, 4}), 2, 1, out), TL_ESHAPE);
    assert_non_null(strstr(tl_error(t), "split_sizes: size 0 is -1; 3 of dim 1's 3 are left"));
    tl_error_clear(t);
    assert_int_equal(tl_split(t, a23, 0, 1, out, 3), TL_ESHAPE);
    assert_non_null(strstr(tl_error(t), "split: pieces of 0"));
    tl_error_clear(t);
}

static void optimizer_ops(void **unused)
{
    (void)unused;
    tl_tensor one = tl_data(t, ((double[]){1}), TL_F64, TL_SCALAR),
              turned = tl_transpose(t, a32, 0, 1);
    before = tl_memory_stats(t);
    REFUSES(ESHAPE, "store", "both must be contiguous", tl_store_at(TL_AT(t), turned, a23));
    REFUSES(ESHAPE, "store", "both must be contiguous", tl_store_at(TL_AT(t), a23, turned));
    REFUSES(ESHAPE, "store", "the tensor has shape [2, 3], x [2, 4]",
            tl_store_at(TL_AT(t), a23, a24));
    REFUSES(EDTYPE, "store", "F64 into F32; x has the compute type",
            tl_store_at(TL_AT(t), a23, d23));
    REFUSES(EDTYPE, "store", "I64 into I64", tl_store_at(TL_AT(t), i23, i23));
    REFUSES(ESHAPE, "master", "the parameter has shape [2, 4], its master [2, 3]",
            tl_master_at(TL_AT(t), a23, a24));
    REFUSES(EDTYPE, "master", "a master of F16 for F16; it has", tl_master_at(TL_AT(t), h23, h23));
    const tl_sgd_attrs sgd = {.momentum = 0};
    const tl_adamw_attrs adamw = {.beta1 = 0.9, .beta2 = 0.99, .eps = 1e-8};
    REFUSES(ESHAPE, "sgd", "input 1 has shape [3, 2], the parameter [2, 3]",
            tl_sgd_update_at(TL_AT(t), a23, a32, TL_NONE, one, one, sgd));
    REFUSES(EDTYPE, "sgd", "input 3 is [] F32",
            tl_sgd_update_at(TL_AT(t), a23, a23, TL_NONE, scalar, one, sgd));
    REFUSES(EDTYPE, "sgd", "input 1 is [2, 3] F64", /* neither is converted */
            tl_sgd_update_at(TL_AT(t), a23, d23, TL_NONE, one, one, sgd));
    REFUSES(EDTYPE, "sgd", "input 0 is [2, 3] F16",
            tl_sgd_update_at(TL_AT(t), h23, h23, TL_NONE, one, one, sgd));
    REFUSES(EDTYPE, "sgd", "input 1 is [2, 3] F32; contiguous",
            tl_sgd_update_at(TL_AT(t), a23, turned, TL_NONE, one, one, sgd));
    REFUSES(EDTYPE, "sgd", "input 4 is [2, 3] F64; contiguous",
            tl_sgd_update_at(TL_AT(t), a23, a23, TL_NONE, one, d23, sgd));
    REFUSES(ESHAPE, "adamw", "input 3 has shape [2, 4]",
            tl_adamw_update_at(TL_AT(t), ((tl_tensor[]){a23, a23, a23, a24, one, one, one, one}),
                               adamw));
    REFUSES(EDTYPE, "adamw", "input 6 is [3]",
            tl_adamw_update_at(TL_AT(t), ((tl_tensor[]){a23, a23, a23, a23, one, one, v3, one}),
                               adamw));
    REFUSES(ESTALE, "adamw", "failed",
            tl_adamw_update_at(TL_AT(t),
                               ((tl_tensor[]){a23, a23, a23, TL_NONE, one, one, one, one}), adamw));
}

static void wrong_numbers_of_inputs(void **unused)
{
    (void)unused;
    const tl_tensor in[9] = {a23, a23, a23, a23, a23, a23, a23, a23, a23};
    for (int i = 0; i < tl_op_count(); i++) {
        const tl_op *op = tl_op_at(i);
        tl_tensor out[8];
        static const union {
            double d;
            int64_t i;
            char bytes[256];
        } attrs;
        char words[64];
        if (op->n_in < 0)
            continue;
        snprintf(words, sizeof words, "takes %d input%s, given %d", op->n_in,
                 op->n_in == 1 ? "" : "s", op->n_in + 1);
        int line = __LINE__ + 1;
        tl_apply(TL_AT(t), op, &attrs, in, op->n_in + 1, out);
        refused(out[0], TL_EUSAGE, op->name, words, line, op->name);
    }
}

/* Windows so far apart that what they reach has no size: an error, or only what meets x is read. */
static void windows_far_apart(void **unused)
{
    const int64_t far = ((int64_t)1 << 30) - 1, third = 357913941;
    (void)unused;
    tl_tape *n = tl_tape_new(NULL);
    tl_tensor x = tl_zeros(n, TL_F32, TL_DIMS(1, 1, 3, 3)),
              w = tl_zeros(n, TL_F32, TL_DIMS(1, 1, 2, 2));
    tl_tensor one = tl_zeros(n, TL_F32, TL_DIMS(1, 1, 1, 1)),
              three = tl_zeros(n, TL_F32, TL_DIMS(3));
    tl_conv2d(n, x, w, .stride = {far, far}, .padding = {far, far});
    assert_int_equal(tl_error_status(n), TL_ESHAPE);
    assert_non_null(strstr(tl_error(n), "2147483648] of F32 is more bytes than"));
    tl_error_clear(n);
    tl_conv2d(n, x, w, .bias = three);
    assert_non_null(strstr(tl_error(n), "conv2d: the bias has shape [3]; (1) is needed"));
    tl_error_clear(n);
    tl_max_pool2d(n, x, .kernel = {1, 1}, .padding = {far, far});
    assert_int_equal(tl_error_status(n), TL_EDOMAIN);
    tl_error_clear(n);
    tl_tensor y = tl_max_pool2d(n, one, .kernel = {far + 1, far + 1}, .padding = {far, far},
                                .stride = {third, third});
    tl_shape s = tl_shape_of(n, y);
    assert_string_equal(tl_error(n), "");
    assert_int_equal(tl_shape_count(&s), 16);
    tl_tensor l = tl_bce_with_logits(n, three, three, TL_SUM,
                                     .weight = tl_zeros(n, TL_F32, TL_DIMS(2, 3)));
    assert_true(tl_is_none(l));
    assert_non_null(strstr(tl_error(n), "weights make [2, 3] of logits [3]"));
    tl_free(n);
}

/* On a tape whose model has failed calls do nothing, and the model's error stays the one to read.
 */
static void a_failed_model_is_the_cause(void **unused)
{
    (void)unused;
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *n = tl_tape_new(m);
    tl_tensor x = tl_zeros(n, TL_F32, TL_DIMS(2, 2)), ids = tl_zeros(n, TL_I64, TL_DIMS(2));
    tl_tensor part[2];
    assert_int_equal(tl_load(m, "no-such-file.safetensors"), TL_EIO);
    assert_true(tl_is_none(tl_tril(n, x, 0)));
    assert_true(tl_is_none(tl_index_select(n, x, 0, ids)));
    assert_true(tl_is_none(tl_mm(n, x, x)));
    assert_true(tl_is_none(tl_addmm(n, x, x, x, 0.5, 1)));
    assert_true(tl_is_none(tl_conv1d(n, x, x)));
    assert_true(tl_is_none(tl_max_pool2d(n, x, .kernel = {1, 1})));
    assert_true(tl_is_none(tl_avg_pool1d(n, x, .kernel = {1})));
    assert_true(tl_is_none(tl_nll(n, x, ids, TL_EACH, .dim = 1)));
    assert_true(tl_is_none(tl_bce_with_logits(n, x, x, TL_EACH)));
    assert_true(tl_is_none(tl_rotary_ids(n, x, x, x, ids, 0, TL_ROTARY_HALF)));
    assert_true(tl_is_none(tl_causal_mask(n, 2, 2, .offset = ids)));
    assert_int_not_equal(tl_chunk(n, x, 2, 0, part), TL_OK);
    assert_non_null(strstr(tl_error(n), "no-such-file.safetensors"));
    tl_error_clear(m);
    assert_false(tl_is_none(tl_tril(n, x, 0)));
    assert_string_equal(tl_error(n), "");
    assert_int_equal(tl_chunk(n, tl_slice(n, x, 1, 0, 0, 1), 2, 1, part), TL_OK); /* of nothing */
    assert_true(tl_shape_of(n, part[0]).dim[1] == 0 && tl_shape_of(n, part[1]).dim[1] == 0);
    assert_false(tl_is_none(part[0]) || tl_is_none(part[1]));
    tl_free(n, m);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, make, end)
const struct CMUnitTest tl_tests_errors[] = {
    TEST(pointwise),
    TEST(views),
    TEST(the_call_is_named),
    TEST(extremes_that_are_right),
    TEST(reductions_and_rows),
    TEST(products),
    TEST(indices_and_targets),
    TEST(joins_and_splits),
    TEST(windows),
    TEST(rotations_and_steps),
    TEST(sizes_and_numbers),
    TEST(optimizer_ops),
    TEST(wrong_numbers_of_inputs),
    cmocka_unit_test(windows_far_apart),
    cmocka_unit_test(a_failed_model_is_the_cause),
};
const size_t tl_tests_errors_count = sizeof tl_tests_errors / sizeof tl_tests_errors[0];
