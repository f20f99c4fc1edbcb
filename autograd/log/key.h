/* key.h: where a result stands in the canonical order of a step, as one number; and the version of
 * logs that have these keys.
 *
 * Ascending keys are canonical order: first the passes, one for each backward of the step, then the
 * update. Within a pass come the forward results by number, then the backward ones, from the last
 * op to the first and within one op's vjp in its own order. Written as
 *
 *   f12     forward result 12 (its second output: f12/1)     1:f12   the same of the second pass
 *   c12.1   first result of adding up f12's cotangents       b12.3   third result of f12's vjp
 *   u5      result 5 of the update                           u5.1    first gradient read behind it
 */
#ifndef TL_LOG_KEY_H
#define TL_LOG_KEY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tensor/memory.h"

/* The first line of a log. Version 2 had SHA-256 in the place of XXH3-128; it can still be read. */
#define TL_LOG_HEAD "tally-log\t"
enum { TL_LOG_VERSION = 3 };

enum {
    TL_KEY_UPDATE = 255,
    TL_KEY_AT_MAX = (1 << 24) - 1,
    TL_KEY_SUB_MAX = (1 << 22) - 1,
    TL_KEY_TEXT = 40
};

typedef struct {
    int pass;              /* TL_KEY_UPDATE: the update */
    bool backward, adding; /* adding: of the cotangents' sum, before the vjp */
    uint32_t at, sub;      /* forward number, from 1; result of its vjp, from 1 (0: forward) */
    int out;
} tl_log_key;

uint64_t tl_log_key_pack(tl_log_key k);
tl_log_key tl_log_key_unpack(uint64_t key);
/* For sorting: compares records that begin with their keys. */
int tl_log_by_key(const void *a, const void *b);
/* buf has TL_KEY_TEXT bytes; returns buf. */
char *tl_log_key_text(char *buf, uint64_t key);
/* The n bytes at s as a key; 0 if they are none. Defined in read/read.c. */
uint64_t tl_log_key_parse(const char *s, size_t n);

#endif
