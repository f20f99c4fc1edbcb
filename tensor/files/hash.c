/* hash.c: SHA-256 through libcrypto's EVP interface, fed with canonical bytes.
 *
 * What libcrypto notes of a failure in its queue of errors is taken back: the queue is the
 * program's, which may use libcrypto itself. */
#include "tensor/files/hash.h"

#include <string.h>

#include <openssl/err.h>
#include <openssl/evp.h>

#include "tensor/files/bytes.h"

static tl_status report(tl_status s, tl_err *err)
{
    return s == TL_OK
               ? s
               : tl_fail(
                     err, s,
                     "sha256: libcrypto could not hash (out of memory, or SHA-256 is disabled)");
}

tl_status tl_sha256_begin(tl_sha256_ctx *ctx, tl_err *err)
{
    ERR_set_mark();
    EVP_MD_CTX *md = EVP_MD_CTX_new();
    *ctx = (tl_sha256_ctx){.md = md, .status = TL_OK};
    if (md == NULL || EVP_DigestInit_ex(md, EVP_sha256(), NULL) != 1) {
        ctx->status = TL_ENOMEM;
        tl_sha256_drop(ctx); /* so that one who gives up here has nothing to release */
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

static tl_status feed_block(void *ctx, const void *bytes, size_t n)
{
    tl_sha256_feed(ctx, bytes, n);
    return ((tl_sha256_ctx *)ctx)->status;
}

void tl_hash_array(tl_sha256_ctx *ctx, const tl_array *a)
{
    const char *name = tl_dtype_name(a->dtype);
    tl_sha256_feed(ctx, name, strlen(name));
    tl_sha256_feed_u64(ctx, (uint64_t)a->ndim);
    for (int i = 0; i < a->ndim; i++)
        tl_sha256_feed_u64(ctx, (uint64_t)a->dim[i]);
    (void)tl_array_bytes(a, feed_block, ctx); /* a failure sticks to ctx */
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
    static const char digits[] = "0123456789abcdef";
    unsigned char raw[TL_SHA256_BYTES];
    out[0] = '\0';
    TL_TRY(tl_sha256_finish(ctx, raw, err));
    for (int i = 0; i < TL_SHA256_BYTES; i++) {
        out[2 * i] = digits[raw[i] >> 4];
        out[2 * i + 1] = digits[raw[i] & 15];
    }
    out[2 * TL_SHA256_BYTES] = '\0';
    return TL_OK;
}

void tl_sha256_drop(tl_sha256_ctx *ctx)
{
    EVP_MD_CTX_free(ctx->md); /* NULL is fine */
    ctx->md = NULL;
}
