/* tokenizer.c: byte-level BPE as a tokenizer.json describes it. Text is split at added tokens, then
 * into words by the class of each character, and each word's bytes are merged by rank. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "nn/models.h"
#include "nn/unicode_classes.h"
#include "tensor/files/file.h"
#include "tensor/files/utf8.h"
#include "tensor/memory.h"

enum { FILE_MAX = 1 << 28, AROUND_MAX = 8, MAPPED = 0x144 };

typedef struct {
    char *bytes; /* with a NUL behind them; NULL: no such token */
    size_t n;
    bool normalized; /* an added one that is looked for after the others */
} token;
typedef struct {
    uint64_t pair; /* left << 32 | right */
    int32_t rank, id;
} merge; /* id -1: an empty place */

struct tl_tokenizer {
    token *token; /* by id */
    int64_t size;
    int32_t *by_bytes; /* ids by the hash of what words can be made of; -1: an empty place */
    merge *merge;      /* by the hash of the pair */
    size_t places, merge_places; /* powers of 2 */
    int32_t byte[256];
    bool llama3, whole_words; /* the way to split; a word that is a token is that token */
    bool begins[2][256];      /* an added token; one that is normalized */
    int64_t *added;           /* ids of those tokens */
    size_t n_added;
    int64_t before[AROUND_MAX], after[AROUND_MAX];
    int n_before, n_after;
};

/* ---- tables ---- */

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 32) * 0x9e3779b97f4a7c15u;
    return x ^ x >> 29;
}

/* The place of these bytes, or the empty one where they would be. */
static int32_t *place_of(const tl_tokenizer *k, const char *bytes, size_t n)
{
    uint64_t h = 1;
    for (size_t i = 0; i < n; i++)
        h = mixed(h + (unsigned char)bytes[i] + 1);
    for (;; h++) {
        int32_t *at = &k->by_bytes[h & (k->places - 1)];
        if (*at < 0 || (k->token[*at].n == n && memcmp(k->token[*at].bytes, bytes, n) == 0))
            return at;
    }
}

static merge *merge_of(const tl_tokenizer *k, int32_t left, int32_t right)
{
    const uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint64_t h = mixed(pair);; h++) {
        merge *at = &k->merge[h & (k->merge_places - 1)];
        if (at->id < 0 || at->pair == pair)
            return at;
    }
}

static size_t twice(size_t n) /* the least power of 2 that is at least so much */
{
    size_t p = 4;
    while (p < 2 * n)
        p *= 2;
    return p;
}

/* ---- characters ---- */

enum { OTHER, LETTER, NUMBER, SPACE };

/* Of the character at s, of n > 0 bytes; *length of them are its own. A byte that begins none is a
 * symbol. */
static int class_of(const char *s, size_t n, size_t *length)
{
    size_t low = 0, high = sizeof tl_unicode_classes / sizeof *tl_unicode_classes;
    uint32_t x = (unsigned char)*s;
    *length = tl_utf8_length(s, n);
    if (*length == 0) {
        *length = 1;
        return OTHER;
    }
    if (*length > 1)
        x &= 0x7fu >> *length;
    for (size_t i = 1; i < *length; i++)
        x = x << 6 | ((unsigned char)s[i] & 0x3f);
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (tl_unicode_classes[middle] >> 2 <= x)
            low = middle;
        else
            high = middle;
    }
    return (int)(tl_unicode_classes[low] & 3);
}

/* Where the run of at most `most` characters of a class ends. */
static size_t run(const char *s, size_t n, size_t at, int class, int most)
{
    size_t length;
    while (at < n && most-- > 0 && class_of(s + at, n - at, &length) == class)
        at += length;
    return at;
}

/* Bytes of 's, 't, 're, 've, 'm, 'll, 'd at s; 0: none. In any case: long s is an s, too. */
static size_t contraction(const char *s, size_t n, bool any_case)
{
    static const char *const endings[] = {"s", "t", "re", "ve", "m", "ll", "d"};
    if (n < 2 || *s != '\'')
        return 0;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t k = 0, length = strlen(endings[i]);
        while (k < length && k + 1 < n &&
               (s[k + 1] == endings[i][k] || (any_case && s[k + 1] == endings[i][k] - 32)))
            k++;
        if (k == length)
            return k + 1;
    }
    return any_case && n > 2 && memcmp(s + 1, "\xc5\xbf", 2) == 0 ? 3 : 0;
}

static bool is_break(char c) { return c == '\n' || c == '\r'; }

/* Space at s up to the character before the last, which goes with what follows it; if there is but
 * one, or nothing follows, all of it. */
static size_t space(const char *s, size_t n, bool llama3)
{
    size_t end = run(s, n, 0, SPACE, INT32_MAX), last = end, length;
    for (size_t i = end; llama3 && i > 0; i--)
        if (is_break(s[i - 1]))
            return i;
    if (end == n)
        return end;
    while (((unsigned char)s[--last] & 0xc0) == 0x80)
        continue;
    (void)class_of(s, n, &length);
    return last > 0 ? last : length;
}

/* The bytes of the first word of n > 0. */
static size_t word(const tl_tokenizer *k, const char *s, size_t n)
{
    size_t length, end = contraction(s, n, k->llama3), at = *s == ' ';
    if (end > 0)
        return end;
    int class = class_of(s, n, &length), next = -1;
    if (k->llama3) {
        if (class == LETTER)
            return run(s, n, 0, LETTER, INT32_MAX);
        if (class != NUMBER && !is_break(*s) &&
            (end = run(s, n, length, LETTER, INT32_MAX)) > length)
            return end;
        if (class == NUMBER)
            return run(s, n, 0, NUMBER, 3);
    }
    if (at < n)
        next = class_of(s + at, n - at, &length);
    if (next == OTHER) {
        end = run(s, n, at, OTHER, INT32_MAX);
        while (k->llama3 && end < n && is_break(s[end]))
            end++;
        return end;
    }
    if (!k->llama3 && (next == LETTER || next == NUMBER))
        return run(s, n, at, next, INT32_MAX);
    return space(s, n, k->llama3);
}

/* ---- merging ---- */

typedef struct {
    int32_t id, before,
        next; /* neighbours; -1: none. id -1: it has been merged into the one before */
} symbol;
typedef struct {
    int32_t rank, at, id;
} candidate;
typedef struct {
    const tl_tokenizer *k;
    int64_t *ids, room, n;
    symbol *symbol;
    candidate *heap; /* the lowest rank first, then the leftmost */
    size_t most, heaped;
} encoder;

static void give(encoder *e, int64_t id)
{
    if (e->n < e->room)
        e->ids[e->n] = id;
    e->n++;
}

static bool earlier(candidate a, candidate b)
{
    return a.rank != b.rank ? a.rank < b.rank : a.at < b.at;
}

static void push(encoder *e, int32_t at)
{
    if (at < 0 || e->symbol[at].next < 0)
        return;
    const merge *m = merge_of(e->k, e->symbol[at].id, e->symbol[e->symbol[at].next].id);
    if (m->id < 0)
        return;
    const candidate c = {m->rank, at, m->id};
    size_t i = e->heaped++;
    for (; i > 0 && earlier(c, e->heap[(i - 1) / 2]); i = (i - 1) / 2)
        e->heap[i] = e->heap[(i - 1) / 2];
    e->heap[i] = c;
}

static candidate pop(encoder *e)
{
    const candidate first = e->heap[0], last = e->heap[--e->heaped];
    size_t i = 0, k;
    for (; (k = 2 * i + 1) < e->heaped; i = k) {
        k += k + 1 < e->heaped && earlier(e->heap[k + 1], e->heap[k]);
        if (!earlier(e->heap[k], last))
            break;
        e->heap[i] = e->heap[k];
    }
    e->heap[i] = last;
    return first;
}

/* Room for a word of n bytes; each merge adds at most two candidates. */
static tl_status grow(encoder *e, size_t n, tl_err *err)
{
    if (n <= e->most)
        return TL_OK;
    symbol *s = n < INT32_MAX / 4 ? tl_realloc(e->symbol, 2 * n * sizeof *s) : NULL;
    if (s != NULL)
        e->symbol = s;
    candidate *h = s != NULL ? tl_realloc(e->heap, 6 * n * sizeof *h) : NULL;
    if (h == NULL)
        return tl_fail(err, TL_ENOMEM, "tl_tokenizer_encode: no memory for a word of %zu bytes", n);
    e->heap = h;
    e->most = 2 * n;
    return TL_OK;
}

static tl_status encode_word(encoder *e, const char *s, size_t n, tl_err *err)
{
    const int32_t *whole = e->k->whole_words ? place_of(e->k, s, n) : NULL;
    if (whole != NULL && *whole >= 0) {
        give(e, *whole);
        return TL_OK;
    }
    TL_TRY(grow(e, n, err));
    e->heaped = 0;
    for (size_t i = 0; i < n; i++)
        e->symbol[i] = (symbol){e->k->byte[(unsigned char)s[i]], (int32_t)i - 1,
                                i + 1 < n ? (int32_t)i + 1 : -1};
    for (size_t i = 0; i < n; i++)
        push(e, (int32_t)i);
    while (e->heaped > 0) {
        candidate c = pop(e);
        symbol *left = &e->symbol[c.at];
        if (left->id < 0 || left->next < 0)
            continue;
        symbol *right = &e->symbol[left->next];
        const merge *m = merge_of(e->k, left->id, right->id);
        if (m->id != c.id) /* one of the two has been merged since */
            continue;
        left->id = m->id;
        left->next = right->next;
        right->id = -1;
        if (left->next >= 0)
            e->symbol[left->next].before = c.at;
        push(e, left->before);
        push(e, c.at);
    }
    for (int32_t i = 0; i >= 0; i = e->symbol[i].next)
        give(e, e->symbol[i].id);
    return TL_OK;
}

/* The longest added token at s, of those that are normalized or not; -1: none. */
static int64_t added_at(const tl_tokenizer *k, const char *s, size_t n, bool normalized)
{
    int64_t best = -1;
    for (size_t i = k->begins[normalized][(unsigned char)*s] ? 0 : k->n_added; i < k->n_added;
         i++) {
        const token *t = &k->token[k->added[i]];
        if (t->normalized == normalized && t->n > 0 && t->n <= n &&
            memcmp(t->bytes, s, t->n) == 0 && (best < 0 || t->n > k->token[best].n))
            best = k->added[i];
    }
    return best;
}

/* Pass 0 finds added tokens, pass 1 those that are normalized, pass 2 words. */
static tl_status encode(encoder *e, const char *s, size_t n, int pass, tl_err *err)
{
    size_t begin = 0;
    for (size_t i = 0; pass == 2 && i < n;) {
        size_t length = word(e->k, s + i, n - i);
        TL_TRY(encode_word(e, s + i, length, err));
        i += length;
    }
    for (size_t i = 0; pass < 2 && i <= n;) {
        int64_t id = i < n ? added_at(e->k, s + i, n - i, pass == 1) : -1;
        if (id >= 0 || i == n) {
            TL_TRY(encode(e, s + begin, i - begin, pass + 1, err));
            if (id < 0)
                break;
            give(e, id);
            begin = i += e->k->token[id].n;
        } else
            i++;
    }
    return TL_OK;
}

int64_t tl_tokenizer_encode(const tl_tokenizer *k, const char *text, size_t n, bool around,
                            int64_t *ids, int64_t room, tl_err *err)
{
    if (TL_NEED(err, k) != TL_OK || TL_NEED(err, text) != TL_OK ||
        TL_NEED_N(err, room > 0 ? (void *)ids : (void *)"", room) != TL_OK)
        return -1;
    encoder e = {.k = k, .ids = ids, .room = room};
    for (int i = 0; around && i < k->n_before; i++)
        give(&e, k->before[i]);
    tl_status s = encode(&e, text, n, 0, err);
    for (int i = 0; around && i < k->n_after; i++)
        give(&e, k->after[i]);
    tl_free_raw(e.symbol);
    tl_free_raw(e.heap);
    return s == TL_OK ? e.n : -1;
}

int64_t tl_tokenizer_size(const tl_tokenizer *k) { return k == NULL ? 0 : k->size; }

const char *tl_tokenizer_bytes(const tl_tokenizer *k, int64_t id, size_t *n)
{
    const token none = {.bytes = NULL},
                *t = id < 0 || id >= tl_tokenizer_size(k) ? &none : &k->token[id];
    if (n != NULL)
        *n = t->n;
    return t->bytes;
}

int64_t tl_tokenizer_find(const tl_tokenizer *k, const char *content)
{
    for (size_t i = 0; k != NULL && content != NULL && i < k->n_added; i++)
        if (strcmp(k->token[k->added[i]].bytes, content) == 0)
            return k->added[i];
    return -1;
}

/* ---- tokenizer.json ---- */

typedef struct {
    const char *path;
    size_t bytes;            /* of the file: ids are below them */
    int16_t byte_of[MAPPED]; /* of the character that stands for it; -1 */
    tl_err *err;
} reader;

/* Printable bytes stand for themselves, the others are 256 and on. */
static void map_bytes(reader *r)
{
    int next = 256;
    for (int i = 0; i < MAPPED; i++)
        r->byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        bool itself = (b >= '!' && b <= '~') || (b >= 0xa1 && b != 0xad);
        r->byte_of[itself ? b : next++] = (int16_t)b;
    }
}

/* What the characters at s stand for, to `to` (as long as s); returns how many bytes, -1 where one
 * stands for none. */
static int64_t unmapped(const reader *r, const char *s, size_t n, char *to)
{
    int64_t count = 0;
    for (size_t i = 0; i < n; count++) {
        unsigned char a = (unsigned char)s[i++];
        int x = a < 0x80 ? a : a < 0xe0 && i < n ? (a & 0x1f) << 6 | (s[i++] & 0x3f) : MAPPED;
        if (x >= MAPPED || r->byte_of[x] < 0)
            return -1;
        to[count] = (char)r->byte_of[x];
    }
    return count;
}

static tl_status read_token(tl_tokenizer *k, const reader *r, const char *s, size_t n,
                            const json_t *id, bool added)
{
    int64_t i = json_integer_value(id);
    if (!json_is_integer(id) || i < 0 || i >= k->size)
        return tl_fail(r->err, TL_EFORMAT,
                       "%.200s: the id of '%.60s' is %lld; %lld, from 0 on, are possible in a file "
                       "of %zu bytes",
                       r->path, s, (long long)i, (long long)k->size, r->bytes);
    token *t = &k->token[i];
    char *bytes = tl_calloc(n + 1, 1);
    if (bytes == NULL)
        return tl_fail(r->err, TL_ENOMEM, "%.200s: no memory for a token of %zu bytes", r->path, n);
    int64_t length = added ? -1 : unmapped(r, s, n, bytes);
    bool of_words = length >= 0;
    if (!of_words) { /* words are not made of it */
        memcpy(bytes, s, n);
        length = (int64_t)n;
    }
    if (t->bytes != NULL && (!added || t->n != n || memcmp(t->bytes, bytes, n) != 0)) {
        tl_free_raw(bytes);
        return tl_fail(r->err, TL_EFORMAT, "%.200s: two tokens have the id %lld, '%.60s' is one",
                       r->path, (long long)i, s);
    }
    tl_free_raw(t->bytes);
    *t = (token){bytes, (size_t)length, false};
    if (of_words) {
        int32_t *place = place_of(k, bytes, (size_t)length);
        if (*place >= 0)
            return tl_fail(r->err, TL_EFORMAT, "%.200s: '%.60s' has two ids, %d and %lld", r->path,
                           s, (int)*place, (long long)i);
        *place = (int32_t)i;
    }
    return TL_OK;
}

static tl_status read_added(tl_tokenizer *k, const reader *r, const json_t *list)
{
    k->added = tl_calloc(json_array_size(list) + 1, sizeof *k->added);
    if (k->added == NULL)
        return tl_fail(r->err, TL_ENOMEM, "%.200s: no memory for %zu added tokens", r->path,
                       json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i), *content = json_object_get(x, "content");
        static const char *const unknown[] = {"single_word", "lstrip", "rstrip"};
        for (size_t u = 0; u < sizeof unknown / sizeof *unknown; u++)
            if (json_is_true(json_object_get(x, unknown[u])))
                return tl_fail(r->err, TL_EDOMAIN,
                               "%.200s: added token %zu has \"%s\", which is not known here",
                               r->path, i, unknown[u]);
        if (!json_is_string(content))
            return tl_fail(r->err, TL_EFORMAT, "%.200s: added token %zu has no content", r->path,
                           i);
        const char *s = json_string_value(content);
        TL_TRY(read_token(k, r, s, json_string_length(content), json_object_get(x, "id"), true));
        token *t = &k->token[json_integer_value(json_object_get(x, "id"))];
        t->normalized = json_is_true(json_object_get(x, "normalized"));
        k->added[k->n_added++] = json_integer_value(json_object_get(x, "id"));
        if (t->n > 0)
            k->begins[t->normalized][(unsigned char)*s] = true;
    }
    return TL_OK;
}

/* "a b" or ["a", "b"]. */
static tl_status read_merge(tl_tokenizer *k, const reader *r, const json_t *x, size_t rank,
                            char *room)
{
    const char *s = json_string_value(x), *gap = s != NULL ? strchr(s, ' ') : NULL;
    const char *part[2] = {s, gap != NULL ? gap + 1 : NULL};
    size_t n[2] = {gap != NULL ? (size_t)(gap - s) : 0,
                   gap != NULL ? json_string_length(x) - (size_t)(gap - s) - 1 : 0};
    for (size_t i = 0; i < 2 && json_array_size(x) == 2; i++) {
        part[i] = json_string_value(json_array_get(x, i));
        n[i] = json_string_length(json_array_get(x, i));
    }
    int64_t left = -1, right = -1;
    if (part[0] != NULL && part[1] != NULL && n[0] + n[1] < r->bytes &&
        (left = unmapped(r, part[0], n[0], room)) > 0)
        right = unmapped(r, part[1], n[1], room + left);
    int32_t a = right > 0 ? *place_of(k, room, (size_t)left) : -1,
            b = right > 0 ? *place_of(k, room + left, (size_t)right) : -1,
            whole = right > 0 ? *place_of(k, room, (size_t)(left + right)) : -1;
    if (a < 0 || b < 0 || whole < 0)
        return tl_fail(r->err, TL_EFORMAT,
                       "%.200s: merge %zu is not of two tokens into a third ('%.40s' and '%.40s')",
                       r->path, rank, part[0] != NULL ? part[0] : "",
                       part[1] != NULL ? part[1] : "");
    *merge_of(k, a, b) = (merge){(uint64_t)(uint32_t)a << 32 | (uint32_t)b, (int32_t)rank, whole};
    return TL_OK;
}

static tl_status unknown(const reader *r, const char *what)
{
    return tl_fail(r->err, TL_EDOMAIN,
                   "%.200s: %s; byte-level BPE as GPT-2 and Llama 3 have it is known", r->path,
                   what);
}

static bool is(const json_t *object, const char *key, const char *value)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s != NULL && strcmp(s, value) == 0;
}

/* GPT-2's ByteLevel alone, or a Split by one of the two patterns before it. */
static tl_status read_split(tl_tokenizer *k, const reader *r, const json_t *pre)
{
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|"
                               "\\s+(?!\\S)|\\s+",
                      llama3[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|"
                                 "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
                                 "\\s+(?!\\S)|\\s+";
    const json_t *list = json_object_get(pre, "pretokenizers"), *bytes = pre, *split = NULL;
    if (is(pre, "type", "Sequence") && json_array_size(list) == 2)
        split = json_array_get(list, 0), bytes = json_array_get(list, 1);
    const json_t *pattern = json_object_get(split, "pattern"),
                 *by_itself = json_object_get(bytes, "use_regex");
    if (!is(bytes, "type", "ByteLevel") || json_is_true(json_object_get(bytes, "add_prefix_space")))
        return unknown(r, "its pre_tokenizer is not ByteLevel without add_prefix_space");
    k->llama3 = is(pattern, "Regex", llama3);
    if (split == NULL ? json_is_false(by_itself)
                      : !json_is_false(by_itself) || !is(split, "type", "Split") ||
                            !is(split, "behavior", "Isolated") ||
                            json_is_true(json_object_get(split, "invert")) ||
                            !(k->llama3 || is(pattern, "Regex", gpt2)))
        return unknown(r, "its pre_tokenizer splits by another pattern");
    return TL_OK;
}

/* What a TemplateProcessing puts before and after a text. */
static tl_status read_around(tl_tokenizer *k, const reader *r, const json_t *post)
{
    const json_t *list = json_object_get(post, "processors"), *of = post;
    for (size_t i = 0; i < json_array_size(list); i++)
        TL_TRY(read_around(k, r, json_array_get(list, i)));
    if (post == NULL || json_is_null(post) || is(post, "type", "ByteLevel") ||
        is(post, "type", "Sequence"))
        return TL_OK;
    if (!is(post, "type", "TemplateProcessing"))
        return unknown(r, "its post_processor is of another type");
    bool text = false;
    const json_t *single = json_object_get(post, "single");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *special = json_object_get(json_array_get(single, i), "SpecialToken");
        const char *name = json_string_value(json_object_get(special, "id"));
        text |= special == NULL;
        if (special == NULL)
            continue;
        of = json_object_get(json_object_get(post, "special_tokens"), name != NULL ? name : "");
        const json_t *ids = json_object_get(of, "ids");
        for (size_t j = 0; j < json_array_size(ids); j++) {
            int *n = text ? &k->n_after : &k->n_before;
            int64_t id = json_integer_value(json_array_get(ids, j));
            if (*n == AROUND_MAX || id < 0 || id >= k->size || k->token[id].bytes == NULL)
                return tl_fail(
                    r->err, TL_EFORMAT,
                    "%.200s: the post_processor's token %lld is none of %lld, or one more "
                    "than %d",
                    r->path, (long long)id, (long long)k->size, (int)AROUND_MAX);
            (text ? k->after : k->before)[(*n)++] = id;
        }
    }
    return TL_OK;
}

static tl_status read_model(tl_tokenizer *k, reader *r, const json_t *j)
{
    json_t *model = json_object_get(j, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges"),
                 *added = json_object_get(j, "added_tokens"),
                 *drop = json_object_get(model, "dropout");
    if (json_object_get(model, "type") != NULL && !is(model, "type", "BPE"))
        return unknown(r, "its model is of another type");
    if (json_is_object(json_object_get(j, "normalizer")))
        return unknown(r, "it has a normalizer");
    if (json_number_value(drop) != 0 || json_is_true(json_object_get(model, "byte_fallback")) ||
        json_string_length(json_object_get(model, "continuing_subword_prefix")) > 0 ||
        json_string_length(json_object_get(model, "end_of_word_suffix")) > 0)
        return unknown(r, "its model has dropout, byte_fallback, or parts of words marked");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return tl_fail(r->err, TL_EFORMAT, "%.200s: the model has no vocab, or no merges", r->path);
    int64_t most = (int64_t)(r->bytes < INT32_MAX ? r->bytes : INT32_MAX), last = -1;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value) if (json_integer_value(value) > last)
        last = json_integer_value(value);
    for (size_t i = 0; i < json_array_size(added); i++) {
        int64_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        last = id > last ? id : last;
    }
    k->size = last < most ? last + 1 : most;
    k->places = twice(json_object_size(vocab) + 1);
    k->merge_places = twice(json_array_size(merges) + 1);
    k->token = tl_calloc((size_t)k->size + 1, sizeof *k->token);
    k->by_bytes = tl_calloc(k->places, sizeof *k->by_bytes);
    k->merge = tl_calloc(k->merge_places, sizeof *k->merge);
    char *room = tl_calloc(r->bytes + 1, 1);
    tl_status s = k->token == NULL || k->by_bytes == NULL || k->merge == NULL || room == NULL
                      ? tl_fail(r->err, TL_ENOMEM, "%.200s: no memory for %lld tokens", r->path,
                                (long long)k->size)
                      : TL_OK;
    for (size_t i = 0; i < k->places && s == TL_OK; i++)
        k->by_bytes[i] = -1;
    for (size_t i = 0; i < k->merge_places && s == TL_OK; i++)
        k->merge[i].id = -1;
    json_object_foreach(vocab, key, value)
    {
        if (s == TL_OK)
            s = read_token(k, r, key, strlen(key), value, false);
    }
    for (size_t i = 0; i < json_array_size(merges) && s == TL_OK; i++)
        s = read_merge(k, r, json_array_get(merges, i), i, room);
    for (int b = 0; b < 256 && s == TL_OK; b++) {
        k->byte[b] = *place_of(k, (char[]){(char)b}, 1);
        if (k->byte[b] < 0)
            s = tl_fail(r->err, TL_EDOMAIN, "%.200s: has no token for the byte %d", r->path, b);
    }
    tl_free_raw(room);
    k->whole_words = json_is_true(json_object_get(model, "ignore_merges"));
    return s == TL_OK ? read_added(k, r, added) : s;
}

tl_status tl_tokenizer_open_memory(tl_tokenizer **out, const void *bytes, size_t n,
                                   const char *name, tl_err *err)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED_N(err, bytes, n > 0));
    json_error_t e;
    reader r = {.path = name == NULL ? "memory" : name, .bytes = n, .err = err};
    json_t *j = json_loadb(bytes, n, JSON_REJECT_DUPLICATES, &e);
    if (j == NULL)
        return json_error_code(&e) == json_error_out_of_memory
                   ? tl_fail(err, TL_ENOMEM, "%.200s: no memory to read %zu bytes of JSON", r.path,
                             n)
                   : tl_fail(err, TL_EFORMAT, "%.200s: not valid JSON: %s (line %d, byte %d)",
                             r.path, e.text, e.line, e.position);
    tl_tokenizer *k = tl_calloc(1, sizeof *k);
    tl_status s = k == NULL ? tl_fail(err, TL_ENOMEM, "%.200s: no memory to open it", r.path)
                            : TL_OK;
    map_bytes(&r);
    if (s == TL_OK && (s = read_model(k, &r, j)) == TL_OK &&
        (s = read_split(k, &r, json_object_get(j, "pre_tokenizer"))) == TL_OK)
        s = read_around(k, &r, json_object_get(j, "post_processor"));
    json_decref(j);
    if (s == TL_OK)
        *out = k;
    else
        tl_tokenizer_close(k);
    return s;
}

tl_status tl_tokenizer_open(tl_tokenizer **out, const char *path, tl_err *err)
{
    char *text;
    size_t n;
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED(err, path));
    TL_TRY(tl_file_read(path, FILE_MAX, &text, &n, err));
    tl_status s = tl_tokenizer_open_memory(out, text, n, path, err);
    tl_free_raw(text);
    return s;
}

void tl_tokenizer_close(tl_tokenizer *k)
{
    if (k == NULL)
        return;
    for (int64_t i = 0; k->token != NULL && i < k->size; i++)
        tl_free_raw(k->token[i].bytes);
    tl_free_raw(k->token);
    tl_free_raw(k->by_bytes);
    tl_free_raw(k->merge);
    tl_free_raw(k->added);
    tl_free_raw(k);
}
