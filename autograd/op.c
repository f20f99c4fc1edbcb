/* op.c: what an op says of itself: whether a call of it is valid; its attributes as text, compared
 * and hashed; what it reads and overwrites. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "autograd/internal.h"
#include "tensor/isa.h"

const char *tl_attrs_text(const tl_op *op, const void *attrs, char buf[TL_ATTRS_TEXT])
{
    size_t at = 0, room = TL_ATTRS_TEXT;
    char s[TL_SHAPE_TEXT];
    buf[0] = '\0';
    tl_textenv saved = tl_textenv_enter(); /* texts are compared: the same digits in any locale */
    for (const tl_attr *a = op->attr; a != NULL && a->name != NULL && at < room; a++) {
        const void *p = (const char *)attrs + a->offset;
        const char *text = s;
        switch (a->kind) {
        case TL_ATTR_DIM:
        case TL_ATTR_I64: snprintf(s, sizeof s, "%" PRId64, *(const int64_t *)p); break;
        case TL_ATTR_INT: snprintf(s, sizeof s, "%d", *(const int *)p); break;
        case TL_ATTR_F64: snprintf(s, sizeof s, "%.9g", *(const double *)p); break;
        case TL_ATTR_BOOL: text = *(const bool *)p ? "yes" : "no"; break;
        case TL_ATTR_SHAPE: tl_shape_text(s, p); break;
        case TL_ATTR_DTYPE: text = tl_dtype_name(*(const tl_dtype *)p); break;
        }
        at += (size_t)snprintf(buf + at, room - at, "%s%s=%s", at == 0 ? " {" : ", ", a->name,
                               text);
    }
    tl_textenv_leave(saved);
    if (at > 0 && at < room - 1)
        memcpy(buf + at, "}", 2);
    return buf;
}

static const size_t attr_bytes[] = {sizeof(int64_t), sizeof(int),      sizeof(double), /* by kind */
                                    sizeof(bool),    sizeof(tl_shape), sizeof(tl_dtype),
                                    sizeof(int64_t)};

double tl_attr_number(const tl_attr *f, const void *attrs)
{
    const void *p = (const char *)attrs + f->offset;
    switch (f->kind) {
    case TL_ATTR_F64: return *(const double *)p;
    case TL_ATTR_DIM:
    case TL_ATTR_I64: return (double)*(const int64_t *)p;
    case TL_ATTR_INT: return *(const int *)p;
    case TL_ATTR_BOOL: return *(const bool *)p;
    default: return 0;
    }
}

/* A dim counted from the end is the same as counted from the front. */
static bool same_dim(int64_t x, int64_t y, int rank)
{
    return (x < 0 ? x + rank : x) == (y < 0 ? y + rank : y);
}

bool tl_attrs_agree(const tl_op *op, const void *a, const void *b, int rank,
                    const signed char *skip)
{
    if (op->attr == NULL)
        return op->attr_size == 0; /* without a schema they cannot be compared */
    for (int i = 0; op->attr[i].name != NULL; i++) {
        const tl_attr *f = &op->attr[i];
        const char *x = (const char *)a + f->offset, *y = (const char *)b + f->offset;
        if (skip != NULL && skip[i] >= 0)
            continue;
        if (f->kind == TL_ATTR_SHAPE ? !tl_shape_equal((const tl_shape *)(const void *)x,
                                                       (const tl_shape *)(const void *)y)
                                     : memcmp(x, y, attr_bytes[f->kind]) != 0 &&
                                           !(f->kind == TL_ATTR_DIM && rank > 0 &&
                                             same_dim(*(const int64_t *)(const void *)x,
                                                      *(const int64_t *)(const void *)y, rank)))
            return false;
    }
    return true;
}

uint64_t tl_mix_shape(uint64_t h, const tl_shape *s)
{
    return tl_mix_elements(tl_mix(h, (uint64_t)s->ndim), s->dim, (size_t)s->ndim, sizeof *s->dim);
}

uint64_t tl_mix_attrs(uint64_t h, const tl_op *op, const void *attrs)
{
    for (const tl_attr *f = op->attr; f != NULL && f->name != NULL; f++) {
        const void *p = (const char *)attrs + f->offset;
        const double x = tl_attr_number(f, attrs);
        h = f->kind == TL_ATTR_SHAPE   ? tl_mix_shape(h, p)
            : f->kind == TL_ATTR_DTYPE ? tl_mix(h, *(const tl_dtype *)p)
                                       : tl_mix_elements(h, &x, 1, sizeof x);
        if ((f->kind == TL_ATTR_I64 || f->kind == TL_ATTR_DIM) &&
            (x >= 0x1p53 || x <= -0x1p53)) /* then x is rounded */
            h = tl_mix(h, *(const uint64_t *)p);
    }
    return h;
}

tl_status tl_call_fail(tl_call *c, tl_status s, const char *fmt, ...)
{
    tl_err e = {.status = TL_OK};
    va_list ap;
    va_start(ap, fmt);
    tl_vfail(&e, s, fmt, ap);
    va_end(ap);
    return tl_fail(c->err, s, "%s: %s", c->op->name, e.message);
}

/* How the op's declaration contradicts itself; NULL: it does not. */
static const char *oddity(const tl_op *op, int n_in)
{
    const bool mutates = op->traits & TL_MUTATES, tiles = op->traits & TL_POINTWISE;
    if (op->traits & TL_VIEW &&
        (n_in == 0 || op->n_out != 1 || op->optional & 1 || mutates || tiles))
        return "a view has one output, which shows its input 0, and computes nothing";
    if (tiles && (op->optional != 0 || (op->tile != NULL && op->slot != 0)))
        return "all inputs of a pointwise op are there, and it has one kernel";
    if (op->traits & TL_STORES && op->forward != NULL && op->tile != NULL)
        return "an op of TL_STORES has a forward or a tile, and not both";
    if (op->changes != 0 &&
        (!mutates || op->optional & TL_BIT(op->mutates) || tiles ||
         op->traits & (TL_WIDENED | TL_ROWS) || (n_in < 32 && op->changes >> n_in != 0)))
        return "further inputs are changed by an op that changes one, has them, and converts none";
    return NULL;
}

/* Checks the op's declaration, which may be a user's, and the call. Something must compute the op,
 * unless it is a view or a note in a trace; the engine's own loops limit the number of operands. */
tl_status tl_op_check(tl_at at, const tl_op *op, const void *attrs, const tl_tensor *in, int n_in,
                      const tl_tensor *out)
{
    if (op == NULL || (out == NULL && op->n_out > 0))
        return tl_tape_fail(at, TL_EDOMAIN, "tl_apply: %s is NULL", op == NULL ? "op" : "out");
    const bool named = op->name != NULL && *op->name != '\0';
    if (!named || op->shape == NULL)
        return tl_tape_fail(at, TL_EUSAGE, "%s: an op needs a name and a shape rule",
                            named ? op->name : "(no name)");
    if (at.tape->inside != NULL)
        return tl_tape_fail(at, TL_EUSAGE, "%s: called inside %s, on the same tape", op->name,
                            at.tape->inside);
    if (n_in < 0)
        return tl_tape_fail(at, TL_EDOMAIN, "%s: %d is not a count", op->name, n_in);
    const bool bare = attrs == NULL && op->attr_size > 0;
    if (bare || (in == NULL && n_in > 0))
        return tl_tape_fail(at, TL_EDOMAIN, "%s: %s NULL", op->name,
                            bare ? "its attributes are" : "the list of inputs is");
    if (op->n_in >= 0 && n_in != op->n_in)
        return tl_tape_fail(at, TL_EUSAGE, "%s: takes %d input%s, given %d", op->name, op->n_in,
                            op->n_in == 1 ? "" : "s", n_in);
    const bool tiles = op->traits & TL_POINTWISE;
    const bool noted = op->traits & TL_NONDIFF && at.tape->recorder != NULL; /* and never run */
    const int most_out = tiles ? 1 : TL_OUTS;
    const int most_in = op->traits & (TL_POINTWISE | TL_WIDENED | TL_ROWS) ? TL_TILE_MAX_IN : n_in;
    if (n_in < tiles || n_in > most_in || op->n_out < 0 || op->n_out > most_out)
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: has %d inputs and %d outputs; %d to %d and 0 to %d are "
                            "possible%s",
                            op->name, n_in, op->n_out, tiles, most_in, most_out,
                            tiles ? " of a pointwise op (others have a forward)" : "");
    if (op->traits & TL_MUTATES &&
        (op->mutates < 0 || op->mutates >= (n_in < 32 ? n_in : 32) || op->n_out == 0))
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: changes input %d of %d (of the first 32), and has %d outputs",
                            op->name, op->mutates, n_in, op->n_out);
    const char *odd = op->n_out == 0 && !noted ? "an op has an output" : oddity(op, n_in);
    if (odd != NULL)
        return tl_tape_fail(at, TL_EUSAGE, "%s: %s", op->name, odd);
    if (tiles ? op->tile == NULL && (op->slot <= 0 || op->slot >= TL_TILE_COUNT)
              : op->forward == NULL && !(op->traits & TL_VIEW) && !noted)
        return tl_tape_fail(at, TL_EUSAGE, "%s: has neither a forward nor a kernel%s", op->name,
                            tiles ? " for tiles, as a pointwise op" : "");
    if (op->attr_size > INT32_MAX ||
        (op->row_dims != 0 &&
         (op->attr_size < sizeof(int64_t) || op->row_dims > op->attr_size - sizeof(int64_t))))
        return tl_tape_fail(at, TL_EUSAGE,
                            "%s: an .attr_size of %zu bytes, and .row_dims at %zu of them",
                            op->name, op->attr_size, op->row_dims);
    for (const tl_attr *a = op->attr; a != NULL && a->name != NULL; a++) {
        const tl_shape *s = (const void *)((const char *)attrs + a->offset);
        if ((unsigned)a->kind > TL_ATTR_DIM || op->attr_size < attr_bytes[a->kind] ||
            a->offset > op->attr_size - attr_bytes[a->kind])
            return tl_tape_fail(at, TL_EUSAGE,
                                "%s: attribute %s is of no kind, or not in .attr_size, %zu bytes",
                                op->name, a->name, op->attr_size);
        if (a->kind == TL_ATTR_SHAPE && (s->ndim < 0 || s->ndim > TL_MAX_DIMS))
            return tl_tape_fail(at, TL_ESHAPE, "%s: %s of %d dims; 0 to %d are possible", op->name,
                                a->name, s->ndim, TL_MAX_DIMS);
    }
    return TL_OK;
}

unsigned tl_op_reads(const tl_op *op, unsigned wanted)
{
    return op->saves_for == NULL ? op->saves_in : op->saves_for(wanted);
}

bool tl_op_begins(const tl_op *op, const tl_array *a, const tl_storage *st)
{
    return op->traits & TL_BEGINS && tl_array_room(a) == st->bytes;
}

unsigned tl_saves_other(unsigned wanted) { return (wanted & 1 ? 2u : 0) | (wanted & 2 ? 1u : 0); }

/* ---- the library's ops ---- */

int tl_op_count(void)
{
    int n = 0;
    while (tl_ops_shipped[n] != NULL)
        n++;
    return n;
}

const tl_op *tl_op_at(int i) { return i >= 0 && i < tl_op_count() ? tl_ops_shipped[i] : NULL; }

const tl_op *tl_op_find(const char *name)
{
    for (int i = 0; name != NULL && tl_ops_shipped[i] != NULL; i++)
        if (strcmp(tl_ops_shipped[i]->name, name) == 0)
            return tl_ops_shipped[i];
    return NULL;
}
