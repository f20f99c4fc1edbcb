#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/declared.h"

char *output_of(const char *command)
{
    enum { TEXT = 1 << 20 };
    char *text = calloc(1, TEXT);
    FILE *p = popen(command, "r");
    assert_non_null(text);
    assert_non_null(p);
    size_t n = fread(text, 1, TEXT - 1, p);
    if (pclose(p) != 0 || n == TEXT - 1)
        fail_msg("%s\n%s", command, text);
    return text;
}

void add_name(name_list *l, const char *begin, const char *end, bool function)
{
    assert_true(l->n < (int)(sizeof l->name / sizeof *l->name) && end - begin < 64);
    l->name[l->n].function = function;
    snprintf(l->name[l->n++].text, 64, "%.*s", (int)(end - begin), begin);
}

bool has_name(const name_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->name[i].text, name) == 0)
            return true;
    return false;
}

/* The function or object of ours that a declaration names; what stands in brackets is left out. */
static void add_one(name_list *l, const char *declaration)
{
    const char *end = strpbrk(declaration, "([");
    if (end == NULL)
        end = declaration + strlen(declaration);
    while (end > declaration && isspace((unsigned char)end[-1]))
        end--;
    const char *begin = end;
    while (begin > declaration && (isalnum((unsigned char)begin[-1]) || begin[-1] == '_'))
        begin--;
    bool function = strchr(end, '(') != NULL;
    if (strncmp(begin, "tl_", 3) == 0 && strncmp(declaration, "typedef", 7) != 0 &&
        strncmp(declaration, "static", 6) != 0 &&
        (function || strncmp(declaration, "extern", 6) == 0))
        add_name(l, begin, end, function);
}

void add_declared(name_list *l, const char *header)
{
    char command[1024], now[8192];
    snprintf(command, sizeof command,
             "cd '" TL_ROOT "' && ${CC:-cc} -std=c11 -D_DEFAULT_SOURCE -I. -E -P "
             "-include tally_data.h -include tally_models.h -include tally_bind.h "
             "-include tally_extend.h %s",
             header);
    char *text = output_of(command);
    int n = 0, depth = 0, round = 0;
    for (const char *c = text; *c != '\0'; c++) {
        if (*c == '#') {
            c = strchr(c, '\n');
            continue;
        }
        depth += (*c == '{') - (*c == '}');
        if (depth > 0 || (n == 0 && isspace((unsigned char)*c)))
            continue;
        if (*c == '}' && memchr(now, '(', (size_t)n) != NULL) { /* of a function's body */
            n = 0;
            continue;
        }
        round += (*c == '(') - (*c == ')');
        if (*c == ';' && round == 0) {
            now[n] = '\0';
            add_one(l, now);
            n = 0;
        } else if (round == 0 || (round == 1 && *c == '(')) {
            assert_true(n < (int)sizeof now - 1);
            now[n++] = *c;
        }
    }
    free(text);
}
