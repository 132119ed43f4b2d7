/* Products and steps for one instruction set.  steps.c includes this file once for each, with these macros:

   NAME(name)  the name of a function or type for this instruction set
   WIDTH       bits of a register: 512 with AVX-512 and products of bytes (VNNI), 256 with AVX2, 128 otherwise
   TILE        number of rows that are multiplied together: 6 with 32 registers, or 1

   Functions that are not inlined compute a row in the same way, whatever is computed with it. */

#define LANES (WIDTH / 32)       /* numbers in a register */
#define VECTORS (COLUMNS / LANES) /* registers for the columns of a block */
#define vec NAME(vec)
#define ivec NAME(ivec)

typedef float vec __attribute__((vector_size(WIDTH / 8)));
typedef int32_t ivec __attribute__((vector_size(WIDTH / 8)));

INLINE vec NAME(load)(const float *from) {
    vec x;
    memcpy(&x, from, sizeof x);
    return x;
}

INLINE void NAME(store)(float *to, vec x) { memcpy(to, &x, sizeof x); }

/* The first n numbers, and zeros. */
INLINE vec NAME(load_part)(const float *from, int64_t n) {
    if (n >= LANES) return NAME(load)(from);
    vec x = {0};
    if (n > 0) memcpy(&x, from, n * sizeof(float));
    return x;
}

INLINE void NAME(store_part)(float *to, vec x, int64_t n) {
    if (n >= LANES) NAME(store)(to, x);
    else if (n > 0) memcpy(to, &x, n * sizeof(float));
}

/* ---- sums of products of one block of columns and n rows: sums (n, COLUMNS) --------------------------------------

   A tile adds `count` values of each row, times a part of the block, to its sums.  While it is computed, the part after
   it is read ahead: `lines` cache lines at each value, from `ahead` on.  A sum is added up value after value, whatever
   the size of tiles and parts. */

INLINE void NAME(read_ahead)(const void *values, const char *ahead, int64_t lines, const int n, const int lines_each) {
    if (n < 4)
        for (int line = 0; line < lines_each; line++) PREFETCH((const char *)values + NEAR + line * LINE);
    else
        for (int64_t line = 0; line < lines; line++) PREFETCH(ahead + line * LINE);
}

INLINE void NAME(float_tile)(const float *values, const float *rows, int64_t depth, int64_t count, const int n,
                             const char *ahead, int64_t lines, float *sums) {
    vec acc[TILE][VECTORS];
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = NAME(load)(sums + r * COLUMNS + v * LANES);
    for (int64_t k = 0; k < count; k++, values += COLUMNS, ahead += lines * LINE) {
        NAME(read_ahead)(values, ahead, lines, n, 4);
        for (int v = 0; v < VECTORS; v++) {
            vec weights = NAME(load)(values + v * LANES);
            for (int r = 0; r < n; r++) acc[r][v] += rows[r * depth + k] * weights;
        }
    }
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) NAME(store)(sums + r * COLUMNS + v * LANES, acc[r][v]);
}

/* Bytes as float32, without __builtin_convertvector where GCC 12 makes single numbers of it. */
INLINE vec NAME(widen)(const int8_t *from) {
#if WIDTH == 512
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from)));
#elif WIDTH == 256
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from)));
#else
    ivec x = {from[0], from[1], from[2], from[3]};
    return __builtin_convertvector(x, vec);
#endif
}

/* With values in int8. */
INLINE void NAME(exact_tile)(const int8_t *values, const float *rows, int64_t depth, int64_t count, const int n,
                             const char *ahead, int64_t lines, float *sums) {
    vec acc[TILE][VECTORS];
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = NAME(load)(sums + r * COLUMNS + v * LANES);
    for (int64_t k = 0; k < count; k++, values += COLUMNS, ahead += lines * LINE) {
        NAME(read_ahead)(values, ahead, lines, n, 1);
        for (int v = 0; v < VECTORS; v++) {
            vec weights = NAME(widen)(values + v * LANES);
            for (int r = 0; r < n; r++) acc[r][v] += rows[r * depth + k] * weights;
        }
    }
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) NAME(store)(sums + r * COLUMNS + v * LANES, acc[r][v]);
}

#if WIDTH == 512
/* With values in int8, four rows of them in a lane, and rows in bytes, which are 128 too large: exact sums. */
INLINE void NAME(rounded_tile)(const int8_t *values, const uint8_t *rows, int64_t depth, int64_t count, const int n,
                               const char *ahead, int64_t lines, float *sums) {
    __m512i acc[TILE][VECTORS];
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) acc[r][v] = _mm512_loadu_si512(sums + r * COLUMNS + v * LANES);
    for (int64_t k = 0; k < count; k += 4, values += COLUMNS * 4, ahead += lines * LINE) {
        NAME(read_ahead)(values, ahead, lines, n, 4);
        for (int v = 0; v < VECTORS; v++) {
            __m512i weights = _mm512_loadu_si512(values + v * LANES * 4);
            for (int r = 0; r < n; r++) {
                int32_t four;
                memcpy(&four, rows + r * depth + k, 4);
                acc[r][v] = _mm512_dpbusd_epi32(acc[r][v], _mm512_set1_epi32(four), weights);
            }
        }
    }
    for (int r = 0; r < n; r++)
        for (int v = 0; v < VECTORS; v++) _mm512_storeu_si512(sums + r * COLUMNS + v * LANES, acc[r][v]);
}
#endif

/* A part of a block, from value `begin` of the depth on. */
typedef struct {
    int64_t block, begin, count;
    const char *ahead;
    int64_t lines;
} NAME(Part);

INLINE void NAME(tile)(const Matrix *matrix, const NAME(Part) *part, const Rows *rows, int64_t r, const int n,
                       float *sums) {
    int64_t depth = matrix->depth, begin = (part->block * depth + part->begin) * COLUMNS;
    int64_t first = r * depth + part->begin;
    if (matrix->kind == FLOAT)
        NAME(float_tile)((const float *)matrix->values + begin, rows->values + first, depth, part->count, n,
                         part->ahead, part->lines, sums);
    else if (matrix->kind == EXACT)
        NAME(exact_tile)((const int8_t *)matrix->values + begin, rows->values + first, depth, part->count, n,
                         part->ahead, part->lines, sums);
#if WIDTH == 512
    else
        NAME(rounded_tile)((const int8_t *)matrix->values + begin, rows->bytes + first, depth, part->count, n,
                           part->ahead, part->lines, sums);
#endif
}

/* The sums of a block and of `n` rows from r on, at most ROWS. */
static NOINLINE void NAME(sum)(const Matrix *matrix, int64_t block, const Rows *rows, int64_t r, int64_t n,
                               float *sums) {
    int64_t size = matrix->kind == FLOAT ? sizeof(float) : 1, most = PART / (COLUMNS * size);
    int64_t tile_rows = matrix->kind == ROUNDED && TILE > 4 ? 4 : TILE; /* their broadcasts need registers too */
    int64_t num_tiles = (n + tile_rows - 1) / tile_rows, lines_each = matrix->kind == EXACT ? 1 : 4;
    memset(sums, 0, n * COLUMNS * sizeof(float));
    NAME(Part) part = {.block = block};
    for (; part.begin < matrix->depth; part.begin += most) {
        part.count = matrix->depth - part.begin < most ? matrix->depth - part.begin : most;
        const char *here = (const char *)matrix->values + (block * matrix->depth + part.begin) * COLUMNS * size;
        int64_t bytes = part.count * COLUMNS * size, share = (lines_each + num_tiles - 1) / num_tiles;
        for (int64_t tile = 0; tile < num_tiles; tile++) {
            int64_t row = tile * tile_rows, first = tile * share; /* line of those that this tile reads ahead */
            part.lines = first < lines_each ? share : 0;
            part.ahead = here + (num_tiles == 1 ? NEAR : bytes + bytes / lines_each * first);
            float *to = sums + row * COLUMNS;
            switch (n - row < tile_rows ? n - row : tile_rows) {
#if TILE == 6
            case 5: NAME(tile)(matrix, &part, rows, r + row, 5, to); break;
            case 4: NAME(tile)(matrix, &part, rows, r + row, 4, to); break;
            case 3: NAME(tile)(matrix, &part, rows, r + row, 3, to); break;
            case 2: NAME(tile)(matrix, &part, rows, r + row, 2, to); break;
            case 1: NAME(tile)(matrix, &part, rows, r + row, 1, to); break;
#endif
            default: NAME(tile)(matrix, &part, rows, r + row, TILE, to);
            }
        }
    }
}

/* Vector v of a row's sums as real numbers: the scales of columns and row applied. */
INLINE vec NAME(real)(const Matrix *matrix, int64_t block, int v, const float *sums, float row_scale) {
    int64_t column = block * COLUMNS + v * LANES;
    vec x = NAME(load)(sums + v * LANES);
    if (matrix->kind == FLOAT) return x;
    if (matrix->kind == ROUNDED) {
        ivec offsets;
        memcpy(&offsets, matrix->offsets + column, sizeof offsets);
        x = __builtin_convertvector((ivec)x - offsets, vec) * row_scale;
    }
    return x * NAME(load)(matrix->scales + column);
}

/* ---- functions of single numbers --------------------------------------------------------------------------------- */

INLINE vec NAME(choose)(ivec mask, vec yes, vec no) { return (vec)((mask & (ivec)yes) | (~mask & (ivec)no)); }

INLINE vec NAME(clip)(vec x, float bound) { /* NaN remains: of NaN and a number, x86 takes the second */
    vec limit = (vec){0} + bound;
#if WIDTH == 512
    return _mm512_max_ps(-limit, _mm512_min_ps(limit, x));
#elif WIDTH == 256
    return _mm256_max_ps(-limit, _mm256_min_ps(limit, x));
#else
    x = NAME(choose)(x > limit, limit, x);
    return NAME(choose)(x < -limit, -limit, x);
#endif
}

/* e to the x for x from -87 to 87, with a relative error below 2e-7. */
INLINE vec NAME(exponential)(vec x) {
    vec shifted = x * 1.44269504f + ROUNDING, power = shifted - ROUNDING;
    vec r = (x - power * 0.693359375f) + power * 2.12194440e-4f; /* log 2 in two parts: the first has few bits */
    vec q = r * 1.393457525409758e-3f + 8.36377963423729e-3f;
    q = q * r + 4.166645556688309e-2f;
    q = q * r + 1.6666573286056519e-1f;
    q = q * r + 0.5f;
    vec y = q * (r * r) + r + 1.0f;
    return (vec)((ivec)y + ((ivec)shifted << 23));
}

INLINE vec NAME(sigmoid)(vec x) { return 1.0f / (1.0f + NAME(exponential)(-NAME(clip)(x, 87.0f))); }

INLINE vec NAME(tangent)(vec x) { return 2.0f * NAME(sigmoid)(x + x) - 1.0f; }

/* ---- one row ----------------------------------------------------------------------------------------------------- */

/* The cells of one block: gates (4, cell_dim) are the input product; cell and out are rows. */
static NOINLINE void NAME(update_cells)(const Layer *layer, int64_t block, const float *sums, float row_scale,
                                        const float *gates, float *cell, float *out) {
    for (int v = 0; v < CELLS / LANES; v++) {
        int64_t begin = block * CELLS + v * LANES, n = layer->cell_dim - begin;
        vec z[4];
        for (int g = 0; g < 4; g++)
            z[g] = NAME(load_part)(gates + g * layer->cell_dim + begin, n) +
                   NAME(real)(&layer->recurrent, block, g * (CELLS / LANES) + v, sums, row_scale);
        vec c = NAME(sigmoid)(z[2]) * NAME(load_part)(cell + begin, n) + NAME(sigmoid)(z[0]) * NAME(tangent)(z[1]);
        c = NAME(clip)(c, layer->cell_clip);
        NAME(store_part)(cell + begin, c, n);
        NAME(store)(out + begin, NAME(sigmoid)(z[3]) * NAME(tangent)(c));
    }
}

/* The products of one block: sums plus the bias, clipped. */
static NOINLINE void NAME(finish)(const Matrix *matrix, int64_t block, const float *sums, float row_scale,
                                  const float *bias, float bound, int64_t num_columns, float *out) {
    for (int v = 0; v < VECTORS; v++) {
        int64_t begin = block * COLUMNS + v * LANES, n = num_columns - begin;
        vec y = NAME(real)(matrix, block, v, sums, row_scale);
        if (bias != NULL) y += NAME(load_part)(bias + begin, n);
        NAME(store_part)(out + begin, NAME(clip)(y, bound), n);
    }
}

/* Round a row to integers from -127 to 127, and add 128: returns its scale. */
static NOINLINE float NAME(round_row)(const float *row, int64_t depth, uint8_t *bytes) {
    vec largest = {0}, poison = {0};
    for (int64_t k = 0; k < depth; k += LANES) {
        vec x = NAME(load)(row + k), size = (vec)((ivec)x & 0x7fffffff);
        largest = NAME(choose)(size > largest, size, largest);
        poison += x * 0.0f; /* NaN, if x is not finite */
    }
    float most = 1e-30f, bad = 0.0f;
    for (int lane = 0; lane < LANES; lane++) {
        most = largest[lane] > most ? largest[lane] : most;
        bad += poison[lane];
    }
    float scale = most / 127.0f;
    for (int64_t k = 0; k < depth; k += LANES) {
        ivec rounded = (ivec)(NAME(load)(row + k) / scale + (ROUNDING + 128.0f));
        for (int lane = 0; lane < LANES; lane++) bytes[k + lane] = (uint8_t)rounded[lane];
    }
    return scale + bad;
}

/* ---- all rows ---------------------------------------------------------------------------------------------------- */

static void NAME(round_rows)(const Matrix *matrix, Rows *rows, int64_t num_rows) {
    if (matrix->kind != ROUNDED) return;
    for (int64_t r = 0, depth = matrix->depth; r < num_rows; r++)
        rows->scales[r] = NAME(round_row)(rows->values + r * depth, depth, rows->bytes + r * depth);
}

/* A matrix times rows: out (num_rows, num_columns), whose rows begin every `stride` numbers. */
static void NAME(product)(const Matrix *matrix, Rows *rows, int64_t num_rows, const float *bias, float bound,
                          int64_t num_columns, int64_t stride, float *out) {
    float sums[ROWS * COLUMNS];
    NAME(round_rows)(matrix, rows, num_rows);
    for (int64_t block = 0; block < matrix->blocks; block++)
        for (int64_t r = 0; r < num_rows;) {
            int64_t n = num_rows - r < ROWS ? num_rows - r : ROWS;
            NAME(sum)(matrix, block, rows, r, n, sums);
            for (int64_t t = 0; t < n; t++, r++)
                NAME(finish)(matrix, block, sums + t * COLUMNS, rows->scales[r], bias, bound, num_columns,
                             out + r * stride);
        }
}

/* One step: hidden and cell become those after it. */
static void NAME(step)(const Layer *layer, int64_t num_rows, const float *gates, float *cell, Rows *hidden, Rows *out) {
    const Matrix *recurrent = &layer->recurrent, *projection = &layer->projection;
    float sums[ROWS * COLUMNS];
    NAME(round_rows)(recurrent, hidden, num_rows);
    for (int64_t block = 0; block < recurrent->blocks; block++)
        for (int64_t r = 0; r < num_rows;) {
            int64_t n = num_rows - r < ROWS ? num_rows - r : ROWS;
            NAME(sum)(recurrent, block, hidden, r, n, sums);
            for (int64_t t = 0; t < n; t++, r++)
                NAME(update_cells)(layer, block, sums + t * COLUMNS, hidden->scales[r], gates + r * 4 * layer->cell_dim,
                                   cell + r * layer->cell_dim, out->values + r * projection->depth);
        }
    NAME(product)(projection, out, num_rows, NULL, layer->proj_clip, layer->output_dim, recurrent->depth,
                  hidden->values);
}

/* ---- scores of words ---------------------------------------------------------------------------------------------

   A row has its largest score, `peak`, and the sum of the exponentials of all scores minus that: log of sum, plus peak,
   is the log of the sum of exponentials.  The sum of blocks is a double: small ones are not lost beside a large one. */

/* What is subtracted from the scores of a row: they may all be -infinity, and one may be infinity. */
INLINE float NAME(origin)(float peak) { return peak - peak == 0.0f ? peak : 0.0f; }

/* The exponentials of scores that are not above the origin; below -87 they do not change a sum of 1 or more. */
INLINE vec NAME(powers)(vec scores, float origin) { return NAME(exponential)(NAME(clip)(scores - origin, 87.0f)); }

/* Add a row of scores plus biases, a multiple of COLUMNS, and the `rest`, filled up to COLUMNS. */
static NOINLINE void NAME(add_row)(const float *scores, const float *bias, int64_t whole, const float *rest,
                                   float *peak, double *sum) {
    vec top[VECTORS], acc[VECTORS];
    for (int v = 0; v < VECTORS; v++) top[v] = NAME(load)(rest + v * LANES);
    for (int64_t k = 0; k < whole; k += COLUMNS)
        for (int v = 0; v < VECTORS; v++) {
            vec x = NAME(load)(scores + k + v * LANES) + NAME(load)(bias + k + v * LANES);
            top[v] = NAME(choose)(x > top[v], x, top[v]);
        }
    float before = *peak, now = before;
    for (int v = 1; v < VECTORS; v++) top[0] = NAME(choose)(top[v] > top[0], top[v], top[0]);
    for (int lane = 0; lane < LANES; lane++) now = top[0][lane] > now ? top[0][lane] : now;
    float origin = NAME(origin)(now);
    for (int v = 0; v < VECTORS; v++) acc[v] = NAME(powers)(NAME(load)(rest + v * LANES), origin);
    for (int64_t k = 0; k < whole; k += COLUMNS)
        for (int v = 0; v < VECTORS; v++)
            acc[v] += NAME(powers)(NAME(load)(scores + k + v * LANES) + NAME(load)(bias + k + v * LANES), origin);
    for (int v = 1; v < VECTORS; v++) acc[0] += acc[v];
    double total = *sum * NAME(powers)((vec){0} + before, origin)[0];
    for (int lane = 0; lane < LANES; lane++) total += acc[0][lane];
    *peak = now;
    *sum = total;
}

/* Add a block of scores (num_rows, num_columns) plus biases (num_columns,) to the peaks and sums of its rows. */
static void NAME(add_scores)(const float *scores, const float *bias, int64_t num_rows, int64_t num_columns,
                             float *peaks, double *sums) {
    int64_t whole = (num_columns - 1) / COLUMNS * COLUMNS;
    float rest[COLUMNS];
    for (int64_t k = 0; k < COLUMNS; k++) rest[k] = -INFINITY;
    for (int64_t r = 0; r < num_rows; r++, scores += num_columns) {
        for (int64_t k = whole; k < num_columns; k++) rest[k - whole] = scores[k] + bias[k];
        NAME(add_row)(scores, bias, whole, rest, peaks + r, sums + r);
    }
}
