/* Words from their characters for one instruction set, with the macros and functions of kernel.h.

   The output of a filter is the sum of what each of its characters adds.  What a character adds at each place of a filter
   is computed once per call, since a text has few characters, for 64 channels at a time: it is in the cache for all
   words.  Then highways and projection read each weight once for ROWS words. */

/* What the characters add at each place of a filter, for COLUMNS of its channels from `begin` on: (width, U, COLUMNS). */
static void NAME(add_up)(const Words *words, const Filter *filter, int64_t begin, const Spelling *spelling,
                         float *weights, float *added) {
    int64_t dim = words->char_dim, size = dim * filter->width, count = spelling->count;
    int64_t num = filter->channels - begin < COLUMNS ? filter->channels - begin : COLUMNS;
    memset(weights, 0, size * COLUMNS * sizeof(float));
    for (int64_t c = 0; c < num; c++) /* (channels, dim, width) -> (width, dim, channels) */
        for (int64_t k = 0; k < dim; k++)
            for (int64_t place = 0; place < filter->width; place++)
                weights[(place * dim + k) * COLUMNS + c] = filter->weight[((begin + c) * dim + k) * filter->width + place];
    memset(added, 0, filter->width * count * COLUMNS * sizeof(float));
    for (int64_t place = 0; place < filter->width; place++) {
        const float *here = weights + place * dim * COLUMNS;
        float *to = added + place * count * COLUMNS;
        const char *ahead = (const char *)here; /* nothing is */
        int64_t u = 0;
        for (; u + TILE <= count; u += TILE)
            NAME(float_tile)(here, spelling->vectors + u * dim, dim, dim, TILE, ahead, 0, to + u * COLUMNS);
        for (; u < count; u++)
            NAME(float_tile)(here, spelling->vectors + u * dim, dim, dim, 1, ahead, 0, to + u * COLUMNS);
    }
}

/* Their maxima over the positions of each word, plus the bias, after the activation: columns of `out` (n, stride).
   All windows of pads only are equal, and one counts. */
static void NAME(maxima)(const Words *words, const Filter *filter, int64_t begin, const Spelling *spelling,
                         int64_t num_words, const float *added, int64_t stride, float *out) {
    int64_t last = words->max_characters - filter->width, jump = spelling->count * COLUMNS;
    for (int64_t w = 0; w < num_words; w++) {
        const int32_t *places = spelling->places + w * words->max_characters;
        int64_t end = spelling->ends[w] < last ? spelling->ends[w] : last;
        vec top[VECTORS];
        for (int v = 0; v < VECTORS; v++) top[v] = (vec){0} - INFINITY;
        for (int64_t position = 0; position <= end; position++) {
            vec sums[VECTORS] = {0};
            for (int64_t place = 0; place < filter->width; place++) {
                const float *from = added + place * jump + places[position + place] * COLUMNS;
                for (int v = 0; v < VECTORS; v++) sums[v] += NAME(load)(from + v * LANES);
            }
            for (int v = 0; v < VECTORS; v++) /* NaN is the maximum */
                top[v] = NAME(choose)((sums[v] > top[v]) | (sums[v] != sums[v]), sums[v], top[v]);
        }
        for (int v = 0; v < VECTORS; v++) {
            int64_t column = begin + v * LANES, n = filter->channels - column;
            vec y = top[v] + NAME(load_part)(filter->bias + column, n);
            y = words->is_tanh ? NAME(tangent)(y) : NAME(choose)(y < 0.0f, (vec){0}, y);
            NAME(store_part)(out + w * stride + column, y, n);
        }
    }
}

/* y = g relu(t) + (1 - g) x, with g = sigmoid(c): values of `to`, of which those of `from` are x. */
static void NAME(highway)(const Linear *transform, const Linear *carry, Rows *from, int64_t num_rows, Rows *to) {
    float t[ROWS * COLUMNS], c[ROWS * COLUMNS];
    int64_t depth = transform->matrix.depth;
    NAME(round_rows)(&transform->matrix, from, num_rows);
    if (transform->matrix.kind != ROUNDED) NAME(round_rows)(&carry->matrix, from, num_rows);
    for (int64_t block = 0; block < transform->matrix.blocks; block++) {
        NAME(sum)(&transform->matrix, block, from, 0, num_rows, t);
        NAME(sum)(&carry->matrix, block, from, 0, num_rows, c);
        for (int64_t r = 0; r < num_rows; r++)
            for (int v = 0; v < VECTORS; v++) {
                int64_t column = block * COLUMNS + v * LANES, n = transform->num_columns - column;
                vec x = NAME(load)(from->values + r * depth + column);
                vec y = NAME(real)(&transform->matrix, block, v, t + r * COLUMNS, from->scales[r]) +
                        NAME(load_part)(transform->bias + column, n);
                vec g = NAME(real)(&carry->matrix, block, v, c + r * COLUMNS, from->scales[r]) +
                        NAME(load_part)(carry->bias + column, n);
                y = NAME(choose)(y < 0.0f, (vec){0}, y);
                NAME(store)(to->values + r * depth + column, x + NAME(sigmoid)(g) * (y - x));
            }
    }
}

/* The vectors of at most ROWS words, whose maxima are the values of `rows`; `spare` are as many rows. */
static void NAME(project)(const Words *words, Rows *rows, Rows *spare, int64_t num_words, int64_t depth, float *out) {
    for (int64_t number = 0; number < words->num_highways; number++) {
        const Linear *transform = words->highways + 2 * number, *carry = transform + 1;
        NAME(highway)(transform, carry, rows, num_words, spare);
        float *values = rows->values;
        rows->values = spare->values;
        spare->values = values;
    }
    const Linear *projection = words->projection;
    if (projection == NULL)
        copy_rows(out, words->num_channels, rows->values, depth, num_words, words->num_channels);
    else
        NAME(product)(&projection->matrix, rows, num_words, projection->bias, INFINITY, projection->num_columns,
                      projection->num_columns, out);
}

#undef LANES
#undef VECTORS
#undef vec
#undef ivec
#undef NAME
#undef WIDTH
#undef TILE
