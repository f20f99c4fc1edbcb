/* Which folder includes which: tensor <- autograd <- ops <- nn <- examples, one way; what nn
 * includes of the layers below is public: in tally.h, or said to be so by the header. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <string.h>

extern const struct CMUnitTest tl_tests_includes[];
extern const size_t tl_tests_includes_count;

enum { LAYERS = 5, NN = 3, PATH = 512 };
static const char *const layer[LAYERS] = {"tensor", "autograd", "ops", "nn", "examples"};

static int layer_of(const char *path)
{
    for (int i = 0; i < LAYERS; i++)
        if (strncmp(path, layer[i], strlen(layer[i])) == 0 && path[strlen(layer[i])] == '/')
            return i;
    return -1;
}

/* The file, whole up to a size, in buf. */
static void read_file(const char *path, char *buf, size_t room)
{
    char full[2 * PATH];
    snprintf(full, sizeof full, TL_ROOT "/%s", path);
    FILE *f = fopen(full, "r");
    if (f == NULL)
        fail_msg("%s is not there", full);
    buf[fread(buf, 1, room - 1, f)] = '\0';
    fclose(f);
}

static int is_public(const char *header)
{
    char buf[4096], want[PATH];
    snprintf(want, sizeof want, "#include \"%.400s\"", header);
    read_file("tally.h", buf, sizeof buf);
    if (strstr(buf, want) != NULL)
        return 1;
    read_file(header, buf, sizeof buf);
    char *end = strstr(buf, "*/");
    if (end != NULL)
        *end = '\0';
    return end != NULL && strstr(buf, "Public") != NULL;
}

static int files, lines, bad;

static void check_line(const char *path, const char *header)
{
    int from = layer_of(path), to = layer_of(header);
    lines++;
    if (to < 0 || to > from) {
        print_error("%s includes %s\n", path, header);
        bad++;
    } else if (from == NN && to < from && !is_public(header)) {
        print_error("%s includes %s, which is not public\n", path, header);
        bad++;
    }
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

static void check_folder(const char *path)
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
        else if (e->d_type == DT_DIR && e->d_name[0] != '.')
            check_folder(below);
    }
    closedir(d);
}

static void includes_point_one_way(void **unused)
{
    (void)unused;
    files = lines = bad = 0;
    for (int i = 0; i < LAYERS; i++)
        check_folder(layer[i]);
    assert_true(files > 100 && lines > 200); /* the listing is what it should be */
    assert_int_equal(bad, 0);
    assert_false(is_public("autograd/internal.h"));
    assert_true(is_public("autograd/tape.h"));
}

const struct CMUnitTest tl_tests_includes[] = {
    cmocka_unit_test(includes_point_one_way),
};
const size_t tl_tests_includes_count = sizeof tl_tests_includes / sizeof tl_tests_includes[0];
