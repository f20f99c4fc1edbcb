/* fingerprint.h: whether two runs computed the same bytes: XXH3-128, as xxh128sum prints it. For
 * the log.
 *
 * It is as fast as memory, and 128 bits tell all values apart that runs compute. It does not stand
 * against someone who makes collisions: what must, is hashed by SHA-256 (hash.h). */
#ifndef TL_FINGERPRINT_H
#define TL_FINGERPRINT_H

#include "tensor/array.h"

enum {
    TL_FINGERPRINT_BYTES = 16,
    TL_FINGERPRINT_ROOM = 640 /* bytes that one takes while it is fed */
};

typedef struct tl_fingerprint tl_fingerprint;

/* Begins one in TL_FINGERPRINT_ROOM bytes at room, anywhere; it has nothing else to release. */
tl_fingerprint *tl_fingerprint_begin(void *room);

/* The next n bytes of p (borrows). */
void tl_fingerprint_feed(tl_fingerprint *f, const void *p, size_t n);
/* The elements of a (borrows, any strides) in the form of tensor/files/bytes.h. part: the
 * fingerprint of these alone; NULL: not wanted. */
void tl_fingerprint_feed_array(tl_fingerprint *f, const tl_array *a,
                               unsigned char part[TL_FINGERPRINT_BYTES]);

/* The fingerprint of what was fed so far; more may follow. */
void tl_fingerprint_so_far(const tl_fingerprint *f, unsigned char out[TL_FINGERPRINT_BYTES]);

#endif
