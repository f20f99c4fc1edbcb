/* tokenizer_json.c: reads a tokenizer.json of byte-level BPE: tokens, merges, the way to split
 * text, and the tokens around a text. A file that asks for anything else is refused. */
#include <string.h>

#include "nn/files.h"
#include "nn/tokenizer.h"
#include "tensor/files/file.h"

enum { FILE_MAX = 1 << 28, MAPPED = 0x144 };

typedef struct {
    tl_source file;
    size_t bytes;            /* of the file; every id is below it */
    int16_t byte_of[MAPPED]; /* the byte that a character stands for; -1: none */
    char *room;              /* for the bytes of a merge: one more than the file has */
} reader;

/* In the file, printable bytes stand for themselves, and the others are the characters from 256 on.
 */
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

/* Writes the bytes that the characters of s stand for to `to`, which is as long as s. Returns their
 * number; -1 if a character stands for no byte. */
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

/* Reads a boolean. A key that is missing or null is false. */
static tl_status read_flag(const reader *r, const json_t *object, const char *key, bool *out)
{
    const json_t *v = json_object_get(object, key);
    *out = json_is_true(v);
    return tl_of_kind(v, json_is_boolean(v), key, "a boolean", &r->file);
}

static tl_status read_token(tl_tokenizer *k, const reader *r, const char *s, size_t n,
                            const json_t *id, bool added)
{
    int64_t i = json_integer_value(id);
    if (!json_is_integer(id) || i < 0 || i >= k->size)
        return tl_file_fail(
            &r->file, TL_EFORMAT,
            "the id of '%.60s' is %lld; %lld, from 0 on, are possible in a file of %zu bytes", s,
            (long long)i, (long long)k->size, r->bytes);
    tl_token *t = &k->token[i];
    char *bytes = tl_calloc(n + 1, 1);
    if (bytes == NULL)
        return tl_file_fail(&r->file, TL_ENOMEM, "no memory for a token of %zu bytes", n);
    int64_t length = added ? -1 : unmapped(r, s, n, bytes);
    bool of_words = length >= 0;
    if (!of_words) { /* no word can contain it, so it stands for itself */
        memcpy(bytes, s, n);
        length = (int64_t)n;
    }
    if (t->bytes != NULL && (!added || t->n != n || memcmp(t->bytes, bytes, n) != 0)) {
        tl_free_raw(bytes);
        return tl_file_fail(&r->file, TL_EFORMAT, "two tokens have the id %lld, '%.60s' is one",
                            (long long)i, s);
    }
    tl_free_raw(t->bytes);
    *t = (tl_token){bytes, (size_t)length, false};
    if (of_words) {
        int32_t *place = tl_token_place(k, bytes, (size_t)length);
        if (*place >= 0)
            return tl_file_fail(&r->file, TL_EFORMAT, "'%.60s' has two ids, %d and %lld", s,
                                (int)*place, (long long)i);
        *place = (int32_t)i;
    }
    return TL_OK;
}

static tl_status read_added(tl_tokenizer *k, const reader *r, const json_t *list)
{
    TL_TRY(tl_of_kind(list, json_is_array(list), "added_tokens", "an array", &r->file));
    k->added = tl_calloc(json_array_size(list) + 1, sizeof *k->added);
    if (k->added == NULL)
        return tl_file_fail(&r->file, TL_ENOMEM, "no memory for %zu added tokens",
                            json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i), *content = json_object_get(x, "content");
        static const char *const unknown[] = {"single_word", "lstrip", "rstrip"};
        bool is = false, normalized;
        for (size_t u = 0; u < sizeof unknown / sizeof *unknown; u++) {
            TL_TRY(read_flag(r, x, unknown[u], &is));
            if (is)
                return tl_file_fail(&r->file, TL_EDOMAIN,
                                    "added token %zu has \"%s\", which is not known here", i,
                                    unknown[u]);
        }
        TL_TRY(read_flag(r, x, "normalized", &normalized));
        if (!json_is_string(content))
            return tl_file_fail(&r->file, TL_EFORMAT, "added token %zu has no content", i);
        const char *s = json_string_value(content);
        TL_TRY(read_token(k, r, s, json_string_length(content), json_object_get(x, "id"), true));
        tl_token *t = &k->token[json_integer_value(json_object_get(x, "id"))];
        t->normalized = normalized;
        k->added[k->n_added++] = json_integer_value(json_object_get(x, "id"));
        if (t->n > 0)
            k->begins[t->normalized][(unsigned char)*s] = true;
    }
    return TL_OK;
}

/* A merge is "a b" or ["a", "b"]. */
static tl_status read_merge(tl_tokenizer *k, const reader *r, const json_t *x, size_t rank)
{
    char *room = r->room;
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
    int32_t a = right > 0 ? *tl_token_place(k, room, (size_t)left) : -1,
            b = right > 0 ? *tl_token_place(k, room + left, (size_t)right) : -1,
            whole = right > 0 ? *tl_token_place(k, room, (size_t)(left + right)) : -1;
    if (a < 0 || b < 0 || whole < 0)
        return tl_file_fail(&r->file, TL_EFORMAT,
                            "merge %zu is not of two tokens into a third ('%.40s' and '%.40s')",
                            rank, part[0] != NULL ? part[0] : "", part[1] != NULL ? part[1] : "");
    if (!tl_key_map_put(&k->merge, tl_merge_key(a, b), (uint64_t)rank << 32 | (uint32_t)whole))
        return tl_file_fail(&r->file, TL_ENOMEM, "no memory for %zu merges", rank + 1);
    return TL_OK;
}

static tl_status unknown(const reader *r, const char *what)
{
    return tl_file_fail(&r->file, TL_EDOMAIN,
                        "%s; byte-level BPE as GPT-2 and Llama 3 have it is known", what);
}

static bool is(const json_t *object, const char *key, const char *value)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s != NULL && strcmp(s, value) == 0;
}

/* The pre_tokenizer is GPT-2's ByteLevel alone, or a Split by one of two patterns followed by it.
 */
static tl_status read_split(tl_tokenizer *k, const reader *r, const json_t *pre)
{
    static const char gpt2[] =
        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
                      llama3[] =
                          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
                          "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    const json_t *list = json_object_get(pre, "pretokenizers"), *bytes = pre, *split = NULL;
    if (is(pre, "type", "Sequence") && json_array_size(list) == 2)
        split = json_array_get(list, 0), bytes = json_array_get(list, 1);
    const json_t *pattern = json_object_get(split, "pattern"),
                 *by_itself = json_object_get(bytes, "use_regex");
    bool prefix, invert;
    TL_TRY(read_flag(r, bytes, "add_prefix_space", &prefix));
    TL_TRY(read_flag(r, split, "invert", &invert));
    TL_TRY(tl_of_kind(by_itself, json_is_boolean(by_itself), "use_regex", "a boolean", &r->file));
    if (!is(bytes, "type", "ByteLevel") || prefix)
        return unknown(r, "its pre_tokenizer is not ByteLevel without add_prefix_space");
    k->llama3 = is(pattern, "Regex", llama3);
    if (split == NULL ? json_is_false(by_itself)
                      : !json_is_false(by_itself) || !is(split, "type", "Split") ||
                            !is(split, "behavior", "Isolated") || invert ||
                            !(k->llama3 || is(pattern, "Regex", gpt2)))
        return unknown(r, "its pre_tokenizer splits by another pattern");
    return TL_OK;
}

/* Reads the tokens that a TemplateProcessing puts before and after a text. A second one in the file
 * is refused: its tokens would not simply be added. */
static tl_status read_around(tl_tokenizer *k, const reader *r, const json_t *post)
{
    const json_t *list = json_object_get(post, "processors");
    if (is(post, "type", "Sequence") && !json_is_array(list))
        return tl_file_fail(&r->file, TL_EFORMAT, "the post_processor has no array of processors");
    for (size_t i = 0; i < json_array_size(list); i++)
        TL_TRY(read_around(k, r, json_array_get(list, i)));
    if (post == NULL || json_is_null(post) || is(post, "type", "ByteLevel") ||
        is(post, "type", "Sequence"))
        return TL_OK;
    if (!is(post, "type", "TemplateProcessing") || k->templated)
        return unknown(r, "its post_processor is of another type, or has two templates");
    bool text = false;
    k->templated = true;
    const json_t *single = json_object_get(post, "single");
    if (!json_is_array(single))
        return tl_file_fail(&r->file, TL_EFORMAT, "the post_processor has no array \"single\"");
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i),
                     *special = json_object_get(piece, "SpecialToken");
        if (json_object_size(piece) != 1 ||
            (special == NULL && (text || !is(json_object_get(piece, "Sequence"), "id", "A"))))
            return unknown(r, "its post_processor puts together more than tokens and one text");
        text |= special == NULL;
        if (special == NULL)
            continue;
        const char *name = json_string_value(json_object_get(special, "id"));
        const json_t *of = json_object_get(post, "special_tokens"),
                     *ids = json_object_get(json_object_get(of, name != NULL ? name : ""), "ids");
        if (!json_is_array(ids))
            return tl_file_fail(&r->file, TL_EFORMAT,
                                "the post_processor's special_tokens have no ids of '%.60s'",
                                name != NULL ? name : "");
        for (size_t j = 0; j < json_array_size(ids); j++) {
            int *n = text ? &k->n_after : &k->n_before;
            int64_t id = json_integer_value(json_array_get(ids, j));
            if (!json_is_integer(json_array_get(ids, j)))
                return tl_file_fail(&r->file, TL_EFORMAT,
                                    "an id of the post_processor's '%.60s' is no whole number",
                                    name);
            if (*n == TL_AROUND_MAX || id < 0 || id >= k->size || k->token[id].bytes == NULL)
                return tl_file_fail(
                    &r->file, TL_EFORMAT,
                    "the post_processor's token %lld is none of %lld, or one more than %d",
                    (long long)id, (long long)k->size, (int)TL_AROUND_MAX);
            (text ? k->after : k->before)[(*n)++] = id;
        }
    }
    return text ? TL_OK : unknown(r, "its post_processor leaves the text out");
}

/* Sizes the tables by the largest id, but for no more ids than the file has bytes. */
static tl_status make_tables(tl_tokenizer *k, reader *r, json_t *vocab, const json_t *added)
{
    int64_t most = (int64_t)(r->bytes < INT32_MAX ? r->bytes : INT32_MAX), last = -1;
    const char *key;
    json_t *value;
    json_object_foreach(vocab, key, value)
    {
        if (json_integer_value(value) > last)
            last = json_integer_value(value);
    }
    for (size_t i = 0; i < json_array_size(added); i++) {
        int64_t id = json_integer_value(json_object_get(json_array_get(added, i), "id"));
        last = id > last ? id : last;
    }
    k->size = last < most ? last + 1 : most;
    k->merge.salt = tl_mix(1, (uintptr_t)k); /* of tokens as well: a file chooses the keys */
    for (k->places = 4; k->places < 2 * json_object_size(vocab) + 2;)
        k->places *= 2;
    k->token = tl_calloc((size_t)k->size + 1, sizeof *k->token);
    k->by_bytes = tl_calloc(k->places, sizeof *k->by_bytes);
    r->room = tl_calloc(r->bytes + 1, 1);
    if (k->token == NULL || k->by_bytes == NULL || r->room == NULL)
        return tl_file_fail(&r->file, TL_ENOMEM, "no memory for %lld tokens", (long long)k->size);
    for (size_t i = 0; i < k->places; i++)
        k->by_bytes[i] = -1;
    return TL_OK;
}

static tl_status read_model(tl_tokenizer *k, reader *r, const json_t *j)
{
    json_t *model = json_object_get(j, "model"), *vocab = json_object_get(model, "vocab"), *value;
    const json_t *merges = json_object_get(model, "merges"),
                 *added = json_object_get(j, "added_tokens"),
                 *drop = json_object_get(model, "dropout"),
                 *normalizer = json_object_get(j, "normalizer"),
                 *decoder = json_object_get(j, "decoder");
    static const char *const marks[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool fallback, marked = false;
    const char *key;
    if (json_object_get(model, "type") != NULL && !is(model, "type", "BPE"))
        return unknown(r, "its model is of another type");
    if (normalizer != NULL && !json_is_null(normalizer))
        return unknown(r, "it has a normalizer");
    if (decoder != NULL && !json_is_null(decoder) && !is(decoder, "type", "ByteLevel"))
        return unknown(r, "its decoder is not ByteLevel");
    for (int i = 0; i < 2; i++) {
        const json_t *mark = json_object_get(model, marks[i]);
        TL_TRY(tl_of_kind(mark, json_is_string(mark), marks[i], "a string", &r->file));
        marked |= json_string_length(mark) > 0;
    }
    TL_TRY(tl_of_kind(drop, json_is_number(drop), "dropout", "a number", &r->file));
    TL_TRY(read_flag(r, model, "byte_fallback", &fallback));
    TL_TRY(read_flag(r, model, "ignore_merges", &k->whole_words));
    if (json_number_value(drop) != 0 || fallback || marked)
        return unknown(r, "its model has dropout, byte_fallback, or parts of words marked");
    if (!json_is_object(vocab) || !json_is_array(merges))
        return tl_file_fail(&r->file, TL_EFORMAT, "the model has no vocab, or no merges");
    TL_TRY(make_tables(k, r, vocab, added));
    json_object_foreach(vocab, key, value)
    {
        TL_TRY(read_token(k, r, key, strlen(key), value, false));
    }
    for (size_t i = 0; i < json_array_size(merges); i++)
        TL_TRY(read_merge(k, r, json_array_get(merges, i), i));
    for (int b = 0; b < 256; b++) {
        k->byte[b] = *tl_token_place(k, (char[]){(char)b}, 1);
        if (k->byte[b] < 0)
            return tl_file_fail(&r->file, TL_EDOMAIN, "has no token for the byte %d", b);
    }
    return read_added(k, r, added);
}

tl_status tl_tokenizer_open_memory(tl_tokenizer **out, const void *bytes, size_t n,
                                   const char *name, tl_err *err)
{
    TL_TRY(TL_NEED(err, out));
    *out = NULL;
    TL_TRY(TL_NEED_N(err, bytes, n > 0));
    reader r = {.file = {name == NULL ? "memory" : name, err}, .bytes = n};
    json_t *j;
    TL_TRY(tl_source_json(&j, &r.file, bytes, n));
    tl_tokenizer *k = tl_calloc(1, sizeof *k);
    tl_status s = k == NULL ? tl_file_fail(&r.file, TL_ENOMEM, "no memory to open it") : TL_OK;
    map_bytes(&r);
    if (s == TL_OK && (s = read_model(k, &r, j)) == TL_OK &&
        (s = read_split(k, &r, json_object_get(j, "pre_tokenizer"))) == TL_OK)
        s = read_around(k, &r, json_object_get(j, "post_processor"));
    json_decref(j);
    tl_free_raw(r.room);
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
    tl_key_map_free(&k->merge);
    tl_free_raw(k->added);
    tl_free_raw(k);
}
