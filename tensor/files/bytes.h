/* bytes.h: the one form in which elements leave the machine, and come back. For all rooms.
 *
 * Row-major, little-endian, every NaN as the dtype's one quiet pattern (sign 0,
 * top fraction bit 1), every BOOL as 0 or 1. What is hashed and what is saved
 * are these bytes; strides, byte order and the payloads of NaNs do not show.
 */
#ifndef TL_BYTES_H
#define TL_BYTES_H

#include "tensor/array.h"

/* Takes the next n bytes; anything but TL_OK ends the walk. bytes: borrowed for the call. */
typedef tl_status tl_bytes_fn(void *ctx, const void *bytes, size_t n);

/* Hands the elements of a (any strides; borrows) to fn in that form, first to
 * last, in blocks of at most TL_BYTES_BLOCK bytes that split no element: where they lie, if
 * they lie in that form. Needs no memory but one block of stack. Returns the first status of fn
 * that is not TL_OK. */
enum { TL_BYTES_BLOCK = 16384 };
tl_status tl_array_bytes(const tl_array *a, tl_bytes_fn *fn, void *ctx);

/* n elements of the given size (1, 2, 4, 8) at p, in place: bytes reversed. */
void tl_bytes_swap(void *p, size_t n, size_t size);
/* The same on a big-endian host; nothing on a little-endian one. */
void tl_bytes_swap_host(void *p, size_t n, size_t size);

/* A 64-bit number as 8 bytes, lowest first, on every host. */
void tl_bytes_put64(unsigned char out[8], uint64_t x);
uint64_t tl_bytes_get64(const unsigned char in[8]);

#endif
