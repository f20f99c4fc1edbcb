/* fast_amx.c: bf16 products by AMX tiles, where compiler, processor and system have them; see
 * fast_loops.h. Compiled for AMX whatever this machine is, so the processor is asked before the
 * first tile. */
#include "tests/bench/fast_loops.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The processor has tiles of bf16, and the system lets this process use them: Linux wants to be
 * asked. */
static bool have_amx(void)
{
    enum { TILES = 1u << 24, BF16 = 1u << 22, ASK = 0x1023, TILE_DATA = 18 };
    unsigned a, b, c, d;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && d & TILES && d & BF16 &&
           syscall(SYS_arch_prctl, ASK, TILE_DATA) == 0;
}

/* Tiles 0 to 3 hold 32 x 32 of c, 4 and 5 rows of a, 6 and 7 columns of b; each of 16 rows of 64
 * bytes. */
static void configure(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } all = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        all.bytes[i] = 64;
        all.rows[i] = 16;
    }
    _tile_loadconfig(&all);
}

/* 32 x 32 of c: a from its first row, strip from its first pair of rows. */
static void block(int64_t n, int64_t k, const uint16_t *a, const uint16_t *strip, float *c)
{
    size_t row = (size_t)k * sizeof *a, out = (size_t)n * sizeof *c;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t p = 0; p < k; p += 32, strip += 1024) {
        _tile_loadd(4, a + p, row);
        _tile_loadd(5, a + 16 * k + p, row);
        _tile_loadd(6, strip, 128);
        _tile_loadd(7, strip + 32, 128);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, c, out);
    _tile_stored(1, c + 16, out);
    _tile_stored(2, c + 16 * n, out);
    _tile_stored(3, c + 16 * n + 16, out);
}

int fast_amx_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c,
                    uint16_t *scratch)
{
    static int have = -1;
    if (have < 0)
        have = have_amx();
    if (!have || m % 32 != 0 || n % 32 != 0 || k % 32 != 0)
        return 0;
    fast_bf16_pack(n, k, b, scratch);
    configure();
    for (int64_t j = 0; j < n; j += 32)
        for (int64_t i = 0; i < m; i += 32)
            block(n, k, a + i * k, scratch + j * k, c + i * n + j);
    _tile_release();
    return 1;
}
#else
int fast_amx_matmul(int64_t m, int64_t n, int64_t k, const uint16_t *a, const uint16_t *b, float *c,
                    uint16_t *scratch)
{
    (void)m, (void)n, (void)k, (void)a, (void)b, (void)c, (void)scratch;
    return 0;
}
#endif
