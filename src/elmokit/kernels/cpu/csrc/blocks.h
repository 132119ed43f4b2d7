/* Transformer blocks of one direction for one instruction set, with the functions of kernel.h.

   The tokens of a few rows pass through all blocks together: what is between the products stays in the cache, and
   padding is not computed.  kernels/blocks.py has the equations. */

INLINE float NAME(total)(vec x) {
    float sum = 0.0f;
    for (int lane = 0; lane < LANES; lane++) sum += x[lane];
    return sum;
}

/* 1 over the root of the mean square of `dim` numbers, filled up with zeros to `filled`. */
INLINE float NAME(norm_scale)(const float *x, int64_t dim, int64_t filled) {
    vec squares = {0};
    for (int64_t k = 0; k < filled; k += LANES) squares += NAME(load)(x + k) * NAME(load)(x + k);
    return 1.0f / sqrtf(NAME(total)(squares) / dim + NORM_EPS);
}

/* x (n, depth) plus what a product added, or NULL, and its norm; the columns after `width` are zeros. */
static NOINLINE void NAME(add_norm)(int64_t num_tokens, int64_t width, int64_t depth, const float *added, float *x,
                                    float *normed) {
    for (int64_t token = 0; token < num_tokens; token++, x += depth, normed += depth) {
        for (int64_t k = 0; k < depth && added != NULL; k += LANES)
            NAME(store)(x + k, NAME(load)(x + k) + NAME(load)(added + token * depth + k));
        float scale = NAME(norm_scale)(x, width, depth);
        for (int64_t k = 0; k < depth; k += LANES) NAME(store)(normed + k, NAME(load)(x + k) * scale);
    }
}

/* Gates and values (n, 2 dim) -> silu(gate) * value (n, depth). */
static NOINLINE void NAME(gate)(int64_t num_tokens, int64_t dim, int64_t depth, const float *from, float *gated) {
    for (int64_t token = 0; token < num_tokens; token++, from += 2 * dim, gated += depth)
        for (int64_t k = 0; k < dim; k += LANES) {
            vec x = NAME(load_part)(from + k, dim - k), value = NAME(load_part)(from + dim + k, dim - k);
            NAME(store_part)(gated + k, x * NAME(sigmoid)(x) * value, dim - k);
        }
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Rotate the pairs (i, i + dim / 2) of a vector by the angles of a position. */
INLINE void NAME(turn)(float *x, int64_t dim, const float *cosines, const float *sines) {
    for (int64_t i = 0; i < dim / 2; i++) {
        float first = x[i], second = x[i + dim / 2];
        x[i] = first * cosines[i] - second * sines[i];
        x[i + dim / 2] = second * cosines[i] + first * sines[i];
    }
}

/* Keys and values of one head of a row, those of the past first; qkv (length, 3 width) begins at this head. */
static NOINLINE void NAME(know)(const Stack *stack, const State *state, int64_t length, const float *qkv, Head *head) {
    int64_t width = stack->width, dim = head->dim, most = stack->window - 1, known = state->num_past + length;
    float *key = head->vector;
    for (int64_t place = 0; place < known; place++) {
        float *value = head->values + place * head->filled;
        if (place < state->num_past) {
            int64_t from = (most - state->num_past + place) * width;
            memcpy(key, state->past_keys + from, dim * sizeof(float));
            memcpy(value, state->past_values + from, dim * sizeof(float));
        } else {
            const float *present = qkv + (place - state->num_past) * 3 * width;
            memcpy(key, present + width, dim * sizeof(float));
            memcpy(value, present + 2 * width, dim * sizeof(float));
            float scale = NAME(norm_scale)(key, dim, head->filled);
            for (int64_t k = 0; k < dim; k++) key[k] *= scale;
        }
        int64_t kept = most - known + place;
        if (state->keys != NULL && kept >= 0) {
            memcpy(state->keys + kept * width, key, dim * sizeof(float));
            memcpy(state->values + kept * width, value, dim * sizeof(float));
        }
        NAME(turn)(key, dim, stack->cosines + place * dim / 2, stack->sines + place * dim / 2);
        for (int64_t k = 0; k < dim; k++) head->keys[k * head->places + place] = key[k];
    }
}

/* What the token at a place takes from itself and from the tokens before it in the window: `taken` (dim,). */
static NOINLINE void NAME(take)(const Stack *stack, int64_t place, const float *asked, Head *head, float *taken) {
    int64_t dim = head->dim, first = place < stack->window ? 0 : place - stack->window + 1;
    int64_t begin = first / LANES * LANES;
    float *query = head->vector, *scores = head->scores;
    memcpy(query, asked, dim * sizeof(float));
    float scale = NAME(norm_scale)(query, dim, head->filled) / sqrtf(dim);
    for (int64_t k = 0; k < dim; k++) query[k] *= scale;
    NAME(turn)(query, dim, stack->cosines + place * dim / 2, stack->sines + place * dim / 2);
    for (int64_t j = begin; j <= place; j += LANES) {
        vec parts[4] = {0}; /* of a sum, which do not wait for each other */
        int64_t k = 0;
        for (; k + 4 <= dim; k += 4)
            for (int part = 0; part < 4; part++)
                parts[part] += query[k + part] * NAME(load)(head->keys + (k + part) * head->places + j);
        for (; k < dim; k++) parts[0] += query[k] * NAME(load)(head->keys + k * head->places + j);
        NAME(store)(scores + j, (parts[0] + parts[1]) + (parts[2] + parts[3]));
    }
    for (int64_t j = begin; j < first; j++) scores[j] = -INFINITY;
    for (int64_t j = place + 1; j % LANES != 0; j++) scores[j] = -INFINITY;
    vec top = NAME(load)(scores + begin), sums = {0};
    for (int64_t j = begin; j <= place; j += LANES) {
        vec x = NAME(load)(scores + j);
        top = NAME(choose)(x > top, x, top);
    }
    float most = top[0];
    for (int lane = 1; lane < LANES; lane++) most = top[lane] > most ? top[lane] : most;
    for (int64_t j = begin; j <= place; j += LANES) { /* -infinity becomes e to the -87, which is lost in the sum */
        vec power = NAME(powers)(NAME(load)(scores + j), most);
        NAME(store)(scores + j, power);
        sums += power;
    }
    float share = 1.0f / NAME(total)(sums);
    for (int64_t k = 0; k < dim; k += COLUMNS) {
        vec acc[VECTORS] = {0};
        for (int64_t j = first; j <= place; j++)
            for (int v = 0; v < VECTORS; v++)
                acc[v] += scores[j] * NAME(load)(head->values + j * head->filled + k + v * LANES);
        for (int v = 0; v < VECTORS; v++)
            NAME(store_part)(taken + k + v * LANES, acc[v] * share, dim - k - v * LANES);
    }
}

/* Queries, keys and values of a row (length, 3 width) -> mixed (length, depth). */
static void NAME(attend)(const Stack *stack, const State *state, int64_t length, int64_t depth, const float *qkv,
                         Head *head, float *mixed) {
    for (int64_t begin = 0; begin < stack->width; begin += head->dim) {
        State own = *state;
        if (own.past_keys != NULL) own.past_keys += begin, own.past_values += begin;
        if (own.keys != NULL) own.keys += begin, own.values += begin;
        NAME(know)(stack, &own, length, qkv + begin, head);
        for (int64_t t = 0; t < length; t++)
            NAME(take)(stack, state->num_past + t, qkv + t * 3 * stack->width + begin, head, mixed + t * depth + begin);
    }
}

/* ---- blocks ------------------------------------------------------------------------------------------------------ */

/* The sum of a product and x, and its norm. */
static void NAME(add_product)(const Stack *stack, const Matrix *matrix, Rows *rows, int64_t num_tokens, Tile *tile) {
    int64_t depth = tile->depth;
    NAME(product)(matrix, rows, num_tokens, NULL, INFINITY, stack->width, depth, tile->added);
    NAME(add_norm)(num_tokens, stack->width, depth, tile->added, tile->x, tile->normed.values);
}

/* The tokens of rows `begin` to `end` through all blocks; tile->x has their vectors. */
static void NAME(run_tile)(const Stack *stack, const Pass *pass, int64_t begin, int64_t end, int64_t num_tokens,
                           Tile *tile) {
    int64_t width = stack->width, depth = tile->depth, kept = (stack->window - 1) * width;
    NAME(add_norm)(num_tokens, width, depth, NULL, tile->x, tile->normed.values);
    for (int64_t number = 0; number < stack->num_blocks; number++) {
        const Block *block = stack->blocks + number;
        NAME(product)(&block->attention_input, &tile->normed, num_tokens, NULL, INFINITY, 3 * width, 3 * width,
                      tile->wide);
        for (int64_t row = begin, token = 0; row < end; token += pass->lengths[row++]) {
            int64_t at = (number * pass->all_rows + row) * kept;
            State state = {.num_past = pass->num_past == NULL ? 0 : pass->num_past[row]};
            if (pass->past_keys != NULL)
                state.past_keys = pass->past_keys + at, state.past_values = pass->past_values + at;
            if (pass->keys != NULL) state.keys = pass->keys + at, state.values = pass->values + at;
            NAME(attend)(stack, &state, pass->lengths[row], depth, tile->wide + token * 3 * width, &tile->head,
                         tile->mixed.values + token * depth);
        }
        NAME(add_product)(stack, &block->attention_output, &tile->mixed, num_tokens, tile);
        NAME(product)(&block->feedforward_input, &tile->normed, num_tokens, NULL, INFINITY, 2 * stack->feedforward_dim,
                      2 * stack->feedforward_dim, tile->wide);
        NAME(gate)(num_tokens, stack->feedforward_dim, block->feedforward_output.depth, tile->wide, tile->gated.values);
        NAME(add_product)(stack, &block->feedforward_output, &tile->gated, num_tokens, tile);
        float *layer = pass->layers[number];
        for (int64_t row = begin, token = 0; row < end && layer != NULL; token += pass->lengths[row++])
            copy_rows(layer + row * pass->num_steps * width, width, tile->normed.values + token * depth, depth,
                      pass->lengths[row], width);
    }
}
