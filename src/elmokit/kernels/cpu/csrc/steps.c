/* Products of rows, words from their characters, the steps of one direction of an LSTM layer or its transformer blocks,
   each for any number of rows in one call, and sums of the exponentials of scores: see native.py.

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

typedef struct {
    int64_t width, channels;
    const float *weight; /* (channels, char_dim, width) */
    const float *bias;   /* (channels,) */
} Filter;

typedef struct {
    Matrix matrix;
    const float *bias; /* (num_columns,) */
    int64_t num_columns;
} Linear;

typedef struct {
    int64_t num_characters, char_dim, max_characters, pad; /* ids are 0 to num_characters; that of a pad */
    const float *characters; /* (num_characters, char_dim) of ids from 1 on; the vector of 0 is zeros */
    int64_t num_filters, num_channels, is_tanh, num_highways; /* tanh after the filters, or relu */
    const Filter *filters;
    const Linear *highways;   /* transform and carry of each */
    const Linear *projection; /* NULL: the result has the channels */
} Words;

typedef struct { /* of n words, U different characters */
    int64_t count;         /* U */
    const float *vectors;  /* (U, char_dim) */
    const int32_t *places; /* (n, max_characters) which of them each character is, up to the last window that counts */
    const int64_t *ends;   /* (n,) place after the last character that is not a pad */
} Spelling;

typedef struct {
    Matrix attention_input, attention_output, feedforward_input, feedforward_output;
} Block;

typedef struct {
    int64_t num_blocks, width, num_heads, feedforward_dim, window;
    const Block *blocks;
    const float *cosines, *sines; /* (positions, width / num_heads / 2) */
} Stack;

typedef struct { /* keys and values (num_blocks, all_rows, window - 1, width) of the tokens before, right-aligned */
    int64_t all_rows, num_rows, num_steps;
    const int64_t *lengths, *num_past;           /* (num_rows,); NULL: no row has a past */
    const float *x;                              /* (num_rows, num_steps, width) */
    float *const *layers;                        /* as x, of each block; NULL if not wanted */
    const float *past_keys, *past_values;        /* NULL without a past */
    float *keys, *values;                        /* after the last tokens, zeros at first; NULL if not wanted */
} Pass;

typedef struct { /* of one row in one block */
    int64_t num_past;
    const float *past_keys, *past_values;
    float *keys, *values;
} State;

typedef struct { /* one head of a row */
    int64_t dim, filled, places; /* filled: dim, up to a multiple of COLUMNS; places: tokens, up to one of CELLS */
    float *vector;               /* (filled,) a query or key */
    float *keys, *values;        /* (dim, places) and (places, filled) */
    float *scores;               /* (places,) */
} Head;

typedef struct { /* what is between the products of some tokens */
    int64_t depth; /* the width, up to a multiple of COLUMNS */
    float *x, *added, *wide; /* (n, depth) twice, (n, 3 width or 2 feedforward_dim) */
    Rows normed, mixed, gated;
    Head head;
} Tile;

#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
#define ROWS 48          /* rows that read a block together, while it is in the cache; a multiple of the tiles */
#define TOKENS 192       /* tokens that pass through transformer blocks together, unless a row has more: whole ROWS */
#define NORM_EPS 1e-6f   /* added to a mean square */
#define WORDS 240        /* words that are encoded together: what their characters add is computed once */
#define PART (128 << 10) /* bytes of a block that are in the cache beside the next part */
#define LINE 64          /* bytes of a line of the cache */
#define PREFETCH(address) __builtin_prefetch(address)
#define NEAR 2048        /* how many bytes are read ahead where a part is read once */
#define ROUNDING 12582912.0f /* 1.5 * 2^23: the sum of a small number and this is rounded, in its lowest bits */

static void copy_rows(float *to, int64_t to_stride, const float *from, int64_t from_stride, int64_t n, int64_t width) {
    for (int64_t r = 0; r < n; r++) memcpy(to + r * to_stride, from + r * from_stride, width * sizeof(float));
}

#if defined(__x86_64__)
#include <immintrin.h>
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")
#define NAME(name) name##_512
#define WIDTH 512
#define TILE 6
#include "kernel.h"
#include "blocks.h"
#include "words.h"
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#define NAME(name) name##_256
#define WIDTH 256
#define TILE 1
#include "kernel.h"
#include "blocks.h"
#include "words.h"
#pragma GCC pop_options
#endif
#define NAME(name) name##_any
#define WIDTH 128
#define TILE 1
#include "kernel.h"
#include "blocks.h"
#include "words.h"

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

/* The characters of words, from ids (num_words, max_characters): at most `num_characters` + 1 rows of `vectors`. */
static Spelling spell(const Words *words, int64_t widest, int64_t num_words, const int64_t *ids, int32_t *numbers,
                      float *vectors, int32_t *places, int64_t *ends) {
    int64_t width = words->max_characters, dim = words->char_dim, count = 0;
    for (int64_t id = 0; id <= words->num_characters; id++) numbers[id] = -1;
    for (int64_t w = 0; w < num_words; w++, ids += width) {
        int64_t end = width;
        while (end > 0 && ids[end - 1] == words->pad) end--;
        ends[w] = end;
        for (int64_t place = 0; place < width && place < end + widest; place++) {
            int64_t id = ids[place];
            if (numbers[id] < 0) {
                numbers[id] = (int32_t)count;
                if (id == 0) memset(vectors + count++ * dim, 0, dim * sizeof(float));
                else memcpy(vectors + count++ * dim, words->characters + (id - 1) * dim, dim * sizeof(float));
            }
            places[w * width + place] = numbers[id];
        }
    }
    return (Spelling){count, vectors, places, ends};
}

/* ids (num_words, max_characters) -> out (num_words, columns of the projection). */
int elmokit_words(const Words *words, int64_t num_words, const int64_t *ids, float *out) {
    int64_t most = num_words < WORDS ? num_words : WORDS, dim = words->char_dim, widest = 0;
    int64_t depth = (words->num_channels + COLUMNS - 1) / COLUMNS * COLUMNS, table = words->num_characters + 1;
    int64_t columns = words->projection == NULL ? words->num_channels : words->projection->num_columns;
    for (int64_t f = 0; f < words->num_filters; f++)
        widest = words->filters[f].width > widest ? words->filters[f].width : widest;
    int64_t used = most * words->max_characters < table ? most * words->max_characters : table;
    int32_t *numbers = malloc(table * sizeof(int32_t)), *places = malloc(most * words->max_characters * sizeof(int32_t));
    int64_t *ends = malloc(most * sizeof(int64_t));
    float *vectors = malloc(used * dim * sizeof(float));
    float *weights = malloc(widest * dim * COLUMNS * sizeof(float));
    float *added = malloc(widest * used * COLUMNS * sizeof(float));
    Rows maxima = {0}, rows = {0}, spare = {0};
    int failed = !reserve(&maxima, most, depth, 1) | !reserve(&rows, ROWS, depth, 0) | !reserve(&spare, ROWS, depth, 1) |
                 (numbers == NULL) | (places == NULL) | (ends == NULL) | (vectors == NULL) | (weights == NULL) |
                 (added == NULL);
    float *second = spare.values;
    for (int64_t begin = 0; begin < num_words && !failed; begin += most) {
        int64_t n = num_words - begin < most ? num_words - begin : most, column = 0;
        Spelling spelling =
            spell(words, widest, n, ids + begin * words->max_characters, numbers, vectors, places, ends);
        for (int64_t f = 0; f < words->num_filters; column += words->filters[f++].channels)
            for (int64_t channel = 0; channel < words->filters[f].channels; channel += COLUMNS) {
                FASTEST(add_up)(words, words->filters + f, channel, &spelling, weights, added);
                FASTEST(maxima)(words, words->filters + f, channel, &spelling, n, added, depth, maxima.values + column);
            }
        for (int64_t r = 0; r < n; r += ROWS) {
            rows.values = maxima.values + r * depth;
            spare.values = second;
            FASTEST(project)(words, &rows, &spare, n - r < ROWS ? n - r : ROWS, depth, out + (begin + r) * columns);
        }
    }
    spare.values = second;
    release(&maxima, 1);
    release(&rows, 0);
    release(&spare, 1);
    free(numbers), free(places), free(ends), free(vectors), free(weights), free(added);
    return failed;
}

static int reserve_tile(Tile *tile, const Stack *stack, int64_t num_tokens, int64_t places) {
    int64_t wide = 3 * stack->width > 2 * stack->feedforward_dim ? 3 * stack->width : 2 * stack->feedforward_dim;
    int64_t dim = stack->width / stack->num_heads, filled = (dim + COLUMNS - 1) / COLUMNS * COLUMNS;
    int64_t depth = (stack->width + COLUMNS - 1) / COLUMNS * COLUMNS;
    tile->depth = depth;
    tile->x = calloc(num_tokens * depth, sizeof(float));
    tile->added = calloc(num_tokens * depth, sizeof(float));
    tile->wide = malloc(num_tokens * wide * sizeof(float));
    tile->head = (Head){dim, filled, places, calloc(filled, sizeof(float)), malloc(dim * places * sizeof(float)),
                        calloc(places * filled, sizeof(float)), malloc(places * sizeof(float))};
    int has_rows = reserve(&tile->normed, num_tokens, depth, 1) & reserve(&tile->mixed, num_tokens, depth, 1) &
                   reserve(&tile->gated, num_tokens, stack->blocks[0].feedforward_output.depth, 1);
    return has_rows && tile->x != NULL && tile->added != NULL && tile->wide != NULL && tile->head.vector != NULL &&
           tile->head.keys != NULL && tile->head.values != NULL && tile->head.scores != NULL;
}

static void release_tile(Tile *tile) {
    release(&tile->normed, 1);
    release(&tile->mixed, 1);
    release(&tile->gated, 1);
    free(tile->x), free(tile->added), free(tile->wide);
    free(tile->head.vector), free(tile->head.keys), free(tile->head.values), free(tile->head.scores);
}

/* Rows of tokens through all blocks. */
int elmokit_blocks(const Stack *stack, const Pass *pass) {
    int64_t most = pass->num_steps > TOKENS ? pass->num_steps : TOKENS;
    int64_t known = pass->num_steps + (pass->num_past == NULL ? 0 : stack->window - 1);
    Tile tile = {0};
    int failed = !reserve_tile(&tile, stack, most, (known + CELLS - 1) / CELLS * CELLS);
    for (int64_t begin = 0, end = 0; begin < pass->num_rows && !failed; begin = end) {
        int64_t num_tokens = 0;
        for (; end < pass->num_rows && num_tokens + pass->lengths[end] <= most; num_tokens += pass->lengths[end++])
            copy_rows(tile.x + num_tokens * tile.depth, tile.depth, pass->x + end * pass->num_steps * stack->width,
                      stack->width, pass->lengths[end], stack->width);
        FASTEST(run_tile)(stack, pass, begin, end, num_tokens, &tile);
    }
    release_tile(&tile);
    return failed;
}
