/* tokenizer.h: a tokenizer in memory, which tokenizer_json.c fills and tokenizer.c uses. Private to
 * nn/. */
#ifndef TL_TOKENIZER_H
#define TL_TOKENIZER_H

#include "nn/models.h"
#include "tensor/memory.h"

enum { TL_AROUND_MAX = 8 };

typedef struct {
    char *bytes; /* with a NUL after the last; NULL: there is no such token */
    size_t n;
    bool normalized; /* of an added token: it is searched for after those that are not */
} tl_token;
typedef struct {
    int32_t rank, id; /* id -1: there is no such merge */
} tl_merge;

struct tl_tokenizer {
    tl_token *token; /* by id */
    int64_t size;
    int32_t *by_bytes;   /* hash table of the ids of tokens that words can be made of; -1: empty */
    size_t places;       /* its size, a power of 2 */
    tl_key_map merge;    /* by pair (tl_merge_key): rank << 32 | id */
    int32_t byte[256];   /* the token of each byte */
    bool llama3;         /* split as Llama 3, not as GPT-2 */
    bool whole_words;    /* a word that is a token becomes that token */
    bool begins[2][256]; /* by `normalized`: bytes that begin an added token */
    int64_t *added;      /* ids of the added tokens */
    size_t n_added;
    int64_t before[TL_AROUND_MAX], after[TL_AROUND_MAX]; /* tokens around a text */
    int n_before, n_after;
    bool templated; /* the file has a template, which may add none */
};

/* The slot of these bytes in by_bytes, or the empty one where they belong. */
int32_t *tl_token_place(const tl_tokenizer *k, const char *bytes, size_t n);
/* The key of a pair of tokens. */
static inline uint64_t tl_merge_key(int32_t left, int32_t right)
{
    return ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) + 1;
}

#endif
