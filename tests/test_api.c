/* test_api.c: no public function crashes, hangs or fails in silence, whatever it is given.
 *
 * tests/api_rows.t.h has a row for each, with a good call. The test makes that call, and then, for
 * every argument, the same call with something bad there: NULL, handles that are stale, foreign or
 * forged, shapes and numbers at their extremes. What can only be wrong must be said - an error with
 * a message - and leave model, tape and optimizer as they were. Calls run in children, so that a
 * crash has the name of its call. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tally.h>

#include "tensor/files/file.h"
#include "tensor/memory.h"
#include "tests/support/declared.h"
#include "tests/temp_dir.h"

extern const struct CMUnitTest tl_tests_api[];
extern const size_t tl_tests_api_count;

#if defined(__SANITIZE_ADDRESS__) /* which takes more addresses than any limit */
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

/* clang-format off */
enum {
    F, FT, ROW3, CUBE, SQUARE, Q, TABLE, LONGTABLE, IDS, ENDS, IDS2, MASK, ONE, LOSS, P, V, V2,
    RATE, HALF, WIDE, TENSORS
};
enum { STALE, FOREIGN, FOREIGN_MODEL, DEAD, FORGED, CONSUMED, WRONG, /* these can only be wrong */
       FREED = WRONG, DROPPED, SCALAR, EIGHT, EMPTY, LONG, BOOLS, WIDER, PARAMETER, VARIANTS };
/* clang-format on */
static const char *const kinds[VARIANTS] = {
    "a stale handle",     "another tape's handle", "another model's handle",
    "a freed tape's",     "a forged handle",       "a consumed handle",
    "a value freed",      "a value dropped",       "a 0-d tensor",
    "a tensor of 8 dims", "a tensor [2^40, 0]",    "an i64 tensor",
    "a bool tensor",      "an f64 tensor",         "a parameter"};

/* What one call is made of, and which of its arguments is spoiled. */
typedef struct {
    tl_model *m, *m2;
    tl_tape *t, *t2, *clear;
    tl_opt *opt;
    tl_graph *graph, *orphan;
    tl_compiled *compiled, *orphan_compiled;
    tl_st_file *file;
    tl_order *order, *whole;
    tl_pattern *pattern;
    FILE *stream;
    tl_tensor x[TENSORS], bad_x[VARIANTS];
    tl_tensor result;
    uint32_t nodes;
    int64_t A, B, H, D; /* sizes of tensors */
    unsigned needs;     /* of the objects that are made on demand */

    int place;        /* arguments seen so far in this call */
    int bad, variant; /* which one is spoiled, -1: none; and how */
    int variants;     /* how many ways there are */
    bool must;        /* that can only be wrong */
    bool mute;        /* what would carry the message is missing */
    bool failing;     /* what came back says failure */
    char what[96], said[TL_MESSAGE_MAX];

    tl_err err;
    tl_tensor out[8], in[8][8];
    int n_in;
    tl_shape shape[4], shapes[4];
    int n_shapes;
    int64_t sizes[2];
    float floats[256];
    double doubles[64];
    char text[1024], hex[65], values[1][TL_NOTE_MAX];
    tl_array array[1], room;
    tl_st_file *files[1];
    tl_order *orders[1];
    tl_reader reader[1];
    tl_writer *writer[1];
    char *bytes[1];
    size_t sizes_read[1];
    int ints[1];
    tl_kernel_row row[1];
    void *nulls[2];
    tl_gradcheck_report report[1];
    tl_llama_config llama;
    tl_gpt2_config gpt2;
    tl_schedule schedule;
    tl_rotary_scaling scaling;
    tl_note note;
    const char *key;
    tl_st_entry entry;
    tl_st_meta meta;
    tl_pattern_ref refs[2];
    tl_pattern_arg arg;
    tl_kernel kernel;
    temp_dir dir;
    char fresh[1024], saved[1024], checkpoint[1024], log[1024];
} api;

/* ---- arguments ---- */

/* This argument is the one to spoil, in one of n ways: the first `wrong` of them can only be
 * wrong. */
static bool spoil(api *a, int n, int wrong)
{
    if (a->place++ != a->bad)
        return false;
    a->variants = n;
    a->must = a->variant < wrong;
    return a->variant < n;
}

#define NOTE(...) ((void)snprintf(a->what, sizeof a->what, __VA_ARGS__))

static bool absent(api *a, bool must, bool carries)
{
    if (!spoil(a, 1, must))
        return false;
    a->mute |= carries;
    NOTE("NULL");
    return true;
}

static tl_at at(api *a)
{
    if (!spoil(a, 2, 1))
        return TL_AT(a->t);
    a->mute = a->variant == 0;
    NOTE(a->variant == 0 ? "a NULL tape" : "a place without a file");
    return (tl_at){a->variant == 0 ? NULL : a->t, NULL, INT_MIN};
}

static tl_tensor tensor(api *a, tl_tensor good, bool required)
{
    if (!spoil(a, VARIANTS + 1, required ? WRONG + 1 : WRONG))
        return good;
    /* "absent" stands first where it is an error, last where it is none */
    int v = required ? a->variant - 1 : a->variant == VARIANTS ? -1 : a->variant;
    NOTE("%s", v < 0 ? "TL_NONE" : kinds[v]);
    return v < 0 ? TL_NONE : a->bad_x[v];
}

static const tl_tensor *tensors(api *a, int n, const int *which)
{
    tl_tensor *in = a->in[a->n_in++];
    bool none = absent(a, true, false);
    for (int i = 0; i < n; i++)
        in[i] = tensor(a, a->x[which[i]], true);
    return none ? NULL : in;
}

static tl_shape shape(api *a, tl_shape good)
{
    static const tl_shape bad[] = {{9, {2, 3, 1, 1, 1, 1, 1, 1}},
                                   {INT_MAX, {2, 3}},
                                   {INT_MIN, {2, 3}},
                                   {-3, {2, 3}},
                                   {2, {2, -5}},
                                   {2, {(int64_t)1 << 40, (int64_t)1 << 40}},
                                   {1, {INT64_MAX}},
                                   {1, {INT64_MIN}},
                                   /* these may be right */
                                   {0, {0}},
                                   {1, {0}},
                                   {2, {(int64_t)1 << 40, 0}},
                                   {8, {1, 1, 1, 1, 1, 1, 1, 1}}};
    if (!spoil(a, 12, 8))
        return good;
    NOTE("a shape of ndim %d, dim %lld, %lld ...", bad[a->variant].ndim,
         (long long)bad[a->variant].dim[0], (long long)bad[a->variant].dim[1]);
    return bad[a->variant];
}

static const tl_shape *shape_pointer(api *a)
{
    tl_shape *s = &a->shape[a->n_shapes++];
    *s = shape(a, TL_DIMS(2, 3));
    return s;
}

static int64_t integer(api *a, int64_t good, const int64_t *bad, int n, int wrong)
{
    if (!spoil(a, n, wrong))
        return good;
    NOTE("%lld", (long long)bad[a->variant]);
    return bad[a->variant];
}
#define INTEGER(good, wrong, ...)                               \
    integer(a, (int64_t)(good), (const int64_t[]){__VA_ARGS__}, \
            sizeof((int64_t[]){__VA_ARGS__}) / sizeof(int64_t), wrong)
static const int64_t far = (int64_t)1 << 40;

static double real(api *a, double good)
{
    static const double bad[] = {
        (double)NAN, (double)INFINITY, -(double)INFINITY, -1, 0, DBL_MAX, -0.0, 1e-320};
    if (!spoil(a, 8, 0))
        return good;
    NOTE("%g", bad[a->variant]);
    return bad[a->variant];
}

static const char *name(api *a, const char *good, int wrong)
{
    static char endless[5001];
    memset(endless, 'a', sizeof endless - 1);
    const char *bad[] = {NULL, "", "\xff\xfe", "__metadata__", endless};
    if (!spoil(a, 5, wrong))
        return good;
    NOTE("the name %.20s", bad[a->variant] == NULL ? "NULL" : bad[a->variant]);
    return bad[a->variant];
}

static const char *path(api *a, const char *good)
{
    static char endless[5001];
    memset(endless, '/', sizeof endless - 1);
    const char *bad[] = {NULL, "", "/", "/dev/null/x", endless};
    endless[sizeof endless - 2] = 'x';
    if (!spoil(a, 5, 5))
        return good;
    NOTE("the path %.20s", bad[a->variant] == NULL ? "NULL" : bad[a->variant]);
    return bad[a->variant];
}

#define AT at(a)
#define T (absent(a, true, true) ? NULL : a->t)
#define T_CLEAR (absent(a, true, true) ? NULL : a->clear)
#define MODEL (absent(a, true, true) ? NULL : a->m)
#define MODEL_MAYBE (absent(a, false, true) ? NULL : a->m)
#define MODEL_OF_TAPE \
    (absent(a, true, false) ? NULL : spoil(a, 1, 1) ? (NOTE("another model"), a->m2) : a->m)
#define IN(i) tensor(a, a->x[i], true)
#define MAYBE(i) tensor(a, a->x[i], false)
#define INS(...) tensors(a, sizeof((int[]){__VA_ARGS__}) / sizeof(int), (const int[]){__VA_ARGS__})
#define SHAPE(...) shape(a, TL_DIMS(__VA_ARGS__))
#define SHAPE0 shape(a, TL_SCALAR)
#define INT(v) (int)INTEGER(v, 0, INT_MIN, INT_MAX, -1, 8, 0)
#define INT_SMALL(v) (int)INTEGER(v, 0, INT_MIN, -1, 0)
#define I64(v) INTEGER(v, 0, INT64_MIN, INT64_MAX, INT64_MAX - 1, -1, 0, far, (int64_t)1 << 36)
#define I64_SMALL(v) INTEGER(v, 0, INT64_MIN, -1, 0)
#define U32(v) (uint32_t) INTEGER(v, 0, UINT32_MAX, INT_MAX, 0)
#define SIZE(v) (size_t) INTEGER(v, 0, -1, -17, INT64_MIN, 0, 1)
#define BYTES(v) (size_t) INTEGER(v, 3, 0, (v)-1, (v) + 1)
#define COUNT(v) (int)INTEGER(v, 2, -1, INT_MIN, 0)
#define DBL(v) real(a, v)
#define DTYPE(v) (tl_dtype) INTEGER(v, 3, TL_DTYPE_COUNT, 99, -1, TL_I64, TL_BOOL, TL_F16)
#define DTYPE_SOME(v) (tl_dtype) INTEGER(v, 0, TL_I64, 99, -1)
#define DTYPE_BAD(v) (tl_dtype) INTEGER(v, 3, TL_DTYPE_COUNT, 99, -1)
#define DTYPE_ANY(v) (tl_dtype) INTEGER(v, 2, 99, -1, TL_I64, TL_BOOL, TL_F16, TL_ANY_DTYPE)
#define ENUM(v) (int)INTEGER(v, 2, 99, -1, 0)
#define NAME(v) name(a, v, 1)
#define NAME_MAYBE(v) name(a, v, 0)
#define PATH(v) path(a, v)
#define PTR(p) (absent(a, true, false) ? NULL : (p))
#define PTR_MAYBE(p) (absent(a, false, false) ? NULL : (p))
#define PTR_NULL NULL
#define OUT(p) PTR(p)
#define OUT_MAYBE(p) PTR_MAYBE(p)
#define FUNCTION(f) (absent(a, true, false) ? NULL : (f))
#define ERR (absent(a, false, true) ? NULL : &a->err)
#define STREAM (absent(a, true, false) ? NULL : a->stream)
#define GRAPH                                                          \
    (absent(a, true, true) ? NULL                                      \
     : spoil(a, 1, 1)      ? (NOTE("a freed tape's graph"), orphan(a)) \
                           : graph(a))
#define COMPILED                                                                  \
    (absent(a, true, true) ? NULL                                                 \
     : spoil(a, 1, 1)      ? (NOTE("a freed tape's program"), orphan_compiled(a)) \
                           : compiled(a))
#define OPT (absent(a, true, true) ? NULL : opt(a))
#define OPT_MAYBE (absent(a, false, true) ? NULL : opt(a))
#define PATTERN (absent(a, true, true) ? NULL : a->pattern)
#define FILE_OPEN (absent(a, true, false) ? NULL : file(a))
#define ORDER (absent(a, true, false) ? NULL : a->order)
#define ORDER_WHOLE (absent(a, true, false) ? NULL : a->whole)

/* ---- functions and structs for arguments ---- */

static const tl_observer observer;
static void host(tl_tape *t, void *ctx) { (void)t, (void)ctx; }
static void range(void *ctx, int64_t begin, int64_t end, int thread)
{
    (void)ctx, (void)begin, (void)end, (void)thread;
}
static tl_status filler(void *ctx, void *data) { return (void)ctx, (void)data, TL_OK; }
static tl_tensor checked(tl_tape *t, const tl_tensor *in, int n, void *ctx)
{
    return (void)n, (void)ctx, tl_sum(t, tl_tanh(t, in[0]), TL_ALL, false);
}
static void program(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)ctx;
    for (int i = 0; i < n_out; i++)
        out[i] = tl_tanh(t, n > 0 ? in[0] : tl_scalar(t, TL_F32, 1));
}
static void replaced(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_tanh(t, tl_neg(t, in[0]));
}
static void replacing(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    out[0] = tl_neg(t, tl_tanh(t, in[0]));
}
static double sums(void *ctx, int64_t n, const void *x)
{
    float s = 0;
    for (int64_t i = 0; i < n; i++)
        s += ((const float *)x)[i];
    return (void)ctx, (double)s;
}
static tl_status own_kernel(tl_call *c) { return c->op->forward(c); }

static const tl_rotary_scaling *scaling(api *a)
{
    a->scaling = (tl_rotary_scaling){DBL(8), DBL(1), DBL(4), DBL(8192)};
    return PTR_MAYBE(&a->scaling);
}
static tl_cross_entropy_options losses(api *a, double smoothing)
{
    return (tl_cross_entropy_options){.reduction = ENUM(TL_MEAN),
                                      .ignore_index = I64(-1),
                                      .ignore = true,
                                      .count = MAYBE(RATE),
                                      .total = tensor(a, TL_NONE, false),
                                      .smoothing = smoothing};
}
static tl_attention_options ranges(api *a)
{
    return (tl_attention_options){.scale = DBL(1), .key_start = MAYBE(IDS), .key_end = MAYBE(ENDS)};
}
static tl_dropout_options drops(api *a)
{
    return (tl_dropout_options){.p = DBL(0.5),
                                .stream = NAME("d"),
                                .sample = MAYBE(IDS),
                                .start = MAYBE(IDS)};
}
static tl_columns columns(api *a)
{
    return (tl_columns){.start = MAYBE(IDS), .end = MAYBE(ENDS), .at = tensor(a, TL_NONE, false)};
}
static tl_self_attention_options attends(api *a)
{
    return (tl_self_attention_options){.heads = I64(2),
                                       .kv_heads = I64(1),
                                       .max_positions = I64(8),
                                       .rope_base = DBL(1e4),
                                       .out_scale = DBL(1),
                                       .pairing = ENUM(TL_ROTARY_HALF),
                                       .columns = columns(a),
                                       .layer = I64(0)};
}
static tl_decoder_options decodes(api *a)
{
    return (tl_decoder_options){.columns = columns(a), .sample = MAYBE(IDS)};
}
static const tl_llama_config *llama(api *a)
{
    a->llama = (tl_llama_config){.vocab = I64(8),
                                 .width = I64(8),
                                 .layers = I64_SMALL(1),
                                 .heads = I64(2),
                                 .kv_heads = I64(1),
                                 .hidden = I64(8),
                                 .max_positions = I64(8),
                                 .rope_base = DBL(1e4),
                                 .eps = DBL(1e-5),
                                 .dtype = DTYPE(TL_F32)};
    return PTR(&a->llama);
}
static const tl_gpt2_config *gpt2(api *a)
{
    a->gpt2 = (tl_gpt2_config){.vocab = I64(8),
                               .width = I64(8),
                               .layers = I64_SMALL(1),
                               .heads = I64(2),
                               .hidden = I64(8),
                               .max_positions = I64(8),
                               .eps = DBL(1e-5),
                               .dropout = DBL(0.5),
                               .dtype = DTYPE(TL_F32)};
    return PTR(&a->gpt2);
}
static tl_schedule rates(api *a)
{
    return (tl_schedule){.kind = ENUM(TL_WARMUP_STABLE_DECAY),
                         .warmup = I64(2),
                         .total = I64(10),
                         .min_ratio = DBL(0.1),
                         .decay = I64(3)};
}
static const tl_schedule *schedule(api *a)
{
    a->schedule = rates(a);
    return PTR(&a->schedule);
}
static tl_opt_options optimizer(api *a)
{
    return (tl_opt_options){.lr = DBL(0.1),
                            .momentum = DBL(0.9),
                            .weight_decay = DBL(0.1),
                            .beta1 = DBL(0.9),
                            .beta2 = DBL(0.9),
                            .eps = DBL(1e-8),
                            .clip = DBL(1),
                            .schedule = rates(a)};
}
static const tl_note *notes(api *a)
{
    a->note = (tl_note){NAME("k"), NAME("v")};
    return PTR(&a->note);
}
static const char *const *keys(api *a)
{
    a->key = NAME("k");
    return PTR(&a->key);
}
static const tl_array *room(api *a)
{
    a->room = tl_array_make(TL_F32, &TL_DIMS(2, 3), PTR(a->floats));
    return PTR(&a->room);
}
static const tl_st_entry *entries(api *a)
{
    a->entry = (tl_st_entry){NAME("w"), tl_array_make(TL_F32, &TL_DIMS(2, 3), PTR(a->floats))};
    return PTR(&a->entry);
}
static const tl_st_meta *metas(api *a)
{
    a->meta = (tl_st_meta){NAME("k"), NAME("v")};
    return PTR(&a->meta);
}
static const tl_op *op(api *a) { return PTR(&tl_op_add); }
static tl_pattern_ref ref(api *a) { return (tl_pattern_ref){INT(0), INT(0)}; }
static const tl_pattern_ref *refs(api *a)
{
    a->refs[0] = ref(a);
    a->refs[1] = ref(a);
    return PTR(a->refs);
}
static tl_replacement replacement(api *a)
{
    a->arg = (tl_pattern_arg){.name = NAME("x"), .dtype = DTYPE(TL_F32), .shape = SHAPE(2, 3)};
    return (tl_replacement){.name = NAME("api"),
                            .search = FUNCTION(replaced),
                            .replace = FUNCTION(replacing),
                            .example_inputs = PTR(&a->arg),
                            .n_in = COUNT(1),
                            .n_out = COUNT(1),
                            .scalars = PTR_MAYBE(NULL),
                            .n_scalars = INTEGER(0, 2, -1, INT_MIN) != 0 ? -1 : 0,
                            .forms = INT_SMALL(1),
                            .trace = ENUM(TL_TRACE_FORWARD),
                            .exact = U32(TL_BIT(TL_F32))};
}
static const tl_kernel *kernel(api *a)
{
    a->kernel = (tl_kernel){.op = NAME("matmul"),
                            .name = NAME("api"),
                            .dtype = DTYPE_ANY(TL_F32),
                            .mode = U32(TL_FAST),
                            .isa = NAME_MAYBE(NULL),
                            .run = FUNCTION(own_kernel)};
    return PTR(&a->kernel);
}

/* ---- objects made on demand, and then always ---- */

enum { GRAPHS = 1, COMPILEDS = 2, OPTS = 4, FILES = 8 };

static tl_graph *graph(api *a)
{
    a->needs |= GRAPHS;
    return a->graph = a->graph != NULL ? a->graph : tl_trace(a->t, program, &a->x[F], 1, 1, NULL);
}
static tl_graph *orphan(api *a)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_data(t, a->floats, TL_F32, TL_DIMS(2, 3));
    a->orphan = tl_trace(t, program, &x, 1, 1, NULL);
    tl_free(t);
    return a->orphan;
}
static tl_compiled *compiled(api *a)
{
    a->needs |= COMPILEDS;
    return a->compiled = a->compiled != NULL ? a->compiled : tl_compile(a->t, program, 1, NULL);
}
static tl_compiled *orphan_compiled(api *a)
{
    tl_tape *t = tl_tape_new(NULL);
    a->orphan_compiled = tl_compile(t, program, 1, NULL);
    tl_free(t);
    return a->orphan_compiled;
}
static tl_opt *opt(api *a)
{
    a->needs |= OPTS;
    return a->opt = a->opt != NULL ? a->opt : tl_sgd_new(a->m, .lr = 0.5);
}
static tl_st_file *file(api *a)
{
    a->needs |= FILES;
    if (a->file == NULL)
        (void)tl_st_open(&a->file, a->saved, NULL);
    return a->file;
}

static tl_tensor filled(tl_tape *t, tl_dtype d, tl_shape s) { return tl_fill(t, d, s, 0.5); }

static void set_up_tensors(api *a)
{
    tl_tape *t = a->t;
    const int64_t ids[] = {0, 1, 2, 1, 0, 1}, ends[] = {2, 3};
    const int64_t A = a->A, B = a->B, few = A > 2 ? 2 : A, pairs = few * B > 6 ? 0 : B;
    tl_tensor *x = a->x;
    x[F] = A * B == 6 ? tl_data(t, a->floats, TL_F32, TL_DIMS(2, 3))
                      : filled(t, TL_F32, TL_DIMS(A, B));
    x[FT] = filled(t, TL_F32, TL_DIMS(B, A));
    x[ROW3] = filled(t, TL_F32, TL_DIMS(B > 3 ? 3 : B));
    x[CUBE] = filled(t, TL_F32, TL_DIMS(A, B > 3 ? 0 : B, B > 3 ? 0 : B));
    x[SQUARE] = filled(t, TL_F32, TL_DIMS(A > 2 ? 0 : A, A > 2 ? 0 : A));
    x[Q] = filled(t, TL_F32, TL_DIMS(A, a->H, B, a->D));
    x[TABLE] = filled(t, TL_F32, TL_DIMS(B, a->D));
    x[LONGTABLE] = filled(t, TL_F32, TL_DIMS(2 * B, a->D));
    x[IDS] = tl_data(t, ids, TL_I64, TL_DIMS(few));
    x[IDS2] = tl_data(t, ids, TL_I64, TL_DIMS(few, pairs));
    x[ENDS] = tl_data(t, ends, TL_I64, TL_DIMS(few));
    x[MASK] = filled(t, TL_BOOL, TL_DIMS(A, B));
    x[ONE] = filled(t, TL_F32, TL_SCALAR);
    x[WIDE] = filled(t, TL_F32, TL_DIMS(A, B, 8));
    x[HALF] = tl_zeros(a->m, TL_BF16, TL_DIMS(A, B));
    x[V] = tl_zeros(a->m, TL_F32, TL_DIMS(A, B));
    x[V2] = tl_zeros(a->m, TL_F32, TL_DIMS(A, B));
    x[RATE] = tl_data(a->m, ((double[]){1}), TL_F64, TL_SCALAR);
}

static void set_up_bad(api *a)
{
    tl_tape *t = a->t;
    tl_tensor *b = a->bad_x;
    b[FOREIGN] = tl_data(a->t2, a->floats, TL_F32, TL_DIMS(2, 3));
    b[FOREIGN_MODEL] = tl_data(a->m2, a->floats, TL_F32, TL_DIMS(2, 3));
    tl_tape *dead = tl_tape_new(a->m);
    b[DEAD] = tl_data(dead, a->floats, TL_F32, TL_DIMS(2, 3));
    tl_free(dead);
    tl_tensor gone = filled(t, TL_F32, TL_DIMS(2, 3));
    b[CONSUMED] = filled(t, TL_F32, TL_DIMS(2, 2, 3, 4));
    tl_rotary_(t, b[CONSUMED], a->x[TABLE], a->x[TABLE], TL_ROTARY_HALF);
    b[FREED] = tl_square(t, tl_mul(t, a->x[P], gone));
    tl_backward(t, tl_sum(t, b[FREED], TL_ALL, false));
    uint32_t begin = tl_segment_begin(t);
    b[DROPPED] = tl_tanh(t, a->x[F]);
    tl_segment_end(t, begin, NULL, 0, false);
    b[SCALAR] = filled(t, TL_F32, TL_SCALAR);
    b[EIGHT] = filled(t, TL_F32, TL_DIMS(1, 1, 1, 1, 1, 1, 1, 2));
    b[EMPTY] = filled(t, TL_F32, TL_DIMS(far, 0));
    b[LONG] = a->x[IDS2];
    b[BOOLS] = a->x[MASK];
    b[WIDER] = filled(t, TL_F64, TL_DIMS(2, 3));
    b[PARAMETER] = a->x[P];
    b[FORGED] = (tl_tensor){a->x[F].owner, 1u << 30, a->x[F].generation};
}

static void set_up(api *a)
{
    if (a->A == 0 && a->B == 0)
        a->A = 2, a->B = 3, a->H = 2, a->D = 4;
    for (int i = 0; i < 6; i++)
        a->floats[i] = (float)i + 0.25f;
    a->m = tl_model_new(.seed = 1);
    a->m2 = tl_model_new(.seed = 2);
    a->t = tl_tape_new(a->m);
    a->t2 = tl_tape_new(a->m2);
    a->clear = tl_tape_new(a->m);
    a->bad_x[STALE] = tl_data(a->t, a->floats, TL_F32, TL_DIMS(2, 3));
    tl_tape_reset(a->t);
    a->x[P] = tl_param(a->t, a->m, "w", TL_F32, TL_DIMS(a->A, a->B), TL_INIT_ONES, 1);
    set_up_tensors(a);
    if (a->A == 2 && a->B == 3)
        set_up_bad(a);
    a->nodes = tl_segment_begin(a->t);
    a->x[LOSS] = tl_sum(a->t, tl_mul(a->t, a->x[P], a->x[F]), TL_ALL, false);
    a->order = tl_order_new(4);
    a->whole = tl_order_new(2);
    tl_order_add2(a->whole, 0, 1);
    a->pattern = tl_pattern_new();
    a->sizes[0] = 1, a->sizes[1] = 2;
    for (int i = 0; i < 4; i++)
        a->shapes[i] = TL_DIMS(2, 3);
    a->stream = fopen("/dev/null", "w");
    a->needs &GRAPHS ? (void)graph(a) : (void)0;
    a->needs &COMPILEDS ? (void)compiled(a) : (void)0;
    a->needs &OPTS ? (void)opt(a) : (void)0;
    a->needs &FILES ? (void)file(a) : (void)0;
}

static void tear_down(api *a)
{
    tl_free(a->graph, a->compiled, a->orphan, a->orphan_compiled, a->opt, a->t, a->t2, a->clear,
            a->m, a->m2);
    tl_st_close(a->file);
    tl_st_close(a->files[0]);
    tl_order_free(a->order);
    tl_order_free(a->whole);
    tl_order_free(a->orders[0]);
    tl_pattern_free(a->pattern);
    tl_writer_abort(a->writer[0]);
    tl_free_raw(a->bytes[0]);
    if (a->reader[0].path != NULL)
        tl_reader_close(a->reader);
    fclose(a->stream);
}

/* ---- what there is, as text ---- */

static uint64_t bytes_of(tl_tape *t, tl_tensor x)
{
    char hex[65];
    return tl_sha256(t, x, hex) == TL_OK ? strtoull(hex + 48, NULL, 16) : 0;
}

static int accumulated(const api *a, char *buf, size_t cap)
{
    int n = tl_accumulating_count(a->t), used = snprintf(buf, cap, "gradients");
    for (int i = 0; i < n; i++) {
        tl_accumulating g = tl_accumulating_at(a->t, i);
        used += snprintf(buf + used, cap - (size_t)used, " %s:%d", g.param, g.uses);
    }
    return used;
}

static void state_of(const api *a, bool layer, char *buf, size_t cap)
{
    int n = 0;
#define ADD(...) (n += snprintf(buf + n, cap - (size_t)n, __VA_ARGS__))
    ADD("mode %u steps %lld", tl_mode(a->t), (long long)tl_opt_steps(a->opt));
    for (int i = 0; i < TENSORS; i++)
        ADD(" %04x", (unsigned)bytes_of(a->t, a->x[i]) & 0xffff);
    for (int k = 0; k < 2; k++) {
        tl_model *m = k ? a->m2 : a->m;
        ADD("; model");
        for (int i = 0; i < tl_model_count(m); i++) {
            tl_named e = tl_model_at(m, i);
            if (layer && k == 0 && strcmp(e.name, "w") != 0)
                continue; /* a layer may have made a parameter: see the call that follows */
            ADD(" %.40s %d %d %04x", e.name, e.param, e.frozen,
                (unsigned)bytes_of(k ? a->t2 : a->t, e.tensor) & 0xffff);
        }
    }
#undef ADD
}

/* ---- calls ---- */

static bool fails_tensor(api *a, tl_tensor x) { return a->result = x, tl_is_none(x); }
static bool fails_status(api *a, unsigned s) { return (void)a, s != 0; }
static bool fails_bool(api *a, bool b) { return (void)a, !b; }
static bool fails_number(api *a, double x) { return (void)a, isnan(x); }
static bool fails_count(api *a, int n) { return a->bad >= 0 || n < 0; } /* says it or not */
static bool fails_text(api *a, const char *s) { return (void)a, s == NULL || *s == '\0'; }
static bool fails_cache(api *a, tl_kv_cache c) { return (void)a, tl_is_none(c.k); }
static bool fails_object(api *a, void *o)
{
    if (o != NULL && tl_failed(o))
        snprintf(a->said, sizeof a->said, "%s", tl_error(o));
    bool failing = o == NULL || tl_failed(o);
    tl_free(o);
    return failing;
}
#define FAILS(call) \
    _Generic((call), tl_tensor           \
             : fails_tensor, unsigned    \
             : fails_status, bool        \
             : fails_bool, double      \
             : fails_number, int         \
             : fails_count, const char * \
             : fails_text, tl_kv_cache   \
             : fails_cache, default      \
             : fails_object)(a, call)

#define CALL_SAYS(name, args) a->failing = FAILS(name args)
#define CALL_ALONE(name, args) CALL_SAYS(name, args)
#define CALL_LAYER(name, args) CALL_SAYS(name, args)
#define CALL_SAYS_VOID(name, args) name args, a->failing = tl_is_none(a->out[0])
#define CALL_QUIET(name, args) (void)name args
#define CALL_NOT(name, args) (void)0

#define ROW(name, kind, args) \
    static void row_##name(api *a) { (void)a, CALL_##kind(name, args); }
#include "tests/api_rows.t.h"

typedef enum { SAYS, ALONE, SAYS_VOID, LAYER, QUIET, NOT } row_kind;
static const struct {
    const char *name;
    row_kind kind;
    void (*call)(api *a);
} rows[] = {
#define ROW(name, kind, args) {#name, kind, row_##name},
#include "tests/api_rows.t.h"
};
enum { ROWS = sizeof rows / sizeof *rows };

/* How far a child has come with a function; shared with it. */
typedef struct {
    int bad, variant;
    bool done;
    int calls;
    int failures;
    char what[96];
} progress;

static bool heard(const char *message, char *out)
{
    if (message[0] == '\0')
        return false;
    snprintf(out, TL_MESSAGE_MAX, "%s", message);
    return true;
}

static void complain(progress *p, int row, const api *a, const char *why)
{
    p->failures++;
    if (a->bad < 0)
        print_error("%s: the good call: %s\n", rows[row].name, why);
    else
        print_error("%s, argument %d, %s: %s\n", rows[row].name, a->bad + 1, a->what, why);
}

static void judge(progress *p, int row, api *a, const char *before, const char *grads)
{
    char after[8192], grads_after[1024], text[TL_MESSAGE_MAX + 64];
    bool said = a->said[0] != '\0';
    void *speakers[] = {a->t,   a->t2,    a->clear,  a->m,        a->m2,
                        a->opt, a->graph, a->orphan, a->compiled, a->orphan_compiled};
    accumulated(a, grads_after, sizeof grads_after);
    if (!said && a->err.status != TL_OK)
        said = heard(a->err.message, a->said);
    for (size_t i = 0; i < sizeof speakers / sizeof *speakers; i++)
        if (speakers[i] != NULL && tl_failed(speakers[i])) {
            said |= heard(tl_error(speakers[i]), a->said);
            tl_error_clear(speakers[i]);
        }
    if (strstr(a->said, "(null)") != NULL) {
        snprintf(text, sizeof text, "a message with (null) in it: %s", a->said);
        complain(p, row, a, text);
    }
    bool fine = rows[row].kind == QUIET;
    if (a->bad < 0) {
        if (!fine && (said || a->failing)) {
            snprintf(text, sizeof text, "fails: %s", a->said);
            complain(p, row, a, text);
        }
        return;
    }
    if (!fine && a->must && !a->mute && !said)
        complain(p, row, a, "no message");
    if (!fine && a->must && !a->failing)
        complain(p, row, a, "what came back does not say that it has failed");
    state_of(a, rows[row].kind == LAYER, after, sizeof after);
    if (a->must || said) {
        if (strcmp(before, after) != 0) {
            complain(p, row, a, "has changed something");
            print_error("    said  : %s\n    before: %s\n    after : %s\n", a->said, before, after);
        }
        if (strcmp(grads, grads_after) != 0)
            complain(p, row, a, "has changed gradients");
    }
    if (a->must && !fine) { /* the good call still works */
        char what[sizeof a->what];
        memcpy(what, a->what, sizeof what);
        tl_err_clear(&a->err);
        int bad = a->bad;
        a->bad = -1;
        a->n_in = a->n_shapes = 0;
        if (rows[row].call == row_tl_grad_at || rows[row].call == row_tl_step_at)
            tl_backward(a->t, tl_sum(a->t, tl_square(a->t, a->x[P]), TL_ALL, false));
        rows[row].call(a);
        a->bad = bad;
        memcpy(a->what, what, sizeof what);
        if (a->failing) {
            snprintf(text, sizeof text, "the good call fails afterwards: %s",
                     a->err.message[0] ? a->err.message : tl_error(a->t));
            complain(p, row, a, text);
        }
    }
}

/* One call with argument `bad` spoiled; how many ways there are to do it, -1: no such argument. */
static int one_call(progress *p, int row, api *a, int bad, int variant)
{
    static char before[8192], grads[1024];
    unsigned needs = a->needs;
    temp_dir dir = a->dir;
    memset(a, 0, sizeof *a);
    a->needs = needs;
    a->dir = dir;
    temp_dir_file(a->fresh, &dir, "fresh");
    temp_dir_file(a->saved, &dir, "saved");
    temp_dir_file(a->checkpoint, &dir, "checkpoint");
    temp_dir_file(a->log, &dir, "log");
    set_up(a);
    if (tl_failed(a->t) || tl_failed(a->m))
        complain(p, row, a, tl_error(a->t));
    a->bad = bad;
    a->variant = variant;
    accumulated(a, grads, sizeof grads);
    state_of(a, rows[row].kind == LAYER, before, sizeof before);
    p->bad = bad;
    p->variant = variant;
    alarm(20);
    rows[row].call(a);
    alarm(0);
    memcpy(p->what, a->what, sizeof p->what);
    p->calls++;
    bool there = bad < a->place, made = bad < 0 || variant < a->variants;
    if (made)
        judge(p, row, a, before, grads);
    tear_down(a);
    return !there ? -1 : bad < 0 ? 0 : a->variants;
}

/* Where the walk goes on after argument bad in that variant, of so many. */
static void next_call(progress *p, int variants)
{
    if (variants < 0) {
        p->done = true;
    } else if (p->variant + 1 < variants) {
        p->variant++;
    } else {
        p->bad++;
        p->variant = 0;
    }
}

/* What is too much is refused, not killed for: 4 GB more than what there is. A sanitizer takes more
 * addresses than any limit has. */
static void limit_memory(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL || fscanf(f, "%lu", &pages) != 1)
        pages = 0;
    if (f != NULL)
        fclose(f);
    rlim_t most = (rlim_t)pages * (rlim_t)sysconf(_SC_PAGESIZE) + ((rlim_t)1 << 32);
    if (!SANITIZED && pages > 0)
        setrlimit(RLIMIT_AS, &(struct rlimit){most, most});
}

static void child(progress *p, int row, const temp_dir *dir)
{
    static api a;
    a.dir = *dir;
    limit_memory();
    int bad = p->bad, variant = p->variant;
    if (bad >= 0 && rows[row].kind != ALONE) { /* so that what it needs is known */
        one_call(p, row, &a, -1, 0);
        p->bad = bad, p->variant = variant;
    }
    while (!p->done) {
        next_call(p, one_call(p, row, &a, p->bad, p->variant));
        if (rows[row].kind == ALONE)
            break;
    }
    fflush(NULL);
    _exit(0);
}

static int check(progress *p, int row, const temp_dir *dir)
{
    memset(p, 0, sizeof *p);
    p->bad = -1;
    for (int crashes = 0; !p->done && crashes < 100;) {
        int status = 0;
        fflush(NULL);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            child(p, row, dir);
        assert_int_equal(waitpid(pid, &status, 0), pid);
        if (status == 0)
            continue;
        print_error("%s, argument %d, variant %d (after %s): %s %d\n", rows[row].name, p->bad + 1,
                    p->variant, p->what, WIFSIGNALED(status) ? "signal" : "exit",
                    WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
        p->failures++;
        crashes++;
        next_call(p, 1 << 20); /* go on behind it: the next variant; too far is noticed there */
    }
    return p->failures;
}

static void files_of(const temp_dir *dir)
{
    static api a;
    char path_of[1024];
    a.dir = *dir;
    set_up(&a);
    assert_int_equal(tl_save(a.m, temp_dir_file(path_of, dir, "saved")), TL_OK);
    assert_int_equal(tl_checkpoint_save(a.m, opt(&a), temp_dir_file(path_of, dir, "checkpoint"),
                                        NULL, 0),
                     TL_OK);
    tear_down(&a);
}

/* TL_TEST_API names functions to try, with commas between; all without it. */
static void bad_arguments_are_errors(void **unused)
{
    progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    temp_dir dir;
    int failures = 0, calls = 0;
    const char *only = getenv("TL_TEST_API");
    (void)unused;
    assert_true(p != MAP_FAILED && temp_dir_make(&dir));
    files_of(&dir);
    for (int i = 0; i < ROWS; i++) {
        if (rows[i].kind == NOT || (only != NULL && strstr(only, rows[i].name) == NULL))
            continue;
        failures += check(p, i, &dir);
        calls += p->calls;
    }
    temp_dir_remove(&dir);
    munmap(p, sizeof *p);
    print_message("%d rows, %d calls\n", (int)ROWS, calls);
    assert_int_equal(failures, 0);
}

/* ---- tensors without elements, whose other dims are huge ---- */

/* No call may take longer for them than for others: the child's alarm says so. What it may say is
 * that memory or an element is missing. */
static void empty_call(progress *p, int row, api *a, const int64_t size[4])
{
    temp_dir dir = a->dir;
    memset(a, 0, sizeof *a);
    a->dir = dir;
    a->A = size[0], a->B = size[1], a->H = size[2], a->D = size[3];
    set_up(a);
    tl_error_clear(a->t);
    for (int i = F; i <= LONGTABLE; i++) {
        tl_require_grad(a->t, a->x[i]);
        tl_error_clear(a->t); /* it may be too large to be there at all */
    }
    a->bad = -1;
    alarm(20);
    rows[row].call(a);
    p->failures += !tl_failed(a->t); /* here: how many went through */
    if (!tl_failed(a->t))
        tl_backward(a->t, tl_sum(a->t, a->result, TL_ALL, false), .partial = true);
    alarm(0);
    tear_down(a);
}

static void empty_tensors_take_no_work(void **unused)
{
    static const int64_t sizes[][4] = {{far, 0, 2, 4}, {0, far, 2, 4}, {2, 0, far, 4},
                                       {2, 3, 0, far}, {2, 3, far, 0}, {2, far, 2, 0},
                                       {2, 0, 2, far}, {0, 3, 2, 4},   {2, 0, 2, 4}};
    progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    static api a;
    int bad = 0;
    (void)unused;
    assert_true(p != MAP_FAILED && temp_dir_make(&a.dir));
    for (int i = 0; i < ROWS && strcmp(rows[i].name, "tl_apply1") != 0; i++) {
        p->failures = 0;
        for (size_t k = 0; rows[i].kind == SAYS && k < sizeof sizes / sizeof *sizes; k++) {
            int status = 0;
            fflush(NULL);
            pid_t pid = fork();
            if (pid == 0) {
                limit_memory();
                empty_call(p, i, &a, sizes[k]);
                _exit(0);
            }
            assert_int_equal(waitpid(pid, &status, 0), pid);
            if (status != 0)
                print_error("%s, sizes %lld %lld %lld %lld: %s %d\n", rows[i].name,
                            (long long)sizes[k][0], (long long)sizes[k][1], (long long)sizes[k][2],
                            (long long)sizes[k][3], WIFSIGNALED(status) ? "signal" : "exit",
                            WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
            bad += status != 0;
        }
        if (rows[i].kind == SAYS && p->failures == 0) {
            print_error("%s: no size went through\n", rows[i].name);
            bad++;
        }
    }
    temp_dir_remove(&a.dir);
    munmap(p, sizeof *p);
    assert_int_equal(bad, 0);
}

/* ---- objects that end before what needs them ---- */

static void a_model_outlives_its_tapes_and_optimizers(void **unused)
{
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    tl_model *m = tl_model_new(.seed = 1);
    tl_tape *t = tl_tape_new(m);
    tl_opt *o = tl_sgd_new(m, .lr = 0.5);
    tl_tensor w = tl_param(t, m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1);
    tl_tensor row = tl_select(t, w, 0, 1), x = tl_data(m, ones, TL_F32, TL_DIMS(2, 3));
    (void)unused;
    tl_free(m);
    assert_true(tl_item(t, tl_select(t, row, 0, 2)) == 1); /* a view of it */
    assert_int_equal(tl_backward(t, tl_sum(t, tl_mul(t, w, x), TL_ALL, false)), TL_OK);
    assert_int_equal(tl_step(o, t), TL_OK);
    assert_true(tl_item(t, tl_select(t, row, 0, 2)) == 0.5);
    tl_free(t, o);
}

typedef struct {
    tl_model *m;
    tl_opt *o;
} trained;

static void training(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    const trained *k = ctx;
    tl_tensor w = tl_param(t, k->m, "w", TL_F32, TL_DIMS(2, 3), TL_INIT_ONES, 1);
    (void)n, (void)n_out;
    out[0] = tl_sum(t, tl_mul(t, w, in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
    tl_step(k->o, t);
}

/* The optimizer goes first, then the model: the program's graph holds them. */
static void an_optimizer_outlives_the_graphs_of_its_steps(void **unused)
{
    static const float ones[6] = {1, 1, 1, 1, 1, 1};
    trained k = {.m = tl_model_new(.seed = 1)};
    (void)unused;
    k.o = tl_adamw_new(k.m, .lr = 0.5, .clip = 1);
    tl_tape *t = tl_tape_new(k.m);
    tl_compiled *c = tl_compile(t, training, 1, &k);
    tl_tensor x = tl_data(k.m, ones, TL_F32, TL_DIMS(2, 3)), loss;
    assert_int_equal(tl_run(c, &x, 1, &loss), TL_OK);
    double first = tl_item(t, loss);
    tl_free(k.o, k.m);
    assert_int_equal(tl_run(c, &x, 1, &loss), TL_OK);
    assert_true(tl_item(t, loss) < first);
    tl_free(t, c);
}

static void resets(tl_tape *t, void *ctx)
{
    (void)t;
    tl_tape_reset(ctx);
}
static void resetting(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out;
    tl_host(t, TL_BEFORE, resets, ctx);
    out[0] = tl_tanh(t, in[0]);
}

static void a_hook_that_resets_the_tape_makes_the_inputs_stale(void **unused)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3), 1), y;
    tl_compiled *c = tl_compile(t, resetting, 1, t);
    (void)unused;
    assert_int_equal(tl_run(c, &x, 1, &y), TL_ESTALE);
    assert_true(tl_is_none(y) && strstr(tl_error(t), "before the tape was reset") != NULL);
    tl_free(c, t);
}

static void summing(tl_tape *t, const tl_tensor *in, int n, tl_tensor *out, int n_out, void *ctx)
{
    (void)n, (void)n_out, (void)ctx;
    tl_require_grad(t, in[0]);
    out[0] = tl_sum(t, tl_square(t, in[0]), TL_ALL, false);
    tl_backward(t, out[0]);
}

static void a_log_needs_no_model(void **unused)
{
    temp_dir dir;
    char log[1024];
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor x = tl_fill(t, TL_F32, TL_DIMS(3), 1), y;
    tl_compiled *c = tl_compile(t, summing, 1, NULL);
    (void)unused;
    assert_true(temp_dir_make(&dir));
    assert_int_equal(tl_log_open(t, temp_dir_file(log, &dir, "log")), TL_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tl_run(c, &x, 1, &y), TL_OK);
        tl_log_step(t);
    }
    assert_true(tl_item(t, y) == 3);
    assert_int_equal(tl_log_close(t), TL_OK);
    tl_free(c, t);
    temp_dir_remove(&dir);
}

/* ---- the table is whole ---- */

static bool has_row(const char *word)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, word) == 0)
            return true;
    return false;
}

static void every_public_function_has_a_row(void **unused)
{
    static name_list declared;
    int functions = 0, missing = 0;
    (void)unused;
    add_declared(&declared);
    for (int i = 0; i < declared.n; i++) {
        functions += declared.name[i].function;
        if (declared.name[i].function && !has_row(declared.name[i].text)) {
            print_error("%s has no row in tests/api_rows.t.h\n", declared.name[i].text);
            missing++;
        }
    }
    print_message("%d functions\n", functions);
    assert_true(functions > 250);
    assert_int_equal(missing, 0);
}

const struct CMUnitTest tl_tests_api[] = {
    cmocka_unit_test(every_public_function_has_a_row),
    cmocka_unit_test(bad_arguments_are_errors),
    cmocka_unit_test(empty_tensors_take_no_work),
    cmocka_unit_test(a_model_outlives_its_tapes_and_optimizers),
    cmocka_unit_test(an_optimizer_outlives_the_graphs_of_its_steps),
    cmocka_unit_test(a_hook_that_resets_the_tape_makes_the_inputs_stale),
    cmocka_unit_test(a_log_needs_no_model),
};
const size_t tl_tests_api_count = sizeof tl_tests_api / sizeof *tl_tests_api;
