/* tokenizer.h: a tokenizer in memory: read by tokenizer_json.c, used by tokenizer.c. Private to
 * nn/.
 */
#ifndef TL_TOKENIZER_H
#define TL_TOKENIZER_H

#include "nn/models.h"

enum { TL_AROUND_MAX = 8 };

typedef struct {
    char *bytes; /* with a NUL behind them; NULL: no such token */
    size_t n;
    bool normalized; /* an added one that is looked for after the others */
} tl_token;
typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank, id;
} tl_merge; /* id -1: an empty place */

struct tl_tokenizer {
    tl_token *token; /* by id */
    int64_t size;
    int32_t *by_bytes; /* ids by the hash of what words can be made of; -1: an empty place */
    tl_merge *merge;   /* by the hash of the pair */
    size_t places, merge_places; /* powers of 2 */
    int32_t byte[256];
    bool llama3, whole_words; /* the way to split; a word that is a token is that token */
    bool begins[2][256];      /* an added token; one that is normalized */
    int64_t *added;           /* ids of those tokens */
    size_t n_added;
    int64_t before[TL_AROUND_MAX], after[TL_AROUND_MAX];
    int n_before, n_after;
};

/* The place of these bytes in by_bytes, or the empty one where they would be; that of a pair. */
int32_t *tl_token_place(const tl_tokenizer *k, const char *bytes, size_t n);
tl_merge *tl_merge_place(const tl_tokenizer *k, int32_t left, int32_t right);

#endif
