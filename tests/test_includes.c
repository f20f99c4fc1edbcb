/* The walls between the rooms of the house: who may include whom, and who may call whom.
 *
 * A room is a folder. The table gives the rooms that each may look into, besides itself; any other
 * #include fails, and so does any other call, which the object files show. Calls between files run
 * one way, in a room, too. What nn includes of the layers below is public or for all rooms, as the
 * header says. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

extern const struct CMUnitTest tl_tests_includes[];
extern const size_t tl_tests_includes_count;

enum { PATH = 512, SYMBOLS = 1 << 14 };

/* clang-format off */
static const struct {
    const char *name, *sees; /* sees: rooms, each between blanks */
} room[] = {
    {"tensor",           " tensor/kernels tensor/files "},
    {"tensor/kernels",   " tensor "},
    {"tensor/files",     " tensor "},
    {"tensor/reveal",    " tensor "},
    {"autograd",         " tensor tensor/files "},
    {"autograd/kernels", " autograd tensor "},
    {"autograd/batch",   " autograd tensor "},
    {"autograd/check",   " autograd autograd/batch tensor "},
    {"autograd/log",     " autograd autograd/batch tensor tensor/files "},
    {"autograd/log/read", " autograd/log tensor tensor/files "},
    {"autograd/graph",   " autograd autograd/batch autograd/log tensor "},
    {"autograd/replace", " autograd autograd/batch autograd/graph tensor "},
    {"ops",              " autograd autograd/batch tensor tensor/kernels "},
    {"ops/patterns",     " ops autograd autograd/replace tensor "},
    {"nn",               " ops autograd autograd/batch autograd/check autograd/log "
                         "tensor tensor/files "},
    {"nn/group",         " nn ops autograd autograd/batch autograd/check tensor "},
    {"examples",         " nn nn/group ops autograd autograd/log autograd/log/read tensor "
                         "tensor/files "},
    {"examples/course",  " autograd/log/read "},
};
/* Declared in a lower room and filled in an upper one: the engine's six ops, the lists of what
 * there is, the table of kernels with the selections from it, what the engine asks about samples
 * (autograd/batch.h), and the pass over a graph that puts replacements into it. */
static const char sockets[] = " tl_op_add tl_op_fill tl_op_assign tl_op_sum_to "
                              "tl_op_stack_samples tl_op_slice "
                              "tl_ops_shipped tl_kernel_for tl_choice_fast tl_choice_is_own "
                              "tl_choice_open tl_choice_follow tl_choices_free tl_probe_numbers "
                              "tl_probes_shipped tl_kernels_shipped tl_observers_shipped "
                              "tl_shipped_replacements tl_graph_replaces tl_batch_infer "
                              "tl_batch_assigns tl_batch_unfix "
                              "tl_leaf_grad_find tl_leaf_grad_get tl_leaf_grad_sum "
                              "tl_leaf_grads_drop tl_grads_drop tl_check_waiting "
                              "tl_fold_deal tl_fold_asks tl_fold_deliver "
                              "tl_fold_visited tl_prints_check tl_prints_step "
                              "tl_prints_end tl_prints_clear tl_prints_free "
                              "tl_derived_leaf "
                              "tl_derived_reach tl_derived_settle tl_derived_unsettle "
                              "tl_derived_reset "
                              "tl_derived_agree tl_derived_forget tl_again_apply ";
/* clang-format on */
enum { ROOMS = sizeof room / sizeof *room };

/* The room of a path: the folder that it lies in; -1: none of ours. */
static int room_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    for (int i = 0; slash != NULL && i < ROOMS; i++)
        if (strlen(room[i].name) == (size_t)(slash - path) &&
            strncmp(path, room[i].name, (size_t)(slash - path)) == 0)
            return i;
    return -1;
}

static int sees(int from, int to)
{
    char word[64];
    snprintf(word, sizeof word, " %s ", room[to].name);
    return from == to || strstr(room[from].sees, word) != NULL;
}

/* The file, whole up to a size, in buf. */
static void read_file(const char *path, char *buf, size_t size)
{
    char full[2 * PATH];
    snprintf(full, sizeof full, TL_ROOT "/%s", path);
    FILE *f = fopen(full, "r");
    if (f == NULL)
        fail_msg("%s is not there", full);
    buf[fread(buf, 1, size - 1, f)] = '\0';
    fclose(f);
}

static int is_for_nn(const char *header)
{
    char buf[1 << 14];
    read_file(header, buf, sizeof buf);
    char *end = strstr(buf, "*/");
    if (end != NULL)
        *end = '\0';
    return end != NULL && (strstr(buf, "Public.") != NULL || strstr(buf, "For all rooms.") != NULL);
}

static int files, lines, bad;

static void check_line(const char *path, const char *header)
{
    int from = room_of(path), to = room_of(header);
    lines++;
    if (from >= 0 && to >= 0 && sees(from, to) &&
        (strcmp(room[from].name, "nn") != 0 || from == to || is_for_nn(header)))
        return;
    print_error("%s includes %s\n", path, header);
    bad++;
}

static void check_file(const char *path)
{
    char full[2 * PATH], line[1024], header[PATH];
    snprintf(full, sizeof full, TL_ROOT "/%s", path);
    FILE *f = fopen(full, "r");
    assert_non_null(f);
    files++;
    while (fgets(line, sizeof line, f) != NULL)
        if (sscanf(line, " # include \"%500[^\"]\"", header) == 1)
            check_line(path, header);
    fclose(f);
}

static void check_room(const char *path)
{
    char full[2 * PATH], below[PATH];
    snprintf(full, sizeof full, TL_ROOT "/%s", path);
    DIR *d = opendir(full);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        size_t n = strlen(e->d_name);
        snprintf(below, sizeof below, "%.200s/%.255s", path, e->d_name);
        if (n > 2 && (strcmp(e->d_name + n - 2, ".c") == 0 || strcmp(e->d_name + n - 2, ".h") == 0))
            check_file(below);
    }
    closedir(d);
}

static void includes_keep_to_the_table(void **unused)
{
    (void)unused;
    files = lines = bad = 0;
    for (int i = 0; i < ROOMS; i++)
        check_room(room[i].name);
    assert_true(files > 100 && lines > 200); /* the listing is what it should be */
    assert_int_equal(bad, 0);
    assert_false(is_for_nn("autograd/internal.h"));
    assert_true(is_for_nn("autograd/tape.h"));
}

/* ---- calls ---- */

enum { SOURCES = 400 };
static char source[SOURCES][PATH]; /* every source file of the rooms that calls are looked up in */
static int sources;

typedef struct {
    char name[96], kind;
    int room, source;
} symbol;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const symbol *)a)->name, ((const symbol *)b)->name);
}

/* Lines of nm: the symbols of the objects of one room, defined or wanted; before those of a source
 * file, its name. */
static void list_symbols(int r, symbol *defined, int *n_defined, symbol *wanted, int *n_wanted)
{
    char command[4 * PATH], line[1024];
    snprintf(command, sizeof command,
             "cd '" TL_ROOT "' && for c in %s/*.c; do echo \"@ $c\"; for o in '" TL_BUILD
             "'/${c%%%%.*}.*o; do "
             "[ -e \"$o\" ] && nm \"$o\"; done; done",
             room[r].name);
    FILE *nm = popen(command, "r");
    assert_non_null(nm);
    while (fgets(line, sizeof line, nm) != NULL) {
        symbol x = {.kind = 'U', .room = r, .source = sources - 1};
        if (sscanf(line, "@ %511s", source[sources]) == 1) {
            assert_true(++sources < SOURCES);
        } else if (sscanf(line, " U %95s", x.name) == 1) {
            assert_true(*n_wanted < SYMBOLS);
            wanted[(*n_wanted)++] = x;
        } else if (sscanf(line, "%*s %c %95s", &x.kind, x.name) == 2 &&
                   strchr("TDRB", x.kind) != NULL) {
            assert_true(*n_defined < SYMBOLS);
            defined[(*n_defined)++] = x;
        }
    }
    pclose(nm);
}

/* reaches[i][j]: file i calls file j, or one that reaches it. */
static bool reaches[SOURCES][SOURCES];

/* No file calls one that calls it back, by whatever way. (A struct of functions, such as an op, may
 * lead upwards.) */
static void check_circles(const symbol *defined, int n_defined, const symbol *wanted, int n_wanted)
{
    int calls = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < n_wanted; i++) {
            const symbol *w = &wanted[i],
                         *d = bsearch(w, defined, (size_t)n_defined, sizeof *d, by_name);
            if (d == NULL || d->kind != 'T' || d->source == w->source)
                continue;
            if (pass == 0) {
                reaches[w->source][d->source] = true;
                calls++;
            } else if (reaches[d->source][w->source]) {
                print_error("%s calls %s of %s, which calls it back\n", source[w->source], d->name,
                            source[d->source]);
                bad++;
            }
        }
        for (int k = 0; pass == 0 && k < sources; k++)
            for (int i = 0; i < sources; i++)
                for (int j = 0; reaches[i][k] && j < sources; j++)
                    reaches[i][j] |= reaches[k][j];
    }
    assert_true(calls > 1000); /* the listing is what it should be */
}

static void calls_keep_to_the_table(void **unused)
{
    (void)unused;
    symbol *defined = malloc(SYMBOLS * sizeof *defined), *wanted = malloc(SYMBOLS * sizeof *wanted);
    int n_defined = 0, n_wanted = 0, across = 0;
    char unmet[sizeof sockets];
    strcpy(unmet, sockets);
    assert_non_null(defined);
    assert_non_null(wanted);
    bad = sources = 0;
    for (int i = 0; i < ROOMS; i++)
        if (strncmp(room[i].name, "examples", 8) != 0)
            list_symbols(i, defined, &n_defined, wanted, &n_wanted);
    qsort(defined, (size_t)n_defined, sizeof *defined, by_name);
    qsort(wanted, (size_t)n_wanted, sizeof *wanted, by_name);
    for (int i = 0; i < n_wanted; i++) {
        const symbol *d = bsearch(&wanted[i], defined, (size_t)n_defined, sizeof *d, by_name);
        char word[128];
        snprintf(word, sizeof word, " %s ", wanted[i].name);
        across += d != NULL && d->room != wanted[i].room;
        if (d == NULL || sees(wanted[i].room, d->room))
            continue;
        char *met = strstr(unmet, word);
        if (met != NULL)
            memset(met + 1, ' ', strlen(wanted[i].name));
        if (strstr(sockets, word) != NULL)
            continue;
        print_error("%s calls %s, which is in %s\n", room[wanted[i].room].name, d->name,
                    room[d->room].name);
        bad++;
    }
    check_circles(defined, n_defined, wanted, n_wanted);
    free(defined);
    free(wanted);
    assert_true(across > 300); /* the listing is what it should be */
    if (strspn(unmet, " ") != strlen(unmet))
        fail_msg("nobody in a lower room calls%s", unmet);
    assert_int_equal(bad, 0);
}

/* The engine is read in an evening, and knows neither what watches it nor what redirects it. */
static void the_engine_keeps_its_size(void **unused)
{
    enum { FILES = 18, LINES = 4000, COLUMNS = 100 };
    static const char blanks[] = " \t\n/*.,:;()-'\"<>{}&|!=+";
    char path[2 * PATH], line[1024];
    int files_c = 0, total = 0;
    (void)unused;
    DIR *d = opendir(TL_ROOT "/autograd");
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d)) != NULL;) {
        const char *end = strrchr(e->d_name, '.');
        const int is_c = end != NULL && strcmp(end, ".c") == 0;
        if (!is_c && (end == NULL || strcmp(end, ".h") != 0))
            continue;
        snprintf(path, sizeof path, TL_ROOT "/autograd/%.255s", e->d_name);
        FILE *f = fopen(path, "r");
        assert_non_null(f);
        for (int n = 1; fgets(line, sizeof line, f) != NULL; n++) {
            if (strcspn(line, "\n") > COLUMNS)
                fail_msg("%s:%d has %zu columns", path, n, strcspn(line, "\n"));
            total += is_c;
            for (char *w = strtok(line, blanks); w != NULL; w = strtok(NULL, blanks))
                if (strcasecmp(w, "log") == 0 || strcasecmp(w, "logs") == 0 ||
                    strcasecmp(w, "tracing") == 0)
                    fail_msg("%s:%d says '%s'", path, n, w);
        }
        files_c += is_c;
        fclose(f);
    }
    closedir(d);
    if (files_c == 0 || files_c > FILES || total > LINES)
        fail_msg("the engine has %d lines in %d files; at most %d in %d", total, files_c, LINES,
                 FILES);
}

const struct CMUnitTest tl_tests_includes[] = {
    cmocka_unit_test(the_engine_keeps_its_size),
    cmocka_unit_test(includes_keep_to_the_table),
    cmocka_unit_test(calls_keep_to_the_table),
};
const size_t tl_tests_includes_count = sizeof tl_tests_includes / sizeof tl_tests_includes[0];
