/* hash.h: SHA-256 (libcrypto's) and XXH3-128 of bytes, names and arrays. For all rooms.
 *
 * A tl_sha256_ctx is fed piece by piece. A failure of libcrypto (out of memory) sticks: later feeds
 * do nothing and finish reports it. So a caller may check once, at the end, and never gets a hash
 * of half the bytes. */
#ifndef TL_HASH_H
#define TL_HASH_H

#include "tensor/array.h"

enum { TL_SHA256_BYTES = 32, TL_SHA256_HEX = 65 /* 64 digits and a NUL */ };

typedef struct {
    void *md;         /* libcrypto's state, owned until finish or drop */
    tl_status status; /* the first failure */
} tl_sha256_ctx;

/* Starts a hash. Every begin that succeeds wants one finish or one drop. Errors: TL_ENOMEM. */
tl_status tl_sha256_begin(tl_sha256_ctx *ctx, tl_err *err);

/* The next n bytes of p (borrows). */
void tl_sha256_feed(tl_sha256_ctx *ctx, const void *p, size_t n);
/* The same as a tl_bytes_fn (bytes.h). */
tl_status tl_sha256_block(void *ctx, const void *p, size_t n);
/* x as 8 bytes, lowest first. */
void tl_sha256_feed_u64(tl_sha256_ctx *ctx, uint64_t x);

/* A string: its length as u64, then its bytes - so that "ab" "c" is not "a" "bc". */
void tl_hash_string(tl_sha256_ctx *ctx, const char *s);

/* An array of any strides (borrows): the dtype's name ("F32", no NUL), ndim and each dim as u64,
 * then the elements as tensor/files/bytes.h defines them. Equal arrays hash equal on every machine.
 */
void tl_hash_array(tl_sha256_ctx *ctx, const tl_array *a);

/* Ends the hash and frees the state. The output is 32 bytes, or 64 lower-case hex digits and a NUL;
 * on failure zeros, or "". Errors: TL_ENOMEM. */
tl_status tl_sha256_finish(tl_sha256_ctx *ctx, unsigned char out[TL_SHA256_BYTES], tl_err *err);
tl_status tl_sha256_finish_hex(tl_sha256_ctx *ctx, char out[TL_SHA256_HEX], tl_err *err);

/* Writes n bytes as 2 n lower-case hex digits and a NUL. Returns to. */
char *tl_hex(char *to, const unsigned char *bytes, size_t n);

/* Ends a hash that is not wanted. */
void tl_sha256_drop(tl_sha256_ctx *ctx);

/* ---- whether two runs computed the same bytes: XXH3-128, as xxh128sum prints it ----
 *
 * It is as fast as memory, and 128 bits tell apart all values that runs compute. Collisions can be
 * made on purpose; where that matters, SHA-256 is used. */

enum {
    TL_FINGERPRINT_BYTES = 16,
    TL_FINGERPRINT_ROOM = 640 /* bytes that one takes while it is fed */
};

typedef struct tl_fingerprint tl_fingerprint;

/* Begins one in TL_FINGERPRINT_ROOM bytes at room, anywhere; it has nothing else to release. */
tl_fingerprint *tl_fingerprint_begin(void *room);

/* The next n bytes of p (borrows). */
void tl_fingerprint_feed(tl_fingerprint *f, const void *p, size_t n);
/* The elements of a (borrows, any strides) in the form of tensor/files/bytes.h. part gets the
 * fingerprint of these alone, unless it is NULL. */
void tl_fingerprint_feed_array(tl_fingerprint *f, const tl_array *a,
                               unsigned char part[TL_FINGERPRINT_BYTES]);

/* The fingerprint of what was fed so far; more may follow. */
void tl_fingerprint_so_far(const tl_fingerprint *f, unsigned char out[TL_FINGERPRINT_BYTES]);

#endif
