// Attention of new rows over a slot of the store, for one key/value head and the query heads that share it.
//
// A row sees places 0, 1, .. of its own text: the committed rows, then its ancestors among the scratch rows in order of
// depth, then itself. Places are taken 32 at a time with a running softmax, so what a row gets depends on that text alone,
// not on where a tree's rows happen to lie.
#pragma once
#include <vector>

#include "curves.h"
#include "line.h"
#if defined(__AVX512BF16__)
#include "tile.h"
#else
#include "tile_fma.h"
#endif

constexpr int PLACES = 32, MAX_DIM = 256;

// Lay out rows for tile products. keys [16 places][32 channels] -> [16 pairs of channels][16 places][2];
// two rows of values [32 channels] each -> twice [16 channels][2 places].
#if defined(__AVX512F__)
inline void transpose16(const __m512i* rows, bf16* to) {  // 16 rows of 16 pairs -> [pair][row]
    __m512i a[16], b[16];
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(rows[i], rows[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(rows[i], rows[i + 1]);
    }
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    for (int i = 0; i < 4; i++) {  // b[4 g + i] holds pairs i, i + 4, i + 8, i + 12 of rows 4 g .. 4 g + 3
        const __m512i even = _mm512_shuffle_i32x4(b[i], b[i + 4], 0x88), odd = _mm512_shuffle_i32x4(b[i], b[i + 4], 0xdd);
        const __m512i even2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0x88), odd2 = _mm512_shuffle_i32x4(b[i + 8], b[i + 12], 0xdd);
        _mm512_storeu_si512(to + (i + 0) * 32, _mm512_shuffle_i32x4(even, even2, 0x88));
        _mm512_storeu_si512(to + (i + 4) * 32, _mm512_shuffle_i32x4(odd, odd2, 0x88));
        _mm512_storeu_si512(to + (i + 8) * 32, _mm512_shuffle_i32x4(even, even2, 0xdd));
        _mm512_storeu_si512(to + (i + 12) * 32, _mm512_shuffle_i32x4(odd, odd2, 0xdd));
    }
}
inline void lay_keys(const bf16* const* key, int count, bf16* to) {
    __m512i rows[16];
    for (int i = 0; i < 16; i++) rows[i] = i < count ? _mm512_loadu_si512(key[i]) : _mm512_setzero_si512();
    transpose16(rows, to);
}
inline void lay_values(const bf16* one, const bf16* two, bf16* low, bf16* high) {
    alignas(64) static const uint16_t order[32] = {0, 32, 1, 33, 2, 34, 3, 35, 4, 36, 5, 37, 6, 38, 7, 39,
                                                   8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};
    const __m512i first = _mm512_load_si512(order), second = _mm512_add_epi16(first, _mm512_set1_epi16(16));
    const __m512i even = _mm512_loadu_si512(one), odd = _mm512_loadu_si512(two);
    _mm512_store_si512(low, _mm512_permutex2var_epi16(even, first, odd));
    _mm512_store_si512(high, _mm512_permutex2var_epi16(even, second, odd));
}
#else
inline void lay_keys(const bf16* const* key, int count, bf16* to) {
    for (int i = 0; i < 16; i++)
        for (int pair = 0; pair < 16; pair++) {
            uint32_t both = 0;
            if (i < count) std::memcpy(&both, key[i] + 2 * pair, 4);
            std::memcpy(to + (pair * 16 + i) * 2, &both, 4);
        }
}
inline void lay_values(const bf16* one, const bf16* two, bf16* low, bf16* high) {
    for (int c = 0; c < 16; c++) {
        low[2 * c] = one[c], low[2 * c + 1] = two[c];
        high[2 * c] = one[16 + c], high[2 * c + 1] = two[16 + c];
    }
}
#endif

// What one (row chunk, key/value head) works with.
struct Softmax {
    int dim, queries;
    float scale;
    Line<act> query;           // [queries + 16][dim]
    Line<float> out, top, sum;  // [dim / 16][queries + 16][16]; the greatest score so far, the sum of exponentials
    alignas(64) bf16 keys[2][MAX_DIM / DEPTH][TILE], values[MAX_DIM / COLUMNS][TILE];
    alignas(64) act weights[ROWS][PLACES];
    alignas(64) float scores[2][ROWS][COLUMNS];

    void begin(int dim_, int queries_) {
        dim = dim_, queries = queries_, scale = 1.0f / __builtin_sqrtf(float(dim));
        const int room = queries + ROWS;  // tiles may reach beyond the last query
        query.reserve(room * dim), out.reserve(room * dim), top.reserve(room), sum.reserve(room);
        std::memset(out.data, 0, room * dim * sizeof(float));
        for (int q = 0; q < room; q++) top[q] = -__builtin_inff(), sum[q] = 0.0f;
    }
    float* row(int q, int channel) { return &out[(channel / 16 * (queries + ROWS) + q) * 16]; }

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
        for (int i = 0; i < count; i++) weigh(q + i, i, seen(i));
        for (int i = count; i < ROWS; i++) std::memset(weights[i], 0, sizeof weights[i]);  // others stay as they are
        for (int n = 0; n < dim; n += 32) {
            const bf16* v[2] = {values[n / 16], values[n / 16 + 1]};
            float* sums[2] = {row(q, n), row(q, n + 16)};
            Tiles<1, 2>::load_from(sums);
            Tiles<1, 2>::add(weights[0], PLACES, count, v, 1);
            Tiles<1, 2>::store_to(sums);
        }
    }

    void weigh(int q, int i, uint32_t seen) {
        const Floats none = all(-__builtin_inff()), by = all(scale);
        const Floats a = select(seen & 0xffff, mul(load(scores[0][i]), by), none);
        const Floats b = select(seen >> 16, mul(load(scores[1][i]), by), none);
        const float best = max_of(max(a, b));
        if (best > top[q]) {
            float less = 0.0f;
            if (top[q] != -__builtin_inff()) less = first_of(exp16(all(top[q] - best)));
            for (int n = 0; n < dim; n += 16) store(row(q, n), mul(load(row(q, n)), all(less)));
            sum[q] *= less, top[q] = best;
        }
        const Floats from = all(top[q]), zero = all(0.0f);
        const Floats x = select(seen & 0xffff, exp16(sub(a, from)), zero), y = select(seen >> 16, exp16(sub(b, from)), zero);
        sum[q] += sum_of(add(x, y));
        put16(weights[i], x), put16(weights[i] + 16, y);
    }
};
