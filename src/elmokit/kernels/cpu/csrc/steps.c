/* Products of few rows, the steps of one direction of one layer, for any number of rows, in one call, and sums of the
   exponentials of scores: see native.py.

   Weights are packed into blocks of 64 columns that are read from the first to the last byte.  A block of
   the recurrent weight holds the four gates of 16 cells, so that a step reads a block, and has their new values.
   Shapes are those of kernels/interface.py: P outputs, C cells. */

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#ifndef SOURCE
#define SOURCE 0
#endif

#ifndef HIGHEST
#define HIGHEST 512 /* bits of the widest registers that are used; a test lowers it */
#endif

#define COLUMNS 64 /* of a block */
#define CELLS 16   /* of a block of gates */

enum { FLOAT, EXACT, ROUNDED }; /* values in float32; float32 values that are int8 times a scale; rows in int8 too */

typedef struct {
    int64_t kind, depth, blocks; /* depth: rows of the matrix, filled up with zeros to a multiple of COLUMNS */
    const void *values;
    const float *scales;    /* of the columns, unless FLOAT */
    const int32_t *offsets; /* 128 times the sums of the columns, if ROUNDED */
} Matrix;

typedef struct {
    Matrix recurrent, projection; /* (P, 4C) and (C, P) */
    int64_t output_dim, cell_dim; /* P, C */
    float cell_clip, proj_clip;   /* infinity does not clip */
} Layer;

typedef struct {
    float *values;  /* (n, depth) */
    uint8_t *bytes; /* (n, depth) rounded, plus 128 */
    float *scales;  /* (n,) */
} Rows;

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define ROWS 48          /* rows that read a block together, while it is in the cache; a multiple of the tiles */
#define PART (128 << 10) /* bytes of a block that are in the cache beside the next part */
#define LINE 64          /* bytes of a line of the cache */
#define PREFETCH(address) __builtin_prefetch(address)
#define NEAR 2048        /* how many bytes are read ahead where a part is read once */
#define ROUNDING 12582912.0f /* 1.5 * 2^23: the sum of a small number and this is rounded, in its lowest bits */

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#define NAME(name) name##_512
#define WIDTH 512
#define TILE 6
#include "kernel.h"
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_256
#define WIDTH 256
#define TILE 1
#include "kernel.h"
#pragma GCC pop_options
#endif
#define NAME(name) name##_any
#define WIDTH 128
#define TILE 1
#include "kernel.h"

/* The fastest instruction set of this processor. */
#if defined(__x86_64__)
static int has_avx512(void) {
    return HIGHEST >= 512 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
static int has_avx2(void) {
    return HIGHEST >= 256 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
#define FASTEST(name) (has_avx512() ? name##_512 : has_avx2() ? name##_256 : name##_any)
#else
static int has_avx512(void) { return 0; }
#define FASTEST(name) name##_any
#endif

static int reserve(Rows *rows, int64_t num_rows, int64_t depth, int with_values) {
    size_t size = num_rows > 0 ? (size_t)num_rows : 1;
    rows->values = with_values ? calloc(size * depth, sizeof(float)) : NULL;
    rows->bytes = malloc(size * depth);
    rows->scales = calloc(size, sizeof(float));
    return (rows->values != NULL || !with_values) && rows->bytes != NULL && rows->scales != NULL;
}

static void release(Rows *rows, int with_values) {
    if (with_values) free(rows->values);
    free(rows->bytes);
    free(rows->scales);
}

static void copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t n, int64_t width) {
    for (int64_t r = 0; r < n; r++) memcpy(to + r * to_stride, from + r * from_stride, width * sizeof(float));
}

/* ---- what native.py calls; 0, or 1 without memory ---------------------------------------------------------------- */

/* The checksum of the source that this file was compiled from. */
uint32_t elmokit_source(void) { return SOURCE; }

/* Whether this processor has AVX-512 with products of bytes: then many rows are fast too, and ROUNDED works. */
int elmokit_is_wide(void) { return has_avx512(); }

/* rows (n, width) times a matrix, plus the bias or NULL: out (n, num_columns). */
int elmokit_product(const Matrix *matrix, int64_t num_rows, int64_t width, int64_t num_columns, const float *given,
                    const float *bias, float *out) {
    Rows rows;
    int fills_up = width != matrix->depth, failed = !reserve(&rows, num_rows, matrix->depth, fills_up);
    if (!failed) {
        if (fills_up) copy_rows(rows.values, matrix->depth, given, width, num_rows, width);
        else rows.values = (float *)given; /* is only read */
        FASTEST(product)(matrix, &rows, num_rows, bias, INFINITY, num_columns, num_columns, out);
    }
    release(&rows, fills_up);
    return failed;
}

/* Steps t = 0, 1, ...: rows 0 to counts[t] are active, and their gates and results begin at row firsts[t].
   gates (R, 4C): the input products and biases; results (R, P); hidden (num_rows, P) and cell (num_rows, C). */
int elmokit_steps(const Layer *layer, int64_t num_steps, const int64_t *firsts, const int64_t *counts, int64_t num_rows,
                  const float *gates, float *results, float *hidden, float *cell) {
    int64_t width = layer->output_dim, depth = layer->recurrent.depth;
    Rows now = {0}, out = {0};
    int failed = !reserve(&now, num_rows, depth, 1) | !reserve(&out, num_rows, layer->projection.depth, 1);
    if (!failed) {
        copy_rows(now.values, depth, hidden, width, num_rows, width);
        for (int64_t t = 0; t < num_steps; t++) {
            FASTEST(step)(layer, counts[t], gates + firsts[t] * 4 * layer->cell_dim, cell, &now, &out);
            copy_rows(results + firsts[t] * width, width, now.values, depth, counts[t], width);
        }
        copy_rows(hidden, width, now.values, depth, num_rows, width);
    }
    release(&now, 1);
    release(&out, 1);
    return failed;
}

/* Add a block of scores (num_rows, num_columns), plus the biases of the columns, to the sums of exponentials of its
   rows: the log of the sum of a row is peak + log(sum), at first -infinity and 0. */
int elmokit_add_scores(const float *scores, const float *bias, int64_t num_rows, int64_t num_columns, float *peaks,
                       double *sums) {
    FASTEST(add_scores)(scores, bias, num_rows, num_columns, peaks, sums);
    return 0;
}
