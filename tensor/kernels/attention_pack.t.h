/* attention_pack.t.h: keys and values into panels, rows into padded copies.
 *
 * Parameters: A(name) with attention_vec.t.h. A panel holds PANEL consecutive keys,
 * transposed: panel[d * PANEL + key]; the last key's vector ends in zeros, and no vector
 * follows. Nothing is computed here.
 */
enum { A(PANEL) = 2 * LANES };

/* LANES vectors as a square matrix, transposed: log2(LANES) perfect shuffles of its rows. */
static inline void A(transpose)(A(vec) x[LANES])
{
    ATTN_UNROLL for (int step = 1; step < LANES; step *= 2)
    {
        A(vec) y[LANES];
        ATTN_UNROLL for (int i = 0; i < LANES / 2; i++)
        {
            y[2 * i] = A(zip_lo)(x[i], x[i + LANES / 2]);
            y[2 * i + 1] = A(zip_hi)(x[i], x[i + LANES / 2]);
        }
        ATTN_UNROLL for (int i = 0; i < LANES; i++) x[i] = y[i];
    }
}

/* LANES keys (those from `keys` on are zeros), columns d to d + n. */
static inline void A(pack_square)(const A(elem) * src, int64_t stride, int64_t keys, int64_t n,
                                  A(elem) * dst)
{
    A(vec) x[LANES];
    if (keys >= LANES && n >= LANES) {
        ATTN_UNROLL for (int i = 0; i < LANES; i++) x[i] = A(load)(src + i * stride);
    } else {
        for (int i = 0; i < LANES; i++)
            x[i] = i < keys ? A(load_n)(src + i * stride, n < LANES ? n : LANES) : A(spread)(0);
    }
    A(transpose)(x);
    if (n >= LANES) {
        ATTN_UNROLL for (int i = 0; i < LANES; i++) A(store)(dst + i * A(PANEL), x[i]);
    } else {
        for (int i = 0; i < n; i++)
            A(store)(dst + i * A(PANEL), x[i]);
    }
}

/* Panels of the first n keys. dst: n rounded up to PANEL times dim elements. */
static void A(pack_panels)(const A(elem) * src, int64_t stride, int64_t n, int64_t dim,
                           A(elem) * dst)
{
    for (int64_t j = 0; j < n; j += A(PANEL), dst += A(PANEL) * dim)
        for (int64_t half = 0; half < A(PANEL) && j + half < n; half += LANES)
            for (int64_t d = 0; d < dim; d += LANES)
                A(pack_square)
    (src + (j + half) * stride + d, stride, n - j - half, dim - d, dst + d * A(PANEL) + half);
}

static inline int64_t A(round_up)(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

/* n rows whose length is a whole number of vectors: themselves, or a copy with zeros after. */
static const A(elem) *
    A(pad_rows)(const A(elem) * src, int64_t *stride, int64_t n, int64_t dim, A(elem) * copy)
{
    const int64_t wide = A(round_up)(dim, LANES), from = *stride;
    if (wide == dim)
        return src;
    for (int64_t j = 0; j < n; j++) {
        memcpy(copy + j * wide, src + j * from, (size_t)dim * sizeof *copy);
        memset(copy + j * wide + dim, 0, (size_t)(wide - dim) * sizeof *copy);
    }
    *stride = wide;
    return copy;
}
