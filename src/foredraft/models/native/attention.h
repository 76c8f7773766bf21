// Attention of new rows over a slot of the store, for one key/value head and the query heads that share it.
//
// A row sees places 0, 1, .. of its own text: the committed rows, then its ancestors among the scratch rows in order of
// depth, then itself. Places are taken 32 at a time with a running softmax, so what a row gets depends on that text alone,
// not on where a tree's rows happen to lie.
//
// Here with products of bf16 tiles; attention_fma.h is for processors that have none.
#pragma once
#include "softmax.h"
#include "tile.h"

// Two rows of values [32 channels] each -> twice [16 channels][2 places].
inline void lay_values(const bf16* one, const bf16* two, bf16* low, bf16* high) {
    alignas(64) static const uint16_t order[32] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_load_si512(order), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const __m512i even = _mm512_loadu_si512(one), odd = _mm512_loadu_si512(two);
    _mm512_store_si512(low, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_store_si512(high, _mm512_permutex2var_epi16(even, second, odd));
}

struct Softmax : RunningSoftmax {
    alignas(64) bf16 keys[2][MAX_DIM / DEPTH][TILE], values[MAX_DIM / COLUMNS][TILE];
    alignas(64) act weights[ROWS][PLACES];
    alignas(64) float scores[2][ROWS][COLUMNS];

    // Lay out the keys and values of up to 32 places; places beyond `count` are zeros.
    void place(const bf16* const* key, const bf16* const* value, int count) {
        static const bf16 zeros[MAX_DIM] = {};
        const bf16* from[16];
        for (int half = 0; half < 2; half++)
            for (int k = 0; k < dim / DEPTH; k++) {
                const int here = count - 16 * half;
                for (int i = 0; i < 16 && i < here; i++) from[i] = key[16 * half + i] + k * DEPTH;
                lay_keys(from, here, keys[half][k]);
            }
        for (int pair = 0; pair < PLACES / 2; pair++) {
            const bf16* one = 2 * pair < count ? value[2 * pair] : zeros;
            const bf16* two = 2 * pair + 1 < count ? value[2 * pair + 1] : zeros;
            for (int n = 0; n < dim; n += 32)
                lay_values(one + n, two + n, values[n / 16] + pair * 32, values[n / 16 + 1] + pair * 32);
        }
    }

    // Take the places that `place` has laid out into queries q .. q + count (at most 16); seen(i) = those it may see.
    template <class Seen> void take(int q, int count, Seen seen) {
        const bf16* tiles[2] = {keys[0][0], keys[1][0]};
        Tiles<1, 2>::clear();
        Tiles<1, 2>::add(&query[q * dim], dim, count, tiles, dim / DEPTH);
        Tiles<1, 2>::store(scores);
        for (int i = 0; i < count; i++) weigh(q + i, seen(i), scores[0][i], scores[1][i], weights[i]);
        for (int i = count; i < ROWS; i++) std::memset(weights[i], 0, sizeof weights[i]);  // others stay as they are
        for (int n = 0; n < dim; n += 32) {
            const bf16* v[2] = {values[n / 16], values[n / 16 + 1]};
            float* sums[2] = {row(q, n), row(q, n + 16)};
            Tiles<1, 2>::load_from(sums);
            Tiles<1, 2>::add(weights[0], PLACES, count, v, 1);
            Tiles<1, 2>::store_to(sums);
        }
    }
};
