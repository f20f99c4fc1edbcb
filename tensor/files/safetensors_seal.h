/* safetensors_seal.h: the digest of a file in its own metadata. Private to tensor/. */
#ifndef TL_SAFETENSORS_SEAL_H
#define TL_SAFETENSORS_SEAL_H

#include <stddef.h>

enum { TL_ST_DIGITS = 64 };

/* Where the digits stand in a header of n bytes; NULL: it has no seal, or one that is no SHA-256.
 */
char *tl_st_seal_digits(char *text, size_t n);
/* Sets them to zeros, as what is hashed has them. */
void tl_st_seal_clear(char *digits);

#endif
