/* Every op of the registry in a segment, whatever becomes of each of its outputs - dropped, kept
 * and not read, kept and read, read inside, changed in place afterwards: the gradients are those
 * without a segment. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"
#include "tests/support/expect.h"
#include "tests/support/fresh.h"

extern const struct CMUnitTest tl_tests_segment_outputs[];
extern const size_t tl_tests_segment_outputs_count;

enum { BESIDE = 3 }; /* other results of an output's size */
enum { DROPPED, KEPT, READ, READ_INSIDE, CHANGED, FATES };
enum { BACKWARD, TWICE, GRADIENTS, WALKS };
enum { NONE, PLAIN, VERIFIED, SEGMENTS };

typedef struct {
    const case_run *r;
    const ref_tensor *leaf;
    int fate[CASE_OUTPUTS]; /* what becomes of each output */
    int how, segment;
} program;

static tl_status same_shape(tl_call *c)
{
    c->out[0] = *c->in[0];
    return TL_OK;
}

/* y = 0 x, in x's memory */
static tl_status zero_forward(tl_call *c)
{
    size_t n = (size_t)tl_array_count(&c->out[0]);
    if (n > 0)
        memset(c->out[0].data, 0, n * tl_dtype_size(c->out[0].dtype));
    return TL_OK;
}
static void zero_vjp(tl_vjp *g) { g->dx[0] = tl_scale(g->t, g->dy[0], 0); }
static const tl_op zero = {.name = "zero",
                           .n_in = 1,
                           .n_out = 1,
                           .traits = TL_MUTATES,
                           .shape = same_shape,
                           .forward = zero_forward,
                           .vjp = zero_vjp};

/* y is the last x, and it has a gradient by all. The others', which wait while backward goes on
 * from the last, may lie where x was. */
static tl_status beside_forward(tl_call *c)
{
    tl_array_copy(&c->out[0], c->in[BESIDE]);
    return TL_OK;
}
static void beside_vjp(tl_vjp *g)
{
    for (int i = 0; i < g->n_in; i++)
        g->dx[i] = tl_scale(g->t, tl_scale(g->t, g->dy[0], 1 + i), 2);
}
static const tl_op beside = {.name = "beside",
                             .n_in = BESIDE + 1,
                             .n_out = 1,
                             .shape = same_shape,
                             .forward = beside_forward,
                             .vjp = beside_vjp};

/* The op's own node among those recorded since; NULL: none. */
static const tl_node *node_of(const char *op, uint32_t since)
{
    for (uint32_t i = since; i < t->n_nodes; i++)
        if (strcmp(t->node[i].op->name, op) == 0)
            return &t->node[i];
    return NULL;
}

static tl_tensor output_of(const tl_node *n, int j)
{
    return (tl_tensor){t->values.owner, n->out + (uint32_t)j, t->generation};
}

/* x, output j of an op (or made of it), as a derivative may depend on it. */
static tl_tensor readable(const tl_op *op, int j, tl_tensor x)
{
    return op->traits & TL_NONDIFF || op->nodiff_out & TL_BIT(j) ? tl_detach(t, x) : x;
}

/* What becomes of output j of the case's node n, which gave out[0 .. n_out). What carries a
 * gradient and is not among those is not meant to be read. What the segment itself reads when it
 * is computed again is not to be changed in between. */
static int fate_of(const program *p, const tl_node *n, int j, const tl_tensor *out, int n_out)
{
    const tl_tensor x = output_of(n, j);
    int fate = p->fate[j];
    bool meant = !tl_peek(t, x)->needs_grad || n->op->nodiff_out & TL_BIT(j),
         inside = n->op->traits & TL_VIEW;
    if (tl_peek(t, x)->let_go) /* by the composition that made it */
        return DROPPED;
    for (int i = 0; i < n_out; i++)
        meant |= out[i].index == x.index;
    for (const tl_node *by = n + 1; by < t->node + t->n_nodes; by++)
        for (int k = 0; k < by->n_in; k++)
            meant |= inside |= by->in[k].owner == x.owner && by->in[k].index == x.index;
    if (!meant && fate >= READ)
        fate = fate == READ_INSIDE ? DROPPED : KEPT;
    return inside && fate == CHANGED ? READ : fate;
}

/* Gradients that are asked for. */
enum { LEAVES = 1 + CASE_INPUTS + CASE_OUTPUTS * BESIDE };
typedef struct {
    tl_tensor x[LEAVES];
    int n;
} leaves;

static void want(leaves *by, tl_tensor x)
{
    tl_require_grad(t, x);
    by->x[by->n++] = x;
}

/* A term that depends on x, and on by's first even if x carries no gradient. */
static tl_tensor term(tl_tensor x, leaves *by)
{
    tl_tensor in[BESIDE + 1];
    if (!tl_dtype_is_float(tl_dtype_of(t, x)))
        x = tl_cast(t, x, TL_F32);
    in[BESIDE] = x;
    for (int i = 0; i < BESIDE; i++) {
        want(by, tl_detach(t, tl_fill(t, tl_dtype_of(t, x), tl_shape_of(t, x), 1 + i)));
        in[i] = tl_scale(t, by->x[by->n - 1], 0.5);
    }
    x = tl_apply1(TL_AT(t), &beside, NULL, in, BESIDE + 1);
    return tl_mul(t, tl_cast(t, tl_sum(t, x, TL_ALL, false), TL_F64), by->x[0]);
}

/* The gradients as one hash, or why there are none. False: the op changes an operand here. */
static bool run(const program *p, char hex[65])
{
    leaves by = {.n = 0};
    tl_tensor in[CASE_INPUTS] = {TL_NONE}, dx[LEAVES], all[LEAVES];
    tl_tensor out[CASE_OUTPUTS], keep[CASE_OUTPUTS];
    int n_keep = 0, n_all = 0;
    tl_tape_reset(t);
    tl_grad_clear(t);
    want(&by, tl_data(t, &(double){1.5}, TL_F64, TL_DIMS(1)));
    tl_tensor loss = tl_square(t, by.x[0]);
    for (int i = 0; i < p->r->n; i++) {
        in[i] = tl_case_leaf(t, &p->leaf[i]);
        if (!tl_case_floating(&p->r->in[i]))
            continue;
        want(&by, in[i]);
        in[i] = tl_scale(t, in[i], 0.75); /* a result, which backward would free */
    }
    uint32_t begin = tl_segment_begin(t);
    int n_built = tl_case_call(t, p->r, in, out);
    expect_ok(t, p->r->label);
    const tl_node *n = node_of(p->r->c->op, begin);
    bool changes = n == NULL;
    for (uint32_t i = begin; i < t->n_nodes; i++)
        changes |= tl_node_mutates(&t->node[i]);
    if (changes)
        return false;
    const tl_node op = *n;
    int fate[CASE_OUTPUTS];
    for (int j = 0; j < op.n_out; j++)
        fate[j] = fate_of(p, n, j, out, n_built);
    for (int j = 0; j < op.n_out; j++) {
        out[j] = output_of(&op, j);
        if (fate[j] == READ_INSIDE)
            out[j] = tl_square(t, tl_cast(t, readable(op.op, j, out[j]), TL_F64));
        if (fate[j] != DROPPED)
            keep[n_keep++] = out[j];
    }
    if (p->segment != NONE)
        tl_segment_end(t, begin, keep, n_keep, p->segment == VERIFIED);
    for (int j = 0; j < op.n_out; j++) {
        if (fate[j] == CHANGED)
            out[j] = tl_apply1(TL_AT(t), &zero, NULL, &out[j], 1);
        if (fate[j] >= READ)
            loss = tl_add(t, loss, term(readable(op.op, j, out[j]), &by));
    }
    if (p->how == GRADIENTS)
        tl_gradients(t, loss, by.x, by.n, TL_NONE, dx);
    else if (p->how == TWICE)
        tl_backward(t, loss, .retain = true);
    if (p->how != GRADIENTS)
        tl_backward(t, loss);
    if (tl_failed(t) && strstr(tl_error(t), "changed in place") != NULL) { /* a gradient reads it */
        strcpy(hex, "changed in place");
        tl_error_clear(t);
        return true;
    }
    expect_ok(t, p->r->label);
    for (int i = 0; i < by.n; i++) {
        tl_tensor g = p->how == GRADIENTS ? dx[i] : tl_grad(t, by.x[i]);
        if (!tl_is_none(g))
            all[n_all++] = tl_reshape(t, tl_cast(t, g, TL_F64), TL_DIMS(-1));
        else if (tl_error_status(t) == TL_ENOGRAD) /* nothing leads to it */
            tl_error_clear(t);
    }
    tl_sha256(t, tl_concat(t, all, n_all, 0), hex);
    expect_ok(t, p->r->label);
    return true;
}

/* Every fate of every output - beside f32, every seventh -, by the walks in turn; false: this case
 * does not show them. */
static bool every_fate(const case_run *r, const ref_tensor *leaf, const tl_op *op)
{
    static int turn;
    program p = {.r = r, .leaf = leaf};
    int all = 1;
    for (int j = 0; j < op->n_out; j++)
        all *= FATES;
    for (int i = 0; i < all; i += r->dtype == TL_F32 ? 1 : 7) {
        char hex[SEGMENTS][65];
        for (int j = 0, rest = i; j < op->n_out; j++, rest /= FATES)
            p.fate[j] = rest % FATES;
        p.how = turn++ % WALKS;
        for (p.segment = NONE; p.segment < SEGMENTS; p.segment++) {
            if (!run(&p, hex[p.segment]))
                return false;
            if (strcmp(hex[p.segment], hex[NONE]) != 0)
                fail_msg("%s, outputs' fates %d %d %d, walk %d, %s: %s, not %s", r->label,
                         p.fate[0], p.fate[1], p.fate[2], p.how,
                         p.segment == VERIFIED ? "verified" : "not verified", hex[p.segment],
                         hex[NONE]);
        }
    }
    return true;
}

static bool shown(const tl_op *op)
{
    bool any = false;
    for (int k = 0; k < tl_case_count(); k++) {
        const tl_case *c = tl_case_at(k);
        tl_dtype d;
        if (strcmp(c->op, op->name) != 0 || c->flags & CASE_BIG)
            continue;
        for (int at = 0; tl_case_dtype(c, at, &d); at++) {
            case_run r = tl_case_run(c, d);
            ref_tensor leaf[CASE_INPUTS] = {{.data = NULL}};
            uint64_t seed = tl_case_seed(expect_seed(), &r, CASE_PLAIN);
            tl_case_fill(&r, &seed, CASE_PLAIN, leaf);
            any |= every_fate(&r, leaf, op);
            tl_case_free(CASE_INPUTS, leaf);
        }
    }
    return any;
}

static void every_op_whatever_becomes_of_its_outputs(void **unused)
{
    (void)unused;
    for (int i = 0; i < tl_op_count(); i++)
        if (!shown(tl_op_at(i)) && tl_op_at(i)->n_out > 1)
            fail_msg("%s: no case has it in a segment", tl_op_at(i)->name);
}

/* A value outside is read inside by a way without a gradient, and backward has passed its maker
 * before it comes to the segment. */
static void what_a_segment_reads_waits_for_it(void **unused)
{
    char hex[3][SEGMENTS][65];
    (void)unused;
    for (int way = NONE; way < SEGMENTS; way++)
        for (int kind = 0; kind < 3; kind++) {
            static const float data[6] = {1, -2, 3, -4, 5, -6};
            tl_tape_reset(t);
            tl_grad_clear(t);
            tl_tensor w = tl_data(t, data, TL_F32, TL_DIMS(6)),
                      v = tl_data(t, data, TL_F32, TL_DIMS(6));
            tl_require_grad(t, w);
            tl_require_grad(t, v);
            tl_tensor x = tl_tanh(t, w);
            uint32_t begin = tl_segment_begin(t);
            int s = tl_mode_push(t, kind == 0 ? TL_NO_GRAD : TL_INVARIANT);
            tl_tensor mask = kind == 2 ? tl_detach(t, tl_gt(t, x, tl_scalar(t, TL_F32, 0)))
                                       : tl_exp(t, kind == 1 ? tl_detach(t, x) : x);
            tl_mode_pop(t, s);
            tl_tensor y = tl_sum(t, tl_mul(t, v, tl_cast(t, mask, TL_F32)), TL_ALL, false);
            if (way != NONE)
                tl_segment_end(t, begin, &y, 1, way == VERIFIED);
            tl_backward(t, tl_add(t, y, tl_sum(t, tl_square(t, x), TL_ALL, false)));
            tl_tensor g[2] = {tl_grad(t, w), tl_grad(t, v)};
            tl_sha256(t, tl_concat(t, g, 2, 0), hex[kind][way]);
            if (tl_failed(t))
                fail_msg("way %d of reading, segment %d: %s", kind, way, tl_error(t));
            assert_string_equal(hex[kind][way], hex[kind][NONE]);
        }
}

const struct CMUnitTest tl_tests_segment_outputs[] = {
    TEST(every_op_whatever_becomes_of_its_outputs),
    TEST(what_a_segment_reads_waits_for_it),
};
const size_t tl_tests_segment_outputs_count = sizeof tl_tests_segment_outputs /
                                              sizeof tl_tests_segment_outputs[0];
