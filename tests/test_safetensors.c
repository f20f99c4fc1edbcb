/* test_safetensors.c: what is written comes back, byte for byte predictable, and
 * the old file survives whatever stops a write. */
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "tensor/storage.h"
#include "tensor/files/file.h"
#include "tensor/files/safetensors.h"
#include "tests/temp_dir.h"

typedef struct {
    temp_dir dir;
    char path[1024];
} fixture;

static int setup(void **state)
{
    fixture *f = calloc(1, sizeof *f);
    if (f == NULL || !temp_dir_make(&f->dir))
        return -1;
    temp_dir_file(f->path, &f->dir, "a.safetensors");
    *state = f;
    return 0;
}

static int teardown(void **state)
{
    fixture *f = *state;
    temp_dir_remove(&f->dir);
    free(f);
    return 0;
}

static void expect_bytes(const char *path, const void *want, size_t n)
{
    char *data;
    size_t got;
    assert_int_equal(tl_file_read(path, 1 << 24, &data, &got, NULL), TL_OK);
    assert_int_equal(got, n);
    assert_memory_equal(data, want, n);
    tl_free_raw(data);
}

/* The whole file, spelled: keys sorted, no spaces but the padding, offsets in order. */
static void the_bytes_are_these(void **state)
{
    fixture *f = *state;
    int64_t i[1] = {-2};
    float x[2] = {1.0f, -NAN};
    unsigned char b[3] = {1, 0, 7};
    tl_st_entry e[] = {
        {"w", tl_array_make(TL_F32, &TL_DIMS(2, 1), x)},
        {"a\"\n", tl_array_make(TL_BOOL, &TL_DIMS(3), b)},
        {"Z", tl_array_make(TL_I64, &TL_SCALAR, i)},
    };
    tl_st_meta meta[] = {{"step", "12"}, {"by", "\xc3\xa9"}};
    static const char header[] =
        "{\"__metadata__\":{\"by\":\"\xc3\xa9\",\"step\":\"12\"},"
        "\"Z\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]},"
        "\"a\\\"\\n\":{\"dtype\":\"BOOL\",\"shape\":[3],\"data_offsets\":[8,11]},"
        "\"w\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[11,19]}}";
    static const char data[] = "\xfe\xff\xff\xff\xff\xff\xff\xff\1\0\1\0\0\x80\x3f\0\0\xc0\x7f";
    char want[512] = {0};
    size_t n = (sizeof header - 1 + 7) / 8 * 8;
    memset(want + 8, ' ', n);
    memcpy(want + 8, header, sizeof header - 1);
    want[0] = (char)n;
    want[1] = (char)(n >> 8);
    memcpy(want + 8 + n, data, 19);
    assert_int_equal(tl_st_write(f->path, e, 3, meta, 2, NULL), TL_OK);
    expect_bytes(f->path, want, 8 + n + 19);
    /* Whatever the order in which they are given. */
    tl_st_entry other[] = {e[2], e[0], e[1]};
    tl_st_meta swapped[] = {meta[1], meta[0]};
    assert_int_equal(tl_st_write(f->path, other, 3, swapped, 2, NULL), TL_OK);
    expect_bytes(f->path, want, 8 + n + 19);
}

static void every_dtype_and_shape_comes_back(void **state)
{
    fixture *f = *state;
    enum { SHAPES = 6, N = (TL_DTYPE_COUNT - TL_F64) * SHAPES };
    tl_shape shapes[SHAPES] = {TL_SCALAR,  TL_DIMS(1),       TL_DIMS(7),
                               TL_DIMS(0), TL_DIMS(3, 0, 2), TL_DIMS(2, 1, 3, 1, 1, 2, 1, 5)};
    static unsigned char bytes[8 * 60];
    static double copy[60];
    tl_st_entry e[N];
    char names[N][32];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (unsigned char)(i * 37 % 97 / 3); /* no NaN in any dtype */
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "t%d.%d", i % SHAPES, i / SHAPES);
        e[i] = (tl_st_entry){names[i], tl_array_make((tl_dtype)(TL_F64 + i / SHAPES),
                                                     &shapes[i % SHAPES], bytes)};
    }
    static unsigned char bools[60];
    for (int i = 0; i < N; i++)
        if (e[i].array.dtype == TL_BOOL)
            e[i].array.data = bools;
    bools[1] = bools[58] = 1;
    assert_int_equal(tl_st_write(f->path, e, N, NULL, 0, NULL), TL_OK);
    tl_st_file *file;
    assert_int_equal(tl_st_open(&file, f->path, NULL), TL_OK);
    assert_int_equal(tl_st_count(file), N);
    assert_int_equal(tl_st_meta_count(file), 0);
    for (int i = 0; i < N; i++) {
        int at = tl_st_find(file, names[i]);
        tl_st_entry got = tl_st_at(file, at);
        assert_string_equal(got.name, names[i]);
        assert_int_equal(got.array.dtype, e[i].array.dtype);
        assert_true(tl_array_same_shape(&got.array, &e[i].array));
        size_t size = tl_dtype_size(got.array.dtype), n = (size_t)tl_array_count(&got.array) * size;
        assert_true((uintptr_t)got.array.data % size == 0);
        assert_memory_equal(got.array.data, e[i].array.data, n);
        tl_array dst = tl_array_make(got.array.dtype, &shapes[i % SHAPES], copy);
        memset(copy, 0xa5, sizeof copy);
        assert_int_equal(tl_st_read(file, at, &dst, NULL), TL_OK);
        assert_memory_equal(copy, e[i].array.data, n);
    }
    tl_st_close(file);
}

static void strides_are_written_in_order(void **state)
{
    fixture *f = *state;
    float x[6] = {1, 2, 3, 4, 5, 6}, want[6] = {1, 4, 2, 5, 3, 6}, back[6] = {0};
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(3, 2), x);
    a.stride[0] = 1, a.stride[1] = 3;
    tl_st_entry e = {"x", a};
    assert_int_equal(tl_st_write(f->path, &e, 1, NULL, 0, NULL), TL_OK);
    tl_st_file *file;
    assert_int_equal(tl_st_open(&file, f->path, NULL), TL_OK);
    assert_memory_equal(tl_st_at(file, 0).array.data, want, sizeof want);
    a.data = back;
    assert_int_equal(tl_st_read(file, 0, &a, NULL), TL_OK);
    assert_memory_equal(back, x, sizeof x);
    tl_st_close(file);
}

static void metadata_and_nothing_else(void **state)
{
    fixture *f = *state;
    tl_st_meta meta[] = {{"b", ""}, {"a", "x\ty"}, {"", "empty key"}};
    tl_st_file *file;
    assert_int_equal(tl_st_write(f->path, NULL, 0, meta, 3, NULL), TL_OK);
    assert_int_equal(tl_st_open(&file, f->path, NULL), TL_OK);
    assert_int_equal(tl_st_count(file), 0);
    assert_int_equal(tl_st_meta_count(file), 3);
    assert_string_equal(tl_st_meta_get(file, "a"), "x\ty");
    assert_string_equal(tl_st_meta_get(file, "b"), "");
    assert_string_equal(tl_st_meta_at(file, 0).value, "empty key");
    assert_null(tl_st_meta_get(file, "c"));
    assert_null(tl_st_meta_at(file, 3).key);
    assert_null(tl_st_at(file, 0).name);
    tl_st_close(file);
    assert_int_equal(tl_st_write(f->path, NULL, 0, NULL, 0, NULL), TL_OK);
    expect_bytes(f->path, "\10\0\0\0\0\0\0\0{}      ", 16);
    assert_int_equal(tl_st_open(&file, f->path, NULL), TL_OK);
    tl_st_close(file);
    tl_st_close(NULL);
}

static void reading_into_the_wrong_array_is_said(void **state)
{
    fixture *f = *state;
    float x[6] = {0};
    tl_st_entry e = {"layer.w", tl_array_make(TL_F32, &TL_DIMS(2, 3), x)};
    tl_st_file *file;
    tl_err err = {0};
    assert_int_equal(tl_st_write(f->path, &e, 1, NULL, 0, NULL), TL_OK);
    assert_int_equal(tl_st_open(&file, f->path, NULL), TL_OK);
    tl_array dst = tl_array_make(TL_F32, &TL_DIMS(3, 2), x);
    assert_int_equal(tl_st_read(file, 0, &dst, &err), TL_ESHAPE);
    assert_string_equal(err.message,
                        "tensor \"layer.w\" has shape [2, 3] in the file, but [3, 2] is expected");
    dst = tl_array_make(TL_BF16, &TL_DIMS(2, 3), x);
    assert_int_equal(tl_st_read(file, 0, &dst, NULL), TL_EDTYPE);
    assert_int_equal(tl_st_read(file, 1, &e.array, NULL), TL_EINDEX);
    assert_int_equal(tl_st_read(file, -1, &e.array, NULL), TL_EINDEX);
    assert_int_equal(tl_st_find(file, "layer"), -1);
    tl_st_close(file);
}

static void refuse(const fixture *f, tl_st_entry *e, int n, tl_st_meta *m, int n_meta, tl_status s,
                   const char *why)
{
    tl_err err = {0};
    assert_int_equal(tl_st_write(f->path, e, n, m, n_meta, &err), s);
    assert_non_null(strstr(err.message, why));
    assert_int_equal(temp_dir_count(&f->dir), 0);
}

static void what_cannot_be_written_is_said(void **state)
{
    fixture *f = *state;
    float x[2] = {0};
    tl_array a = tl_array_make(TL_F32, &TL_DIMS(2), x),
             none = tl_array_make(TL_F32, &TL_DIMS(2), NULL), bad = a;
    refuse(f, (tl_st_entry[]){{"x", a}, {"y", a}, {"x", a}}, 3, NULL, 0, TL_ENAME,
           "two tensors are named \"x\"");
    refuse(f, (tl_st_entry[]){{"__metadata__", a}}, 1, NULL, 0, TL_ENAME, "reserved");
    refuse(f, (tl_st_entry[]){{"\xff", a}}, 1, NULL, 0, TL_ENAME, "not valid UTF-8");
    refuse(f, (tl_st_entry[]){{"\xed\xa0\x80", a}}, 1, NULL, 0, TL_ENAME, "not valid UTF-8");
    refuse(f, (tl_st_entry[]){{NULL, a}}, 1, NULL, 0, TL_ENAME, "tensor 0: the name is NULL");
    refuse(f, (tl_st_entry[]){{"x", none}}, 1, NULL, 0, TL_EUSAGE, "2 elements, but no data");
    bad.dtype = (tl_dtype)77;
    refuse(f, (tl_st_entry[]){{"x", bad}}, 1, NULL, 0, TL_EDTYPE, "77 is not a dtype");
    bad = a, bad.ndim = 9;
    refuse(f, (tl_st_entry[]){{"x", bad}}, 1, NULL, 0, TL_ESHAPE, "9 dims");
    refuse(f, NULL, 0, (tl_st_meta[]){{"k", "1"}, {"k", "2"}}, 2, TL_ENAME, "key \"k\"");
    refuse(f, NULL, 0, (tl_st_meta[]){{"k", "\x80"}}, 1, TL_ENAME, "metadata 0: the value");
    refuse(f, NULL, 0, (tl_st_meta[]){{"\xff", "1"}}, 1, TL_ENAME,
           "metadata 0: the key \"\xff\" is not valid UTF-8");
    refuse(f, NULL, 0, (tl_st_meta[]){{"k", "1"}, {NULL, "1"}}, 2, TL_ENAME,
           "metadata 1: the key is NULL");
    refuse(f, NULL, 0, (tl_st_meta[]){{"k", NULL}}, 1, TL_ENAME, "metadata 0: the value is NULL");
    refuse(f, NULL, -1, NULL, 0, TL_EUSAGE, "-1 tensors");
    refuse(f, NULL, 0, NULL, -1, TL_EUSAGE, "-1 metadata");
}

static tl_status write_ones(const char *path, float value, int64_t n, tl_err *err)
{
    static float x[4000];
    for (int64_t i = 0; i < n; i++)
        x[i] = value;
    tl_st_entry e = {"x", tl_array_make(TL_F32, &TL_DIMS(n), x)};
    return tl_st_write(path, &e, 1, NULL, 0, err);
}

static float first_value(const char *path)
{
    tl_st_file *file;
    assert_int_equal(tl_st_open(&file, path, NULL), TL_OK);
    float v = *(const float *)tl_st_at(file, 0).array.data;
    tl_st_close(file);
    return v;
}

static void a_full_disk_leaves_the_old_file(void **state)
{
    fixture *f = *state;
    int status = -1;
    assert_int_equal(write_ones(f->path, 1, 10, NULL), TL_OK);
    pid_t pid = fork();
    if (pid == 0) {
        struct rlimit limit = {9000, 9000};
        tl_err err = {0};
        signal(SIGXFSZ, SIG_DFL);
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0)
            _exit(1);
        _exit(write_ones(f->path, 2, 4000, &err) == TL_EIO &&
                      strstr(err.message, "after the first 9000")
                  ? 0
                  : 2);
    }
    assert_true(pid > 0 && waitpid(pid, &status, 0) == pid);
    assert_int_equal(status, 0);
    assert_true(first_value(f->path) == 1);
    assert_int_equal(temp_dir_count(&f->dir), 1);
}

/* Killed at any moment of endless writing: the file is one of the whole ones. */
static void kills_leave_a_whole_file(void **state)
{
    fixture *f = *state;
    assert_int_equal(write_ones(f->path, 1, 4000, NULL), TL_OK);
    for (int i = 0; i < 20; i++) {
        int status = -1;
        pid_t pid = fork();
        if (pid == 0)
            for (;;)
                (void)write_ones(f->path, (float)(2 + i), 4000, NULL);
        assert_true(pid > 0);
        usleep((useconds_t)(300 + 700 * i));
        kill(pid, SIGKILL);
        assert_true(waitpid(pid, &status, 0) == pid && WIFSIGNALED(status));
        float v = first_value(f->path);
        assert_true(v >= 1 && v <= (float)(2 + i));
    }
}

static void no_memory_is_said_and_leaks_nothing(void **state)
{
    fixture *f = *state;
    tl_st_file *file;
    bool wrote = false, opened = false;
    assert_int_equal(write_ones(f->path, 1, 10, NULL), TL_OK);
    for (int n = 1; n <= 20 && !wrote; n++) {
        tl_err err = {0};
        tl_alloc_fail_after(n);
        tl_status s = write_ones(f->path, 2, 10, &err);
        tl_alloc_fail_after(0);
        assert_true(s == TL_ENOMEM || (s == TL_OK && n > 3));
        wrote = s == TL_OK;
        assert_true(first_value(f->path) == (wrote ? 2.0f : 1.0f));
        assert_int_equal(temp_dir_count(&f->dir), 1);
    }
    for (int n = 1; n <= 20 && !opened; n++) {
        tl_alloc_fail_after(n);
        tl_status s = tl_st_open(&file, f->path, NULL);
        tl_alloc_fail_after(0);
        assert_true(s == TL_ENOMEM || (s == TL_OK && n > 3));
        opened = s == TL_OK;
        assert_true(opened == (file != NULL));
        tl_st_close(file);
    }
    assert_true(wrote && opened);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
const struct CMUnitTest tl_tests_safetensors[] = {
    TEST(the_bytes_are_these),
    TEST(every_dtype_and_shape_comes_back),
    TEST(strides_are_written_in_order),
    TEST(metadata_and_nothing_else),
    TEST(reading_into_the_wrong_array_is_said),
    TEST(what_cannot_be_written_is_said),
    TEST(a_full_disk_leaves_the_old_file),
    TEST(kills_leave_a_whole_file),
    TEST(no_memory_is_said_and_leaks_nothing),
};
const size_t tl_tests_safetensors_count = sizeof tl_tests_safetensors /
                                          sizeof *tl_tests_safetensors;
