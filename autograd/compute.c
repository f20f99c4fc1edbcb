/* compute.c: the loops that call an op's kernel, of pointwise ops and of ops by rows, and whole
 * operands converted to the compute type and back (tile by tile: tensor/convert.c).
 *
 * The loop of a pointwise op gathers a tile of each operand (widened, broadcast), calls the tile
 * kernel, and stores the result (rounded). Contiguous operands in a compute type are read as is. */
#include "autograd/pointwise.h"

#include <string.h>

#include "autograd/internal.h"
#include "tensor/isa.h"
#include "tensor/threads.h"

/* Checks for an op that is not pointwise what tl_op_check checks for those that are. */
static tl_status check_other(tl_call *c)
{
    bool fits = c->n_in > 0 && c->n_in <= TL_TILE_MAX_IN;
    for (int i = 0; fits && i < c->n_in; i++)
        fits = c->in[i] != NULL;
    return fits ? TL_OK
                : tl_call_fail(c, TL_EUSAGE,
                               "a pointwise loop over %d inputs; 1 to %d are possible, all there",
                               c->n_in, TL_TILE_MAX_IN);
}

tl_status tl_pointwise_shape(tl_call *c)
{
    if (!(c->op->traits & TL_POINTWISE))
        TL_TRY(check_other(c));
    tl_array both = *c->in[0];
    for (int i = 1; i < c->n_in; i++) {
        const tl_array *b = c->in[i];
        tl_shape s;
        tl_err e;
        if (both.dtype == b->dtype && tl_array_same_shape(&both, b))
            continue;
        tl_err_clear(&e);
        if (tl_shape_broadcast(&s, &both, b, &e) != TL_OK)
            return tl_call_fail(c, e.status, "%s", e.message);
        both.ndim = s.ndim;
        memcpy(both.dim, s.dim, sizeof s.dim);
        const bool floats = tl_dtype_is_float(both.dtype) && tl_dtype_is_float(b->dtype);
        if (both.dtype != b->dtype && (!floats || both.dtype == TL_F64 || b->dtype == TL_F64))
            return tl_call_fail(c, TL_EDTYPE, "%s and %s do not mix; cast one of them",
                                tl_dtype_name(both.dtype), tl_dtype_name(b->dtype));
        if (both.dtype != b->dtype)
            both.dtype = TL_F32; /* where f16, bf16 and f32 meet */
    }
    c->out[0] = both;
    return TL_OK;
}

typedef struct {
    const tl_call *c;
    tl_tile_fn *fn;
    tl_operand in[TL_TILE_MAX_IN], out;
    bool all_direct;
    tl_tiles tiles;
} loop;

tl_tiles tl_tiles_of(int n, size_t unit)
{
    size_t bytes = TL_TILES_BYTES / (size_t)(n > 0 ? n : 1) / 64 * 64;
    int64_t len = (int64_t)(bytes / unit);
    return (tl_tiles){len < TL_TILE_LEN ? len : TL_TILE_LEN, bytes};
}

static void run_range(void *ctx, int64_t begin, int64_t end, TL_UNUSED int thread)
{
    const loop *k = ctx;
    _Alignas(64) unsigned char buf[TL_TILES_BYTES];
    int64_t step = k->all_direct ? end - begin : k->tiles.len;
    for (int64_t at = begin; at < end; at += step) {
        tl_tile t = {.n = end - at < step ? end - at : step,
                     .dtype = k->in[k->c->n_in - 1].tile,
                     .attrs = k->c->attrs};
        unsigned char *tile = buf;
        for (int i = 0; i < k->c->n_in; i++) {
            const tl_operand *o = &k->in[i];
            if (o->direct) {
                t.in[i] = (const char *)o->a.data + at * (int64_t)tl_dtype_size(o->tile);
            } else {
                if (at == begin || !o->constant)
                    tl_operand_move(o, at, t.n, tile, false);
                t.in[i] = tile;
                tile += k->tiles.bytes;
            }
        }
        t.out = k->out.direct ? (char *)k->out.a.data + at * (int64_t)tl_dtype_size(k->out.tile)
                              : (void *)tile;
        k->fn(&t);
        if (!k->out.direct)
            tl_operand_move(&k->out, at, t.n, t.out, true);
    }
}

/* The dtype of all floating tiles: the widest compute type among the inputs. */
static tl_dtype meeting_type(const tl_call *c)
{
    tl_dtype d = TL_F32;
    for (int i = 0; i < c->n_in; i++)
        if (c->in[i]->dtype == TL_F64)
            d = TL_F64;
    return d;
}

/* Sets up operand a for the loop of c, to whose output it broadcasts. Most operands are row-major
 * and have the output's shape and the tile's dtype: these need no further look. */
static void set_operand(tl_operand *o, const tl_call *c, const tl_array *a, tl_dtype tile)
{
    const tl_array *out = &c->out[0];
    if (c->plain && a->dtype == tile && tl_array_same_shape(a, out)) {
        o->a.data = a->data;
        o->direct = true;
        o->tile = tile;
        return;
    }
    const tl_shape s = tl_array_shape(out);
    const tl_array full = tl_array_expand(a, &s);
    *o = tl_operand_of(&full, tile);
}

tl_status tl_pointwise_run(tl_call *c)
{
    loop k;
    if (!(c->op->traits & TL_POINTWISE))
        TL_TRY(c->op->tile != NULL || (c->op->slot > 0 && c->op->slot < TL_TILE_COUNT)
                   ? check_other(c)
                   : tl_call_fail(c, TL_EUSAGE, "has no .tile for its loop"));
    k.c = c;
    k.fn = c->kernel != NULL && c->kernel->tile != NULL ? c->kernel->tile
           : c->op->tile != NULL                        ? c->op->tile
                                                        : tl_isa_now()->tile[c->op->slot];
    const tl_array *out = &c->out[0];
    const tl_dtype meet = meeting_type(c);
    set_operand(&k.out, c, out,
                c->op->traits & TL_STORES ? out->dtype : tl_dtype_compute(out->dtype));
    int tiles = !k.out.direct;
    for (int i = 0; i < c->n_in; i++) {
        const tl_dtype d = c->in[i]->dtype;
        set_operand(&k.in[i], c, c->in[i], tl_dtype_is_float(d) ? meet : d);
        tiles += !k.in[i].direct;
    }
    k.all_direct = tiles == 0;
    size_t unit = tl_dtype_size(k.out.tile);
    for (int i = 0; i < c->n_in && tiles > 0; i++) {
        const size_t size = tl_dtype_size(k.in[i].tile);
        unit = size > unit ? size : unit;
    }
    k.tiles = tl_tiles_of(tiles, unit);
    int64_t grain = c->op->traits & TL_HEAVY ? 4096 : 16384;
    tl_parallel_for(tl_array_count(out), grain, run_range, &k);
    return TL_OK;
}

/* ---- whole operands ---- */

void *tl_scratch(tl_call *c, size_t bytes, bool zeroed)
{
    tl_storage *st = c->scratch == NULL ? NULL : tl_storage_new(c->arena, bytes, zeroed);
    if (c->scratch == NULL)
        tl_call_fail(c, TL_EUSAGE, "scratch is for calls that the engine runs, and copies of them");
    else if (st == NULL)
        tl_call_fail(c, TL_ENOMEM, "no memory for %zu bytes of scratch", bytes);
    if (st == NULL)
        return NULL;
    st->next_free = *c->scratch;
    *c->scratch = st;
    return st->data;
}

tl_status tl_scratch_array(tl_call *c, tl_array *a, bool zeroed)
{
    tl_array_set_contiguous(a);
    a->data = tl_scratch(c, tl_array_room(a), zeroed);
    return a->data == NULL ? TL_ENOMEM : TL_OK;
}

/* *out: a itself if it fits, else room for it, row-major in its compute type. */
static tl_status room_for(tl_call *c, const tl_array *a, tl_array *out)
{
    *out = *a;
    if (tl_array_plain(a, c->op->traits & TL_ROWS))
        return TL_OK;
    out->dtype = tl_dtype_compute(a->dtype);
    return tl_scratch_array(c, out, false);
}

tl_status tl_out_compute(tl_call *c, int i, tl_array *out) { return room_for(c, &c->out[i], out); }

tl_status tl_as_compute(tl_call *c, const tl_array *a, tl_array *out)
{
    TL_TRY(room_for(c, a, out));
    if (out->data != a->data)
        tl_operand_copy(a, out->dtype, out->data, false);
    return TL_OK;
}

void tl_store_compute(tl_call *c, int i, const tl_array *out)
{
    if (out->data != c->out[i].data)
        tl_operand_copy(&c->out[i], out->dtype, out->data, true);
}

tl_status tl_widened_run(tl_call *c)
{
    const bool changes = c->op->traits & TL_MUTATES && c->in[c->op->mutates] != NULL;
    const tl_array *in[TL_ROWS_MOST];
    tl_array wide[TL_ROWS_MOST], out[TL_OUTS];
    for (int i = 0; i < c->n_in; i++) {
        in[i] = c->in[i] == NULL ? NULL : &wide[i];
        if (in[i] != NULL)
            TL_TRY(tl_as_compute(c, c->in[i], &wide[i]));
    }
    for (int i = 0; i < c->n_out; i++)
        if (i == 0 && changes)
            out[0] = wide[c->op->mutates];
        else
            TL_TRY(tl_out_compute(c, i, &out[i]));
    tl_call k = *c;
    k.in = in;
    k.out = out;
    TL_TRY((c->kernel != NULL ? c->kernel->run : c->op->forward)(&k));
    for (int i = 0; i < c->n_out; i++)
        tl_store_compute(c, i, &out[i]);
    return TL_OK;
}

/* ---- ops by rows ---- */

int64_t tl_row_dims(const tl_call *c)
{
    const size_t at = c->op->row_dims;
    return at == 0 ? 1 : *(const int64_t *)(const void *)((const char *)c->attrs + at);
}

/* The loop of an op by rows, once its operands are row-major and in the compute type. */
tl_status tl_rows_run(tl_call *c)
{
    const tl_array *x = c->in[0];
    const tl_row_table *k = tl_isa_now()->row;
    const int64_t first = x->ndim - tl_row_dims(c);
    tl_rows j = {.n = 1, .rows = 1, .attrs = c->attrs};
    for (int i = 0; i < x->ndim; i++)
        *(i < first ? &j.rows : &j.n) *= x->dim[i];
    for (int i = 0; i < c->n_in; i++)
        j.in[i] = c->in[i] == NULL ? NULL : c->in[i]->data;
    for (int i = 0; i < c->n_out; i++)
        j.out[i] = c->out[i].data;
    tl_parallel_for(j.rows, 1 + 8192 / (j.n + 1),
                    (x->dtype == TL_F64 ? k->rows64 : k->rows32)[c->op->slot], &j);
    return TL_OK;
}
