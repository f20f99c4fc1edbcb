/* Lesson 14: rotary positions, and their two pairings.
 *
 * In attention, each place of a text has two vectors: a query, for what it looks for, and a key,
 * for what it offers. The dot product of one's query and another's key is a score: how much the two
 * have to do with each other. It knows nothing of where they stand. Rotary embeddings turn both
 * first: pairs of elements are points of a plane, and position p turns each pair by an angle of p
 * times the pair's own frequency. A dot product does not change if both sides are turned alike, so
 * only the difference of the two positions is left in it.
 *
 * Which elements make a pair? In the paper (RoFormer, Su et al. 2021), neighbours: 0 and 1, 2 and
 * 3. In many published models, element i of the first half and element i of the second. Either
 * works, but they are not the same: the columns "neighbours" and "halves" below are the same
 * numbers read in the two ways, with different scores and no error message. So weights made for one
 * pairing compute nonsense with the other, and tl_rotary has no default (Tally's layers take the
 * paper's where nothing is said). The last column mixes the two, one for the query and one for the
 * key: then the score depends on where they stand, and not on their distance alone.
 */
#include <math.h>
#include <tally_data.h>

#include "examples/course/course.h"

enum { POSITIONS = 64, D = 8 };

/* x at every position, turned: (POSITIONS, D). */
static void turn(const float x[D], tl_rotary_pairing pairing, float y[POSITIONS][D])
{
    float r1[POSITIONS][D], r2[POSITIONS][D];
    tl_rotary_table(0, POSITIONS, D, 10000, pairing, &r1[0][0], &r2[0][0]);
    tl_tape *t = tl_tape_new(NULL);
    tl_tensor one = tl_data(t, x, TL_F32, TL_DIMS(1, D));
    tl_tensor c = tl_data(t, &r1[0][0], TL_F32, TL_DIMS(POSITIONS, D));
    tl_tensor s = tl_data(t, &r2[0][0], TL_F32, TL_DIMS(POSITIONS, D));
    tl_tensor all = tl_contiguous(t, tl_expand(t, one, TL_DIMS(POSITIONS, D)));
    tl_keep(t, tl_rotary(t, all, c, s, pairing), y, POSITIONS * D * sizeof(float));
    tl_free(t);
}

static double score(const float *q, const float *k)
{
    double sum = 0;
    for (int i = 0; i < D; i++)
        sum += (double)q[i] * (double)k[i];
    return sum;
}

int main(void)
{
    static float q[2][POSITIONS][D], k[2][POSITIONS][D]; /* [0]: neighbours, [1]: halves */
    static const int place[][2] = {{5, 0}, {15, 10}, {25, 20}, {60, 55}, {5, 4}, {60, 59}};
    float query[D], key[D];
    tl_rng_key stream = tl_rng_stream(1, "rotary");
    for (uint64_t i = 0; i < D; i++) {
        query[i] = (float)tl_rng_normal64(stream, 0, i);
        key[i] = (float)tl_rng_normal64(stream, 1, i);
    }
    turn(query, TL_ROTARY_INTERLEAVED, q[0]);
    turn(query, TL_ROTARY_HALF, q[1]);
    turn(key, TL_ROTARY_INTERLEAVED, k[0]);
    turn(key, TL_ROTARY_HALF, k[1]);

    printf("query at   key at   apart   neighbours     halves   one of each\n");
    bool held = true;
    double first[3] = {0, 0, 0}, moved = 0;
    for (int i = 0; i < 6; i++) {
        int at = place[i][0], from = place[i][1];
        double s[3] = {score(q[0][at], k[0][from]), score(q[1][at], k[1][from]),
                       score(q[0][at], k[1][from])};
        printf("%8d %8d %7d   %10.4f %10.4f %13.4f\n", at, from, at - from, s[0], s[1], s[2]);
        held &= fabs(s[0] - s[1]) > 0.1; /* the same numbers, read in two ways */
        for (int c = 0; c < 3; c++) {
            if (i == 0 || i == 4)
                first[c] = s[c];
            if (c < 2)
                held &= fabs(s[c] - first[c]) < 1e-4; /* the same distance, the same score */
            else
                moved = fmax(moved, fabs(s[c] - first[c]));
        }
    }
    printf("(Position 0 turns nothing: there, a key is the same in both.)\n");
    held &= moved > 0.1;
    return course_end(held,
                      "in either pairing only the distance counts; the two pairings do not mix.");
}
