/* gemm_rows.t.h: tiles of GEMM_VECS vectors and 1..GEMM_ROWS rows, chosen at run time.
 *
 * Parameters: G(name), GEMM_VECS, GEMM_ROWS, GEMM_UNIT (A's rows adjacent, as in a
 * packed panel), GEMM_WHOLE (the last vector is full), R(name).
 */
static __attribute__((noinline)) void R(rows)(int64_t rows, const G(tile) *t)
{
    switch (rows) {
    case 1: G(tile_body)(1, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#if GEMM_ROWS >= 2
    case 2: G(tile_body)(2, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#endif
#if GEMM_ROWS >= 3
    case 3: G(tile_body)(3, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#endif
#if GEMM_ROWS >= 4
    case 4: G(tile_body)(4, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#endif
#if GEMM_ROWS >= 6
    case 5: G(tile_body)(5, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 6: G(tile_body)(6, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#endif
#if GEMM_ROWS >= 14
    case 7: G(tile_body)(7, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 8: G(tile_body)(8, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 9: G(tile_body)(9, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 10: G(tile_body)(10, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 11: G(tile_body)(11, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 12: G(tile_body)(12, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 13: G(tile_body)(13, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
    case 14: G(tile_body)(14, GEMM_VECS, GEMM_UNIT, GEMM_WHOLE, t); break;
#endif
    default: break;
    }
}
