/* attention_rows.t.h: turns the scores of a tile of rows into probabilities, and gradients of
 * probabilities into gradients of scores.
 *
 * Parameters: A(name) with attention_vec.t.h. Row r of a tile has ld elements, a multiple of 16.
 * The first n[r] belong to allowed keys. What is computed for the others is never used: -inf before
 * exp makes them +0 (or NaN, if the row is NaN anyway), and adding +0 to a lane, which starts at
 * +0, changes nothing.
 */
enum { A(PARTS) = 32 / LANES };

/* A vector of x, or of the products x * y. */
static inline A(vec) A(term)(const A(elem) * x, const A(elem) * y, int64_t j)
{
    return y ? A(load)(x + j) * A(load)(y + j) : A(load)(x + j);
}

/* NUMERICS 3.1: the lanes meet by halves; in a copy, since gcc would keep `part` in memory. */
static inline A(elem) A(meet_all)(const A(vec) part[A(PARTS)])
{
    A(vec) x[A(PARTS)];
    VEC_UNROLL for (int i = 0; i < A(PARTS); i++) x[i] = part[i];
    VEC_UNROLL for (int w = A(PARTS) / 2; w > 0; w /= 2) VEC_UNROLL for (int i = 0; i < w; i++)
        x[i] += x[i + w];
    return A(meet)(x[0], false) + 0;
}

/* The sum by lanes of the first n of x, or of x * y. It adds whole vectors, so the
 * elements that follow the n must be +0. */
static inline __attribute__((always_inline)) A(elem)
    A(lanes)(const A(elem) * x, const A(elem) * y, int64_t n)
{
    A(vec) lane[A(PARTS)] = {0};
    int64_t j = 0;
    for (; j + 32 <= n; j += 32)
        VEC_UNROLL for (int i = 0; i < A(PARTS); i++) lane[i] += A(term)(x, y, j + i * LANES);
    VEC_UNROLL for (int i = 0; i < A(PARTS); i++) if (j + i * LANES < n)
        lane[i] += A(term)(x, y, j + i * LANES);
    return A(meet_all)(lane);
}

/* Sets the elements from n to ld to `fill`. */
static inline void A(fill_from)(A(elem) * row, int64_t n, int64_t ld, A(vec) fill)
{
    int64_t j = n / LANES * LANES;
    if (j < n) {
        A(store)(row + j, A(first)(A(load)(row + j), n - j, fill));
        j += LANES;
    }
    for (; j < ld; j += LANES)
        A(store)(row + j, fill);
}

/* s becomes s - m. A NaN that the maximum misses stays in s and makes the row's sum NaN. */
static inline void A(less_max)(A(elem) * s, int64_t n, int64_t ld)
{
    A(vec) m = A(spread)(-(A(elem))INFINITY);
    A(fill_from)(s, n, ld, m);
    for (int64_t j = 0; j < n; j += LANES)
        m = A(max)(m, A(load)(s + j));
    m = A(spread)(A(meet)(m, true));
    for (int64_t j = 0; j < ld; j += LANES)
        A(store)(s + j, A(load)(s + j) - m);
}

/* e becomes p. */
static inline void A(normalize)(A(elem) * e, int64_t n)
{
    const A(vec) r = A(spread)(1 / A(lanes)(e, NULL, n));
    for (int64_t j = 0; j < n; j += LANES)
        A(store)(e + j, A(load)(e + j) * r);
}

static void A(softmax)(const A(tile) * t, A(elem) * s)
{
    for (int64_t r = 0; r < t->rows; r++)
        A(less_max)(s + r * t->ld, t->n[r], t->ld);
    ATTN_EXP(t->rows * t->ld, s, s);
    for (int64_t r = 0; r < t->rows; r++)
        A(normalize)(s + r * t->ld, t->n[r]);
}

/* dp becomes t = (p * (dp - D)) * scale, D = lanes of p * dp. */
static void A(softmax_grad)(const A(tile) * t, const A(elem) * p, A(elem) * dp, A(elem) scale)
{
    const A(vec) zero = A(spread)(0), by = A(spread)(scale);
    for (int64_t r = 0; r < t->rows; r++, p += t->ld, dp += t->ld) {
        const int64_t n = t->n[r];
        A(fill_from)(dp, n, n, zero);
        const A(vec) sum = A(spread)(A(lanes)(p, dp, n));
        for (int64_t j = 0; j < n; j += LANES)
            A(store)(dp + j, (A(load)(p + j) * (A(load)(dp + j) - sum)) * by);
    }
}
