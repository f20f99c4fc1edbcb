/* api_calls.c: arguments, and the objects they name. */
#include "tests/support/api_calls.h"

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "tensor/memory.h"

static const char *const kinds[VARIANTS] = {
    "a stale handle",     "another tape's handle", "another model's handle",
    "a freed tape's",     "a forged handle",       "a consumed handle",
    "a value freed",      "a value dropped",       "a 0-d tensor",
    "a tensor of 8 dims", "a tensor [2^40, 0]",    "an i64 tensor",
    "a bool tensor",      "an f64 tensor",         "a parameter"};

/* splitmix64 */
uint64_t api_below(uint64_t *state, uint64_t n)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (z ^ z >> 31) % n;
}

/* ---- arguments ---- */

/* This argument is the one to spoil, in one of n ways: the first `wrong` of them can only be
 * wrong. */
static bool spoil(api *a, int n, int wrong)
{
    if (a->random != NULL) {
        a->variant = (int)api_below(a->random, n > 0 ? (uint64_t)n : 1);
        return api_below(a->random, 40) == 0;
    }
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

/* Instead of an object NULL, or, which its error says itself, one that has ended. */
static void *nothing(api *a, void *freed)
{
    a->mute = a->variant == 0;
    NOTE(a->variant == 0 ? "NULL" : "one that has been freed");
    if (a->variant == 1)
        snprintf(a->said, sizeof a->said, "%s", tl_error(freed));
    return a->variant == 0 ? NULL : freed;
}

static tl_at at(api *a)
{
    if (!spoil(a, 3, 2) || (a->variant == 1 && tl_lives(a->freed.t))) /* something new is there */
        return TL_AT(a->t);
    if (a->variant < 2)
        return (tl_at){nothing(a, a->freed.t), NULL, INT_MIN, NULL};
    NOTE("a place without a file");
    return (tl_at){a->t, NULL, INT_MIN, NULL};
}

static void *object(api *a, void *good, void *freed, bool must)
{
    if (!spoil(a, 2, must ? 2 : 0) || tl_lives(freed)) /* something new is there */
        return good;
    a->must |= a->variant == 1;
    return nothing(a, freed);
}

static tl_model *model_of_tape(api *a)
{
    if (!spoil(a, 3, 3))
        return a->m;
    NOTE("%s model", a->variant == 0 ? "NULL for a" : a->variant == 1 ? "another" : "a freed");
    return a->variant == 0 ? NULL : a->variant == 1 ? a->m2 : a->freed.m;
}

static tl_tensor tensor(api *a, tl_tensor good, bool required)
{
    if (!spoil(a, VARIANTS + 1, required ? WRONG + 1 : WRONG)) {
        if (a->random != NULL && a->pooled > 0 && api_below(a->random, 4) == 0)
            return a->pool[(a->pooled - 1 - api_below(a->random, a->pooled < 16 ? a->pooled : 16)) %
                           64];
        return good;
    }
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
#define T ((tl_tape *)object(a, a->t, a->freed.t, true))
#define T_CLEAR ((tl_tape *)object(a, a->clear, a->freed.t, true))
#define MODEL ((tl_model *)object(a, a->m, a->freed.m, true))
#define MODEL_MAYBE ((tl_model *)object(a, a->m, a->freed.m, false))
#define MODEL_OF_TAPE model_of_tape(a)
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
#define ROOM(v) (size_t) INTEGER(v, 0, 0, 1) /* of a buffer: only the caller knows it */
#define BYTES(v) (size_t) INTEGER(v, 3, 0, (v)-1, (v) + 1)
#define COUNT(v) (int)INTEGER(v, 2, -1, INT_MIN, 0)
#define DBL(v) real(a, v)
#define DTYPE(v) (tl_dtype) INTEGER(v, 3, TL_DTYPE_COUNT, 99, -1, TL_I64, TL_BOOL, TL_F16)
#define DTYPE_SOME(v) (tl_dtype) INTEGER(v, 0, TL_I64, 99, -1)
#define DTYPE_BAD(v) (tl_dtype) INTEGER(v, 3, TL_DTYPE_COUNT, 99, -1)
#define DTYPE_ANY(v) (tl_dtype) INTEGER(v, 2, 99, -1, TL_I64, TL_BOOL, TL_F16, TL_ANY_DTYPE)
#define ENUM(v) (unsigned)INTEGER(v, 2, 99, -1, 0)
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
#define GRAPH                                                   \
    (spoil(a, 1, 1) ? (NOTE("a freed tape's graph"), orphan(a)) \
                    : (tl_graph *)object(a, graph(a), a->freed.graph, true))
#define COMPILED                                                           \
    (spoil(a, 1, 1) ? (NOTE("a freed tape's program"), orphan_compiled(a)) \
                    : (tl_compiled *)object(a, compiled(a), a->freed.compiled, true))
#define OPT ((tl_opt *)object(a, opt(a), a->freed.opt, true))
#define OPT_MAYBE ((tl_opt *)object(a, opt(a), a->freed.opt, false))
#define FILE_OPEN (absent(a, true, false) ? NULL : file(a))
#define NUMBERS_OPEN (absent(a, true, false) ? NULL : numbers(a))
#define TOKENIZER (absent(a, true, false) ? NULL : tokenizer(a))
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
                                      .smoothing = smoothing,
                                      .weight = MAYBE(ROW3)};
}
static tl_draw_options draws(api *a)
{
    return (tl_draw_options){.stream = NAME("s"), .sample = MAYBE(IDS), .start = MAYBE(IDS)};
}
static tl_conv_options convs(api *a, int64_t second)
{
    return (tl_conv_options){.stride = {I64(1), second},
                             .padding = {I64(1), second},
                             .dilation = {I64(1), second},
                             .groups = I64(1)};
}
static tl_bce_options bces(api *a)
{
    return (tl_bce_options){.reduction = ENUM(TL_MEAN), .weight = MAYBE(F), .pos_weight = MAYBE(F)};
}
static tl_attention_options ranges(api *a)
{
    return (tl_attention_options){.key_start = MAYBE(IDS), .key_end = MAYBE(ENDS)};
}
static tl_attention_options written_out(api *a)
{
    return (tl_attention_options){.scale = DBL(1),
                                  .key_start = MAYBE(IDS),
                                  .bias = MAYBE(ONE),
                                  .offset = MAYBE(IDS),
                                  .softcap = DBL(2),
                                  .lse = OUT_MAYBE(a->out)};
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
static tl_recurrent_options recurs(api *a)
{
    return (tl_recurrent_options){.layers = I64_SMALL(1),
                                  .end = MAYBE(ENDS),
                                  .last_h = OUT_MAYBE(a->out),
                                  .last_c = OUT_MAYBE(a->out + 1)};
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
static const tl_decoder_config *decoder(api *a)
{
    (void)tl_hf_load(a->m, TL_ROOT "/tests/corpus/llama", &a->decoder);
    a->decoder.llama.layers = I64_SMALL(1);
    a->decoder.llama.vocab = I64_SMALL(8);
    return PTR(&a->decoder);
}
static const tl_decoder_config *of_llmc(api *a)
{
    (void)tl_llmc_load(a->m, TL_ROOT "/tests/corpus/gpt2.llmc", &a->decoder);
    a->decoder.gpt2.hidden = I64_SMALL(32);
    return PTR(&a->decoder);
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
static tl_opt_options of_sgd(api *a)
{
    return (tl_opt_options){.lr = DBL(0.1),
                            .momentum = DBL(0.9),
                            .weight_decay = DBL(0.1),
                            .clip = DBL(1),
                            .schedule = rates(a)};
}
static tl_opt_options of_adam(api *a)
{
    return (tl_opt_options){.lr = DBL(0.1),
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
static tl_arrays *numbers(api *a)
{
    if (a->read == NULL)
        (void)tl_arrays_open(&a->read, TL_ROOT "/tests/corpus/f4.npy", NULL);
    return a->read;
}
static tl_tokenizer *tokenizer(api *a)
{
    if (a->tokenizer == NULL)
        (void)tl_tokenizer_open(&a->tokenizer, TL_ROOT "/tests/corpus/gpt2.tokenizer.json", NULL);
    return a->tokenizer;
}
static tl_loader *loader(api *a)
{
    tl_array x = tl_arrays_at(numbers(a), 0);
    if (a->loader.n == 0)
        a->loader = tl_loader_new(a->t, "loader", &x, 1, .batch = 2);
    return &a->loader;
}
static const tl_array *numbers_of(api *a)
{
    a->room = tl_arrays_at(numbers(a), 0);
    return PTR(&a->room);
}

static tl_tensor filled(tl_tape *t, tl_dtype d, tl_shape s)
{
    return tl_shape_count(&s) == 0 ? tl_zeros(t, d, s) : tl_fill(t, d, s, 0.5);
}

void api_tensors(api *a)
{
    tl_tape *t = a->t;
    static const int64_t some[] = {0, 1, 2, 1, 0, 1};
    const int64_t *ids = a->ids != NULL ? a->ids : some;
    const int64_t ends[] = {a->ids != NULL ? ids[2] : 2, a->ids != NULL ? ids[3] : 3};
    const int64_t A = a->A, B = a->B, few = A > 2 ? 2 : A, pairs = few * B > 6 ? 0 : B;
    tl_tensor *x = a->x;
    x[P] = tl_param(t, a->m, "w", TL_F32, TL_DIMS(A, B), TL_INIT_ONES, 1);
    x[F] = A * B == 6 ? tl_data(t, a->floats, TL_F32, TL_DIMS(2, 3))
                      : filled(t, TL_F32, TL_DIMS(A, B));
    x[FT] = filled(t, TL_F32, TL_DIMS(B, A));
    x[ROW3] = filled(t, TL_F32, TL_DIMS(B > 3 ? 3 : B));
    x[CUBE] = filled(t, TL_F32, TL_DIMS(A, B > 3 ? 0 : B, B > 3 ? 0 : B));
    x[IMAGE] = filled(t, TL_F32, TL_DIMS(A, B > 3 ? 0 : B, 2, 3));
    x[SQUARE] = filled(t, TL_F32, TL_DIMS(A > 2 ? 0 : A, A > 2 ? 0 : A));
    x[UNITS] = filled(t, TL_F32, TL_DIMS(B > 3 ? 0 : B, B > 3 ? 0 : B));
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

void api_loss(api *a)
{
    a->nodes = tl_segment_begin(a->t);
    a->x[LOSS] = tl_sum(a->t, tl_mul(a->t, a->x[P], a->x[F]), TL_ALL, false);
}

/* Last of all, so that nothing is made where they were. */
static void set_up_freed(api *a)
{
    a->freed.m = tl_model_new(.seed = 1);
    a->freed.t = tl_tape_new(a->freed.m);
    a->freed.opt = tl_sgd_new(a->freed.m, .lr = 0.5);
    tl_tensor x = tl_data(a->freed.t, a->floats, TL_F32, TL_DIMS(2, 3)), y;
    a->bad_x[DEAD] = x;
    a->freed.graph = tl_trace(a->freed.t, program, &x, 1, 1, NULL);
    a->freed.compiled = tl_compile(a->freed.t, program, 1, NULL);
    tl_run(a->freed.compiled, &x, 1, &y);
    tl_free(a->freed.compiled, a->freed.graph, a->freed.opt, a->freed.t, a->freed.m);
}

void api_set_up(api *a)
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
    api_tensors(a);
    if (a->A == 2 && a->B == 3)
        set_up_bad(a);
    api_loss(a);
    a->order = tl_order_new(4);
    a->whole = tl_order_new(2);
    tl_order_add(a->whole, (int64_t[]){0, 1}, 2);
    a->sizes[0] = 1, a->sizes[1] = 2;
    for (int i = 0; i < 4; i++)
        a->shapes[i] = TL_DIMS(2, 3);
    a->stream = fopen("/dev/null", "w");
    a->needs &GRAPHS ? (void)graph(a) : (void)0;
    a->needs &COMPILEDS ? (void)compiled(a) : (void)0;
    a->needs &OPTS ? (void)opt(a) : (void)0;
    a->needs &FILES ? (void)file(a) : (void)0;
    set_up_freed(a);
}

void api_tear_down(api *a)
{
    tl_free(a->graph, a->compiled, a->opt, a->t, a->t2, a->clear, a->m, a->m2);
    api_take_back(a);
    tl_st_close(a->file);
    tl_arrays_close(a->read);
    tl_tokenizer_close(a->tokenizer);
    tl_order_free(a->order);
    tl_order_free(a->whole);
    fclose(a->stream);
}

void api_take_back(api *a)
{
    tl_st_close(a->files[0]);
    tl_arrays_close(a->numbers[0]);
    tl_tokenizer_close(a->tokenizers[0]);
    tl_order_free(a->orders[0]);
    tl_writer_abort(a->writer[0]);
    tl_free_raw(a->bytes[0]);
    if (a->reader[0].path != NULL)
        tl_reader_close(a->reader);
    tl_free(a->orphan, a->orphan_compiled);
    a->files[0] = NULL;
    a->numbers[0] = NULL;
    a->tokenizers[0] = NULL;
    a->orders[0] = NULL;
    a->writer[0] = NULL;
    a->bytes[0] = NULL;
    a->reader[0].path = NULL;
    a->orphan = NULL;
    a->orphan_compiled = NULL;
    a->n_in = a->n_shapes = 0;
    a->err = (tl_err){.status = TL_OK};
}

void api_paths(api *a)
{
    temp_dir_file(a->fresh, &a->dir, "fresh");
    temp_dir_file(a->saved, &a->dir, "saved");
    temp_dir_file(a->checkpoint, &a->dir, "checkpoint");
    temp_dir_file(a->log, &a->dir, "log");
}

bool api_files(const temp_dir *dir)
{
    static api a;
    memset(&a, 0, sizeof a);
    a.dir = *dir;
    api_paths(&a);
    api_set_up(&a);
    bool ok = tl_save(a.m, a.saved) == TL_OK &&
              tl_checkpoint_save(a.m, opt(&a), a.checkpoint, NULL, 0) == TL_OK;
    api_tear_down(&a);
    return ok;
}

#if defined(__SANITIZE_ADDRESS__) /* which takes more addresses than any limit */
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

void api_limit_memory(void)
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

/* ---- calls ---- */

static bool fails_tensor(api *a, tl_tensor x) { return a->result = x, tl_is_none(x); }
static bool fails_status(api *a, unsigned s) { return (void)a, s != 0; }
static bool fails_bool(api *a, bool b) { return (void)a, !b; }
static bool fails_number(api *a, double x) { return (void)a, isnan(x); }
static bool fails_count(api *a, int n) { return a->bad >= 0 || n < 0; } /* says it or not */
static bool fails_text(api *a, const char *s) { return (void)a, s == NULL || *s == '\0'; }
static bool fails_cache(api *a, tl_kv_cache c) { return (void)a, tl_is_none(c.k); }
static bool fails_loader(api *a, tl_loader l) { return (void)a, l.n == 0; }
static bool fails_rows(api *a, int64_t n) { return (void)a, n < 1; }
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
             : fails_cache, tl_loader    \
             : fails_loader, int64_t     \
             : fails_rows, default       \
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

const api_row api_rows[] = {
#define ROW(name, kind, args) {#name, kind, row_##name},
#include "tests/api_rows.t.h"
};
const int api_row_count = sizeof api_rows / sizeof *api_rows;

int api_find(const char *name)
{
    int i = 0;
    while (i < api_row_count && strcmp(api_rows[i].name, name) != 0)
        i++;
    return i;
}
