/* math_sources.c: see math_sources.h. */
#include "tests/support/math_sources.h"

#include <stdio.h>
#include <string.h>

enum { FILES = 64, NAME = 128, LINE = 1024 };

typedef struct {
    char name[FILES][NAME];
    int n;
} file_list;

static void add_once(file_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->name[i], name) == 0)
            return;
    if (l->n < FILES)
        snprintf(l->name[l->n++], NAME, "%s", name);
}

static FILE *open_source(const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", TL_ROOT, name);
    return fopen(path, "r");
}

/* The whole file goes into the hash, what it includes onto the list. */
static bool feed_file(tl_sha256_ctx *ctx, file_list *l, const char *name)
{
    char line[LINE], header[NAME];
    FILE *f = open_source(name);
    if (f == NULL)
        return false;
    tl_hash_string(ctx, name);
    while (fgets(line, sizeof line, f) != NULL) {
        tl_sha256_feed(ctx, line, strlen(line));
        if (sscanf(line, " # include \"%127[^\"]\"", header) == 1)
            add_once(l, header);
    }
    bool whole = ferror(f) == 0;
    fclose(f);
    return whole;
}

static bool feed_flags(tl_sha256_ctx *ctx)
{
    char line[LINE];
    bool continued = false;
    FILE *f = open_source("Makefile");
    if (f == NULL)
        return false;
    while (fgets(line, sizeof line, f) != NULL) {
        if (continued || strncmp(line, "BITS", 4) == 0 || strncmp(line, "FLAGS_", 6) == 0)
            tl_hash_string(ctx, line);
        else
            continue;
        continued = strstr(line, "\\\n") != NULL;
    }
    bool whole = ferror(f) == 0;
    fclose(f);
    return whole;
}

bool tl_math_sources(char hex[TL_SHA256_HEX])
{
    file_list l = {.n = 0};
    tl_sha256_ctx ctx;
    tl_err err;
    if (tl_sha256_begin(&ctx, &err) != TL_OK)
        return false;
    add_once(&l, "tensor/kernels/math.k.c");
    bool good = true;
    for (int i = 0; i < l.n; i++)
        good = feed_file(&ctx, &l, l.name[i]) && good;
    good = feed_flags(&ctx) && good;
    return tl_sha256_finish_hex(&ctx, hex, &err) == TL_OK && good && l.n < FILES;
}

bool tl_math_golden(const char *name, const char *hex)
{
    char line[LINE], n[64], h[128];
    bool found = false;
    FILE *f = open_source("tests/golden/math32.txt");
    while (f != NULL && fgets(line, sizeof line, f) != NULL)
        found |= sscanf(line, "%63s %127s", n, h) == 2 && strcmp(n, name) == 0 &&
                 strcmp(h, hex) == 0;
    if (f != NULL)
        fclose(f);
    return found;
}
