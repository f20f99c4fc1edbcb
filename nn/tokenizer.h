/* tokenizer.h: a tokenizer in memory, which tokenizer_json.c fills and tokenizer.c uses. Private to
 * nn/. */
#ifndef TL_TOKENIZER_H
#define TL_TOKENIZER_H

#include "nn/models.h"

enum { TL_AROUND_MAX = 8 };

typedef struct {
    char *bytes; /* with a NUL after the last; NULL: there is no such token */
    size_t n;
    bool normalized; /* of an added token: it is searched for after those that are not */
} tl_token;
typedef struct {
    uint64_t pair;    /* left << 32 | right */
    int32_t rank, id; /* id -1: an empty slot */
} tl_merge;

struct tl_tokenizer {
    tl_token *token; /* by id */
    int64_t size;
    int32_t *by_bytes; /* hash table of the ids of tokens that words can be made of; -1: empty */
    tl_merge *merge;   /* hash table by pair */
    size_t places, merge_places; /* sizes of these tables, powers of 2 */
    int32_t byte[256];           /* the token of each byte */
    bool llama3;                 /* split as Llama 3, not as GPT-2 */
    bool whole_words;            /* a word that is a token becomes that token */
    bool begins[2][256];         /* bytes that begin an added token; that begin a normalized one */
    int64_t *added;              /* ids of the added tokens */
    size_t n_added;
    int64_t before[TL_AROUND_MAX], after[TL_AROUND_MAX]; /* tokens around a text */
    int n_before, n_after;
};

/* The slot of these bytes in by_bytes, or the empty one where they belong. */
int32_t *tl_token_place(const tl_tokenizer *k, const char *bytes, size_t n);
/* The slot of a pair in merge, or the empty one where it belongs. */
tl_merge *tl_merge_place(const tl_tokenizer *k, int32_t left, int32_t right);

#endif
