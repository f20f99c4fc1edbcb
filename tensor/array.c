/* array.c: dtypes, shapes and strides, broadcasting, views, access to elements, arrays with memory
 * of their own. */
#include "tensor/array.h"

#include <stdio.h>
#include <string.h>

#include "tensor/storage.h"
#include "tensor/kernels/half.h"
#include "tensor/operands.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} dtypes[] = {{"DEFAULT", 0, false},
#define X(id, text, bytes, is_float) {text, bytes, is_float},
              TL_DTYPE_LIST(X)
#undef X
};

const char *tl_dtype_name(tl_dtype d)
{
    return (unsigned)d < TL_DTYPE_COUNT ? dtypes[d].name : "?";
}
size_t tl_dtype_size(tl_dtype d) { return (unsigned)d < TL_DTYPE_COUNT ? dtypes[d].size : 0; }
bool tl_dtype_is_float(tl_dtype d) { return (unsigned)d < TL_DTYPE_COUNT && dtypes[d].is_float; }

tl_dtype tl_dtype_compute(tl_dtype d) { return d == TL_F16 || d == TL_BF16 ? TL_F32 : d; }

tl_status tl_shape_check(const tl_shape *s, tl_dtype d, tl_err *err)
{
    size_t bytes;
    tl_array a;
    return tl_shape_lay(s, d, &a, &bytes, err);
}

static int ndim_of(const tl_shape *s)
{
    return s->ndim < 0 ? 0 : s->ndim > TL_MAX_DIMS ? TL_MAX_DIMS : s->ndim;
}

/* INT64_MAX on overflow, as the sizes may not have been checked. */
static int64_t times(int64_t a, int64_t b)
{
    return __builtin_mul_overflow(a, b, &a) ? INT64_MAX : a;
}

tl_array tl_array_make(tl_dtype d, const tl_shape *s, void *data)
{
    tl_array a = {.dtype = d, .ndim = ndim_of(s), .data = data};
    for (int i = 0; i < a.ndim; i++)
        a.dim[i] = s->dim[i];
    tl_array_set_contiguous(&a);
    return a;
}

tl_shape tl_array_shape(const tl_array *a)
{
    tl_shape s = {.ndim = a->ndim}; /* not checked yet, so it may be out of range */
    /* Not by memcpy: a wide load would have to wait for dims that were just written one by one. */
    for (int i = 0; i < TL_MAX_DIMS && i < a->ndim; i++)
        s.dim[i] = a->dim[i];
    return s;
}

/* The bytes of a, from its first element on: *low .. *high - 1. False if there are too many. */
static bool reach(const tl_array *a, int64_t *low, int64_t *high)
{
    const int64_t size = (int64_t)dtypes[a->dtype].size, most = INT64_MAX / 4;
    bool fits = true, empty = false;
    *low = 0;
    *high = size;
    for (int i = 0; i < a->ndim; i++) {
        int64_t way;
        empty |= a->dim[i] == 0;
        fits &= !__builtin_mul_overflow(a->dim[i] - 1, a->stride[i], &way) &&
                !__builtin_mul_overflow(way, size, &way) && way <= most && way >= -most;
        if (fits)
            *(way < 0 ? low : high) += way;
        fits &= *low >= -most && *high <= most;
    }
    if (empty)
        *low = *high = 0;
    return fits || empty;
}

tl_status tl_view_check(tl_array *a, const tl_array *of, bool once, tl_err *err)
{
    bool fits = a->ndim >= 0 && a->ndim <= TL_MAX_DIMS;
    a->dtype = of->dtype;
    for (int i = 0; fits && i < a->ndim; i++)
        fits = a->dim[i] >= 0;
    const tl_shape s = fits ? TL_SCALAR : tl_array_shape(a);
    if (!fits)
        return tl_shape_check(&s, a->dtype, err);
    int64_t low, high, from, to;
    const int64_t apart = (char *)a->data - (char *)of->data;
    if (once && tl_array_repeats(a) && !tl_array_repeats(of))
        return tl_fail(err, TL_EUSAGE, "shows elements more than once, but is not TL_REPEATS");
    if (of->data == NULL || !reach(of, &from, &to))
        return TL_OK;
    if (reach(a, &low, &high) && (low == high || (apart >= from - low && apart <= to - high)))
        return TL_OK;
    return tl_fail(err, TL_EUSAGE, "shows %s elements that do not lie in its input", TL_TEXT(a));
}

static int64_t step_of(const tl_array *a, int i)
{
    return a->stride[i] < 0 ? -a->stride[i] : a->stride[i];
}

bool tl_array_repeats(const tl_array *a)
{
    bool repeats = false;
    for (int i = 0; i < a->ndim; i++) {
        int64_t below = 0; /* how far the dims with smaller steps reach */
        if (a->dim[i] == 0)
            return false;
        for (int k = 0; k < a->ndim; k++)
            if (k != i &&
                (step_of(a, k) < step_of(a, i) || (step_of(a, k) == step_of(a, i) && k < i)))
                below += (a->dim[k] - 1) * step_of(a, k);
        repeats |= a->dim[i] > 1 && step_of(a, i) <= below;
    }
    return repeats;
}

bool tl_array_laid_alike(const tl_array *a, const tl_array *b)
{
    if (a->dtype != b->dtype || !tl_array_same_shape(a, b))
        return false;
    for (int i = 0; i < a->ndim; i++)
        if (a->dim[i] != 1 && a->stride[i] != b->stride[i])
            return false;
    return true;
}

int64_t tl_shape_count(const tl_shape *s)
{
    int64_t n = 1;
    for (int i = 0; i < ndim_of(s); i++)
        n = times(n, s->dim[i]);
    return n;
}

int64_t tl_array_count(const tl_array *a)
{
    int64_t n = 1;
    for (int i = 0; i < a->ndim; i++)
        n *= a->dim[i];
    return n;
}

bool tl_arrays_empty(const tl_array *a, int n)
{
    while (n > 0 && tl_array_count(&a[n - 1]) == 0)
        n--;
    return n == 0;
}

size_t tl_array_room(const tl_array *a)
{
    return (size_t)tl_array_count(a) * tl_dtype_size(a->dtype);
}

bool tl_array_plain(const tl_array *a, bool rows)
{
    const int last = a->ndim - 1;
    if (a->dtype == TL_F16 || a->dtype == TL_BF16)
        return false;
    return rows ? last < 0 || a->stride[last] == 1 || a->dim[last] == 1 : tl_array_contiguous(a);
}

tl_array tl_part_of(const tl_array *a, int dim, int64_t start, int64_t step, int64_t n)
{
    tl_array part = *a;
    if (part.data != NULL)
        part.data = (char *)part.data + start * a->stride[dim] * (int64_t)tl_dtype_size(a->dtype);
    part.stride[dim] *= step;
    part.dim[dim] = n;
    return part;
}

static bool dims_equal(int na, const int64_t *a, int nb, const int64_t *b)
{
    if (na != nb)
        return false;
    for (int i = 0; i < na && i < TL_MAX_DIMS; i++)
        if (a[i] != b[i])
            return false;
    return true;
}

bool tl_array_same_shape(const tl_array *a, const tl_array *b)
{
    return dims_equal(a->ndim, a->dim, b->ndim, b->dim);
}

bool tl_shape_equal(const tl_shape *a, const tl_shape *b)
{
    return dims_equal(a->ndim, a->dim, b->ndim, b->dim);
}

void tl_array_set_contiguous(tl_array *a)
{
    int64_t step = 1;
    for (int i = a->ndim - 1; i >= 0; i--) {
        a->stride[i] = step;
        step = a->dim[i] > 1 ? times(step, a->dim[i]) : step;
    }
}

bool tl_array_contiguous(const tl_array *a)
{
    int64_t step = 1;
    bool gaps = false;
    for (int i = a->ndim - 1; i >= 0; i--) {
        gaps |= a->dim[i] != 1 && a->stride[i] != step;
        step *= a->dim[i];
    }
    return !gaps || step == 0; /* an array without elements has no gaps */
}

void *tl_array_at(const tl_array *a, int64_t flat)
{
    int64_t off = 0;
    for (int i = a->ndim - 1; i >= 0 && a->dim[i] > 0; i--) {
        off += flat % a->dim[i] * a->stride[i];
        flat /= a->dim[i];
    }
    return (char *)a->data + off * (int64_t)dtypes[a->dtype].size;
}

char *tl_shape_text(char *buf, const tl_shape *s)
{
    size_t at = 0;
    buf[at++] = '[';
    for (int i = 0; i < ndim_of(s); i++)
        at += (size_t)snprintf(buf + at, TL_SHAPE_TEXT - at, i ? ", %lld" : "%lld",
                               (long long)s->dim[i]);
    buf[at++] = ']';
    buf[at] = '\0';
    return buf;
}

char *tl_array_shape_text(char *buf, const tl_array *a)
{
    tl_shape s = tl_array_shape(a);
    return tl_shape_text(buf, &s);
}

tl_status tl_shape_broadcast(tl_shape *out, const tl_array *a, const tl_array *b, tl_err *err)
{
    int nd = a->ndim > b->ndim ? a->ndim : b->ndim;
    out->ndim = nd;
    for (int i = 0; i < nd; i++) {
        int ia = i - (nd - a->ndim), ib = i - (nd - b->ndim);
        int64_t da = ia < 0 ? 1 : a->dim[ia], db = ib < 0 ? 1 : b->dim[ib];
        if (da != db && da != 1 && db != 1)
            return tl_fail(err, TL_ESHAPE, "%s and %s do not broadcast: sizes %lld and %lld meet",
                           TL_TEXT(a), TL_TEXT(b), (long long)da, (long long)db);
        out->dim[i] = da == 1 ? db : da;
    }
    return TL_OK;
}

bool tl_dims_expand(int n, const int64_t *dim, int m, const int64_t *to)
{
    for (int i = 0; i < n && n <= m; i++)
        if (dim[i] != 1 && dim[i] != to[i + m - n])
            return false;
    return n <= m;
}

tl_array tl_array_expand(const tl_array *a, const tl_shape *s)
{
    tl_array out = *a;
    int lead = s->ndim - a->ndim;
    out.ndim = s->ndim;
    for (int i = 0; i < s->ndim; i++) {
        out.dim[i] = s->dim[i];
        out.stride[i] = i < lead || (a->dim[i - lead] == 1) ? 0 : a->stride[i - lead];
    }
    return out;
}

static bool mergeable(const tl_array *arrays, int n, int outer, int inner)
{
    for (int k = 0; k < n; k++)
        if (arrays[k].stride[outer] != arrays[k].stride[inner] * arrays[k].dim[inner])
            return false;
    return true;
}

void tl_array_collapse(tl_array *arrays, int n)
{
    int nd = arrays[0].ndim, w = 0;
    for (int i = 0; i < nd; i++) {
        if (arrays[0].dim[i] == 1)
            continue;
        for (int k = 0; k < n; k++) {
            arrays[k].dim[w] = arrays[k].dim[i];
            arrays[k].stride[w] = arrays[k].stride[i];
        }
        if (w > 0 && mergeable(arrays, n, w - 1, w)) {
            for (int k = 0; k < n; k++) {
                arrays[k].dim[w - 1] *= arrays[k].dim[w];
                arrays[k].stride[w - 1] = arrays[k].stride[w];
            }
        } else {
            w++;
        }
    }
    for (int k = 0; k < n; k++)
        arrays[k].ndim = w;
}

bool tl_array_reshape_view(const tl_array *a, const tl_shape *s, tl_array *out)
{
    tl_array flat = *a, view = {.dtype = a->dtype, .ndim = s->ndim, .data = a->data};
    memcpy(view.dim, s->dim, sizeof view.dim);
    if (tl_array_count(a) == 0) {
        tl_array_set_contiguous(&view);
        *out = view;
        return true;
    }
    tl_array_collapse(&flat, 1);
    /* Walk both shapes from the last dim; each collapsed run must split exactly. */
    int run = flat.ndim - 1;
    int64_t left = run >= 0 ? flat.dim[run] : 1, step = run >= 0 ? flat.stride[run] : 1;
    for (int i = s->ndim - 1; i >= 0; i--) {
        if (view.dim[i] == 1) {
            view.stride[i] = step;
            continue;
        }
        if (left == 1 && run > 0) {
            run--;
            left = flat.dim[run];
            step = flat.stride[run];
        }
        if (left % view.dim[i] != 0)
            return false;
        view.stride[i] = step;
        step *= view.dim[i];
        left /= view.dim[i];
    }
    *out = view;
    return true;
}

/* These two are not inlined, so that no conversion can move out of the floating-point environment
 * of tl_array_get and tl_array_put. */
__attribute__((noinline)) double tl_element_get(tl_dtype d, const void *p)
{
    switch (d) {
    case TL_F64: return *(const double *)p;
    case TL_F32: return (double)*(const float *)p;
    case TL_F16: return (double)tl_f16_to_f32(*(const uint16_t *)p);
    case TL_BF16: return (double)tl_bf16_to_f32(*(const uint16_t *)p);
    case TL_I64: return (double)*(const int64_t *)p;
    default: return (double)*(const unsigned char *)p;
    }
}

__attribute__((noinline)) void tl_element_put(tl_dtype d, void *p, double x)
{
    switch (d) {
    case TL_F64: *(double *)p = x; break;
    case TL_F32: *(float *)p = (float)x; break;
    case TL_F16: *(uint16_t *)p = tl_f64_to_f16(x); break;
    case TL_BF16: *(uint16_t *)p = tl_f64_to_bf16(x); break;
    case TL_I64: *(int64_t *)p = tl_f64_to_i64(x); break;
    default: *(unsigned char *)p = x != 0; break;
    }
}

void tl_element_put_i64(tl_dtype d, void *p, int64_t x)
{
    if (d == TL_I64)
        *(int64_t *)p = x;
    else if (d == TL_F64 || d == TL_F32)
        tl_element_put(d, p, d == TL_F64 ? (double)x : (double)(float)x);
    else
        tl_element_put(d, p, tl_i64_to_f64_odd(x));
}

double tl_array_get(const tl_array *a, int64_t flat)
{
    const tl_fpenv saved = tl_fpenv_enter();
    const double x = tl_element_get(a->dtype, tl_array_at(a, flat));
    tl_fpenv_leave(saved);
    return x;
}

void tl_array_put(const tl_array *a, int64_t flat, double x)
{
    const tl_fpenv saved = tl_fpenv_enter();
    tl_element_put(a->dtype, tl_array_at(a, flat), x);
    tl_fpenv_leave(saved);
}

/* ---- arrays with memory of their own ---- */

/* Checks the dtype and dims of an array without memory, sets *bytes to what it needs and, unless
 * they are set already (`strided`), its strides. */
static tl_status lay(tl_array *a, bool strided, size_t *bytes, tl_err *err)
{
    const tl_dtype d = a->dtype;
    if (d == TL_DTYPE_DEFAULT)
        return tl_fail(err, TL_EDTYPE, "no dtype is given (TL_F64, TL_F32, ...)");
    if ((unsigned)d >= TL_DTYPE_COUNT)
        return tl_fail(err, TL_EDTYPE, "%d is not a dtype", (int)d);
    if (a->ndim < 0 || a->ndim > TL_MAX_DIMS)
        return tl_fail(err, TL_ESHAPE, "%d dims given; 0 to %d are possible", a->ndim, TL_MAX_DIMS);
    /* A size of 0 excuses no overflow of the others, since strides use them. */
    const int64_t size = (int64_t)dtypes[d].size;
    int64_t span = size;
    bool empty = false;
    for (int i = a->ndim - 1; i >= 0; i--) {
        const int64_t m = a->dim[i];
        if (m < 0)
            return tl_fail(err, TL_ESHAPE, "dim %d has size %lld; sizes are 0 or more", i,
                           (long long)m);
        if (m > 1 && span > INT64_MAX / m)
            return tl_fail(err, TL_ESHAPE, "%s of %s is more bytes than a 64-bit size can count",
                           TL_TEXT(a), dtypes[d].name);
        if (!strided)
            a->stride[i] = span / size;
        span *= m > 1 ? m : 1;
        empty |= m == 0;
    }
    a->data = NULL;
    *bytes = empty ? 0 : (size_t)span;
    int64_t low, high;
    if (strided && (!reach(a, &low, &high) || low < 0 || (size_t)high > *bytes))
        return tl_fail(err, TL_EUSAGE, "strides that leave the %zu bytes of an output", *bytes);
    return TL_OK;
}

tl_status tl_shape_lay(const tl_shape *s, tl_dtype d, tl_array *a, size_t *bytes, tl_err *err)
{
    *a = (tl_array){.dtype = d, .ndim = s->ndim};
    memcpy(a->dim, s->dim, sizeof a->dim);
    return lay(a, false, bytes, err);
}

tl_status tl_arrays_new(tl_arena *arena, tl_array *a, int n, bool strided, tl_storage **st,
                        tl_err *err)
{
    for (int i = 0; i < n; i++) {
        size_t bytes = 0;
        st[i] = NULL;
        tl_status s = lay(&a[i], strided, &bytes, err);
        if (s == TL_OK && arena != NULL && (st[i] = tl_storage_new(arena, bytes, false)) == NULL)
            s = tl_storage_lack(bytes, err);
        for (; s != TL_OK && i > 0; i--)
            tl_storage_release(st[i - 1]);
        if (s != TL_OK)
            return s;
        a[i].data = st[i] == NULL ? NULL : st[i]->data;
    }
    return TL_OK;
}
