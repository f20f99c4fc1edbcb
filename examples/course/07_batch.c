/* Lesson 7: a row's result may depend on the rows beside it.
 *
 * A batch is a matrix with a sample in each row. A layer of a neural network multiplies every row
 * by the same matrix: y = x W^T. In mathematics, rows know nothing of each other. But a BLAS, the
 * kind of library that programs leave such products to, has several ways to multiply, which add in
 * different orders, and chooses by the shape. So a sample alone and the same sample in a batch of
 * 32 may get different bits, though nothing is random and nothing is wrong.
 *
 * We look for it here: row 0 stays, rows are put below it, and we count how many of its results
 * change. First with Tally, which adds in an order that depends on the length of the sum alone;
 * then with BLIS, a BLAS, and the same numbers.
 */
#include <string.h>
#include <tally_data.h>

#include "examples/course/course.h"

#if TL_BLIS
#include <cblas.h>
static void blas_product(int rows, int outputs, int k, const float *x, const float *w, float *y)
{
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, rows, outputs, k, 1, x, k, w, k, 0, y,
                outputs);
}
#else
#define blas_product NULL
#endif

static void tally_product(int rows, int outputs, int k, const float *x, const float *w, float *y)
{
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor a = tl_data(t, x, TL_F32, TL_DIMS(rows, k));
    tl_tensor b = tl_transpose(t, tl_data(t, w, TL_F32, TL_DIMS(outputs, k)), 0, 1);
    tl_keep(t, tl_matmul(t, a, b), y, (size_t)(rows * outputs) * sizeof(float));
    tl_free(t);
}

typedef void product(int rows, int outputs, int k, const float *x, const float *w, float *y);

enum { ROWS = 64, OUTPUTS = 100, K = 700 };
static const int rows[] = {2, 4, 8, 16, 32, 64}, outputs[] = {1, 4, 16, 100},
                 length[] = {16, 64, 256, 700};
enum { N_ROWS = 6, N_OUTPUTS = 4, N_LENGTH = 4 };
static float x[ROWS * K], w[OUTPUTS * K], alone[OUTPUTS], y[ROWS * OUTPUTS];

/* How many results of row 0 have other bits in a batch of that many rows than alone. */
static int changed(product *multiply, int r, int n, int k)
{
    int count = 0;
    memset(y, 0, sizeof y);
    multiply(1, n, k, x, w, alone);
    multiply(r, n, k, x, w, y);
    for (int i = 0; i < n; i++)
        count += memcmp(&alone[i], &y[i], sizeof(float)) != 0;
    return count;
}

/* A line for each length of a sum, a column for each batch; over all widths of W. */
static int search(product *multiply, const char *mark, const char *name)
{
    int found = 0;
    printf("\n%s%s: how many of row 0's 121 results change in a batch of so many rows\n"
           "%s(W has 1, 4, 16 or 100 outputs, 121 together; each is a sum of so many terms)\n"
           "%sterms ",
           mark, name, mark, mark);
    for (int r = 0; r < N_ROWS; r++)
        printf("%5d", rows[r]);
    for (int k = 0; k < N_LENGTH; k++) {
        printf("\n%s%5d ", mark, length[k]);
        for (int r = 0; r < N_ROWS; r++) {
            int sum = 0;
            for (int n = 0; n < N_OUTPUTS; n++)
                sum += changed(multiply, rows[r], outputs[n], length[k]);
            printf("%5d", sum);
            found += sum;
        }
    }
    printf("\n");
    return found;
}

int main(void)
{
    tl_rng_key key = tl_rng_stream(1, "lesson 7");
    for (uint64_t i = 0; i < ROWS * K; i++)
        x[i] = tl_rng_uniform32(key, 0, i) - 0.5f;
    for (uint64_t i = 0; i < OUTPUTS * K; i++)
        w[i] = tl_rng_uniform32(key, 1, i) - 0.5f;

    bool held = search(tally_product, "", "Tally") == 0;
    product *blas = blas_product;
    if (blas == NULL)
        return course_not_shown(held, "this build has no BLAS to compare with (BLIS=0).");
    if (search(blas, "here: ", "BLIS") == 0)
        return course_not_shown(held, "BLIS keeps a row's bits in all these shapes, here.");

    /* One case, with the numbers. */
    for (int n = 0; n < N_OUTPUTS; n++)
        if (changed(blas, 32, outputs[n], 700) > 0) {
            int i = 0;
            while (alone[i] == y[i])
                i++;
            printf("here: BLIS, 700 terms, width %d: output %d is %.9g alone and %.9g among 32\n",
                   outputs[n], i, (double)alone[i], (double)y[i]);
            break;
        }
    return course_end(held, "in a BLAS, a row's bits depend on its batch; they need not.");
}
