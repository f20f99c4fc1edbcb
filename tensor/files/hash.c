/* hash.c: SHA-256 by libcrypto's EVP interface, and XXH3-128, fed with canonical bytes.
 *
 * If libcrypto fails it adds to its queue of errors. That is undone here, because the queue belongs
 * to the program, which may use libcrypto itself. */
#include "tensor/files/hash.h"

#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>
#define XXH_INLINE_ALL /* its functions become part of this file, so nothing is linked */
#include <xxhash.h>

#include "tensor/files/bytes.h"

static tl_status report(tl_status s, tl_err *err)
{
    if (s != TL_OK)
        tl_fail(err, s, "sha256: libcrypto could not hash (out of memory, or SHA-256 is disabled)");
    return s;
}

tl_status tl_sha256_begin(tl_sha256_ctx *ctx, tl_err *err)
{
    ERR_set_mark();
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    *ctx = (tl_sha256_ctx){.md = md, .status = TL_OK};
    if (md == NULL || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        ctx->status = TL_ENOMEM;
        tl_sha256_drop(ctx); /* a caller who gives up here has nothing to release */
    }
    ERR_pop_to_mark();
    return report(ctx->status, err);
}

void tl_sha256_feed(tl_sha256_ctx *ctx, const void *p, size_t n)
{
    if (ctx->status != TL_OK || n == 0)
        return;
    ERR_set_mark();
    if (EVP_DigestUpdate(ctx->md, p, n) != 1)
        ctx->status = TL_ENOMEM;
    ERR_pop_to_mark();
}

tl_status tl_sha256_block(void *ctx, const void *p, size_t n)
{
    tl_sha256_feed(ctx, p, n);
    return ((tl_sha256_ctx *)ctx)->status;
}

void tl_sha256_feed_u64(tl_sha256_ctx *ctx, uint64_t x)
{
    unsigned char b[8];
    tl_bytes_put64(b, x);
    tl_sha256_feed(ctx, b, sizeof b);
}

void tl_hash_string(tl_sha256_ctx *ctx, const char *s)
{
    size_t n = strlen(s);
    tl_sha256_feed_u64(ctx, n);
    tl_sha256_feed(ctx, s, n);
}

void tl_hash_array(tl_sha256_ctx *ctx, const tl_array *a)
{
    const char *name = tl_dtype_name(a->dtype);
    tl_sha256_feed(ctx, name, strlen(name));
    tl_sha256_feed_u64(ctx, (uint64_t)a->ndim);
    for (int i = 0; i < a->ndim; i++)
        tl_sha256_feed_u64(ctx, (uint64_t)a->dim[i]);
    (void)tl_array_bytes(a, tl_sha256_block, ctx); /* a failure sticks to ctx */
}

tl_status tl_sha256_finish(tl_sha256_ctx *ctx, unsigned char out[TL_SHA256_BYTES], tl_err *err)
{
    ERR_set_mark();
    if (ctx->status == TL_OK && EVP_DigestFinal_ex(ctx->md, out, NULL) != 1)
        ctx->status = TL_ENOMEM;
    ERR_pop_to_mark();
    if (ctx->status != TL_OK)
        memset(out, 0, TL_SHA256_BYTES);
    tl_sha256_drop(ctx);
    return report(ctx->status, err);
}

tl_status tl_sha256_finish_hex(tl_sha256_ctx *ctx, char out[TL_SHA256_HEX], tl_err *err)
{
    unsigned char raw[TL_SHA256_BYTES];
    out[0] = '\0';
    TL_TRY(tl_sha256_finish(ctx, raw, err));
    tl_hex(out, raw, sizeof raw);
    return TL_OK;
}

char *tl_hex(char *to, const unsigned char *bytes, size_t n)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < 2 * n; i++)
        to[i] = digits[i % 2 == 0 ? bytes[i / 2] >> 4 : bytes[i / 2] & 15];
    to[2 * n] = '\0';
    return to;
}

void tl_sha256_drop(tl_sha256_ctx *ctx)
{
    EVP_MD_CTX_free(ctx->md); /* NULL is fine */
    ctx->md = NULL;
}

/* ---- XXH3-128 ---- */

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
