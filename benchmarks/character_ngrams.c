/* Counts of n-grams for character_ngrams.py, which describes them; it compiles this file where there is a C compiler. */
#include <stdint.h>
#include <stdlib.h>

#define BASE 0x9E3779B97F4A7C15ULL
#define MIX 0xD6E8FEB86659FD93ULL
#define MOST_ORDER 8

typedef struct {
    uint64_t *keys, *contexts; /* key 0: an empty slot; contexts and counts are NULL in a set */
    int64_t *counts;
    uint64_t used;
    int bits;
} Table;

static void make(Table *table, int bits, int is_set) {
    uint64_t size = 1ULL << bits;
    table->keys = calloc(size, 8);
    table->contexts = is_set ? NULL : malloc(size * 8);
    table->counts = is_set ? NULL : malloc(size * 8);
    table->used = 0;
    table->bits = bits;
}

static void release(Table *table) {
    free(table->keys);
    free(table->contexts);
    free(table->counts);
}

static uint64_t slot_of(const Table *table, uint64_t key) {
    uint64_t mask = (1ULL << table->bits) - 1, slot = (key * BASE) >> (64 - table->bits);
    while (table->keys[slot] && table->keys[slot] != key) slot = (slot + 1) & mask;
    return slot;
}

/* The slot of a key, which is added with a count of zero if it is new. */
static uint64_t add(Table *table, uint64_t key, uint64_t context, int *is_new) {
    if (table->used * 10 > (7ULL << table->bits)) {
        Table larger;
        make(&larger, table->bits + 1, table->counts == NULL);
        for (uint64_t old = 0; old < (1ULL << table->bits); old++) {
            if (!table->keys[old]) continue;
            uint64_t slot = slot_of(&larger, table->keys[old]);
            larger.keys[slot] = table->keys[old];
            if (table->counts) {
                larger.contexts[slot] = table->contexts[old];
                larger.counts[slot] = table->counts[old];
            }
        }
        larger.used = table->used;
        release(table);
        *table = larger;
    }
    uint64_t slot = slot_of(table, key);
    *is_new = !table->keys[slot];
    if (*is_new) {
        table->keys[slot] = key;
        table->used++;
        if (table->counts) {
            table->contexts[slot] = context;
            table->counts[slot] = 0;
        }
    }
    return slot;
}

/* Which n-grams count: 0 all; 1 those whose key, and 2 those whose context is wanted; 3 a sample by key. */
Table *count(const int32_t *ids, int64_t num, int order, int highest, int mode, const uint64_t *wanted, int64_t num_wanted) {
    Table filter, longer, *grams = malloc(sizeof(Table));
    int is_new, longest = order < highest ? order + 1 : order;
    make(&filter, 20, 1);
    for (int64_t place = 0; place < num_wanted; place++) add(&filter, wanted[place], 0, &is_new);
    make(&longer, 20, 1);
    make(grams, 20, 0);
    uint64_t keys[MOST_ORDER + 1] = {0}, before[MOST_ORDER + 1] = {0};
    int64_t start = 0;
    for (int64_t place = 0; place < num; place++) {
        uint64_t token = ((uint64_t)ids[place] + 1) * MIX;
        for (int n = 1; n <= longest; n++) before[n] = keys[n];
        keys[1] = token;
        for (int n = 2; n <= longest; n++) keys[n] = before[n - 1] * BASE + token;
        int64_t num_before = place - start;
        if (ids[place] == 0) start = place;
        if (place == 0 || num_before < order - 1) continue;
        uint64_t key = keys[order], context = order > 1 ? before[order - 1] : 0;
        if (mode == 3) {
            if (((key ^ (key >> 29)) * BASE) >> 58) continue;
        } else if (mode) {
            uint64_t asked = mode == 1 ? key : context;
            if (!filter.keys[slot_of(&filter, asked)]) continue;
        }
        uint64_t slot = add(grams, key, context, &is_new);
        if (order == highest || num_before == order - 1) {
            grams->counts[slot]++;
        } else {
            add(&longer, keys[order + 1], 0, &is_new);
            grams->counts[slot] += is_new;
        }
    }
    release(&filter);
    release(&longer);
    return grams;
}

uint64_t size_of(const Table *table) { return table->used; }

/* Write the n-grams into arrays, and free the table. */
void take(Table *table, uint64_t *keys, uint64_t *contexts, int64_t *counts) {
    uint64_t row = 0;
    for (uint64_t slot = 0; slot < (1ULL << table->bits); slot++) {
        if (!table->keys[slot]) continue;
        keys[row] = table->keys[slot];
        contexts[row] = table->contexts[slot];
        counts[row++] = table->counts[slot];
    }
    release(table);
    free(table);
}
