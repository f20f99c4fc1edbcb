/* fingerprint.c: XXH3-128 by xxhash.h, whose functions become part of this file: nothing is linked.
 */
#define XXH_INLINE_ALL
#include <xxhash.h>

#include "tensor/files/bytes.h"
#include "tensor/files/fingerprint.h"

struct tl_fingerprint {
    XXH3_state_t state;
};

enum { ALIGNED = _Alignof(tl_fingerprint) };
_Static_assert(sizeof(tl_fingerprint) + ALIGNED - 1 <= TL_FINGERPRINT_ROOM,
               "its room is too small");

static tl_fingerprint *begin(tl_fingerprint *f)
{
    XXH3_INITSTATE(&f->state);
    XXH3_128bits_reset(&f->state);
    return f;
}

tl_fingerprint *tl_fingerprint_begin(void *room)
{
    unsigned char *p = room;
    p += (ALIGNED - (uintptr_t)p % ALIGNED) % ALIGNED;
    return begin((tl_fingerprint *)(void *)p);
}

void tl_fingerprint_feed(tl_fingerprint *f, const void *p, size_t n)
{
    XXH3_128bits_update(&f->state, p, n);
}

void tl_fingerprint_so_far(const tl_fingerprint *f, unsigned char out[TL_FINGERPRINT_BYTES])
{
    XXH128_canonical_t c;
    XXH128_canonicalFromHash(&c, XXH3_128bits_digest(&f->state));
    memcpy(out, c.digest, sizeof c.digest);
}

static tl_status feed_both(void *ctx, const void *bytes, size_t n)
{
    tl_fingerprint **f = ctx;
    for (int i = 0; i < 2; i++)
        if (f[i] != NULL)
            tl_fingerprint_feed(f[i], bytes, n);
    return TL_OK;
}

void tl_fingerprint_feed_array(tl_fingerprint *f, const tl_array *a,
                               unsigned char part[TL_FINGERPRINT_BYTES])
{
    tl_fingerprint alone, *both[2] = {f, part == NULL ? NULL : begin(&alone)};
    tl_array_bytes(a, feed_both, both);
    if (part != NULL)
        tl_fingerprint_so_far(both[1], part);
}
