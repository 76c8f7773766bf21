// What attention is made of on every processor: keys of 16 places brought beside each other, and a softmax that takes 32
// places at a time.
#pragma once
#include <algorithm>

#include "act.h"
#include "curves.h"
#include "formats.h"
#include "line.h"

constexpr int PLACES = 32, MAX_DIM = 256;
constexpr int SEGMENT = 512;  // places of a text whose softmax is worked out by itself; texts have several

// keys [16 places][32 channels] -> [16 pairs of channels][16 places][2]
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
#else
inline void lay_keys(const bf16* const* key, int count, bf16* to) {
    for (int i = 0; i < 16; i++)
        for (int pair = 0; pair < 16; pair++) {
            uint32_t both = 0;
            if (i < count) std::memcpy(&both, key[i] + 2 * pair, 4);
            std::memcpy(to + (pair * 16 + i) * 2, &both, 4);
        }
}
#endif

// The running softmax of the queries of one (row chunk, key/value head), and what it has gathered of the values.
struct RunningSoftmax {
    int dim, queries;
    float scale;
    Line<act> query;            // [queries + 16][dim]
    Line<float> out, top, sum;  // [dim / 16][queries + 16][16]; the greatest score so far, the sum of exponentials

    void begin(int dim_, int queries_) {
        dim = dim_, queries = queries_, scale = 1.0f / __builtin_sqrtf(float(dim));
        const int room = queries + ROWS;  // tiles may reach beyond the last query
        query.reserve(room * dim), out.reserve(room * dim), top.reserve(room), sum.reserve(room);
        std::memset(out.data, 0, room * dim * sizeof(float));
        for (int q = 0; q < room; q++) top[q] = -__builtin_inff(), sum[q] = 0.0f;
    }
    float* row(int q, int channel) { return &out[(channel / 16 * (queries + ROWS) + q) * 16]; }

    // The 32 scores of a query become weights of the places that it sees.
    void weigh(int q, uint32_t seen, const float* low, const float* high, act* weights) {
        const Floats none = all(-__builtin_inff()), by = all(scale);
        const Floats a = select(seen & 0xffff, mul(load(low), by), none), b = select(seen >> 16, mul(load(high), by), none);
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
        put16(weights, x), put16(weights + 16, y);
    }

    // A segment's share: [queries][dim] of values, then the greatest scores, then the sums.
    void save(float* to) {
        for (int q = 0; q < queries; q++)
            for (int n = 0; n < dim; n += 16) store(to + q * dim + n, load(row(q, n)));
        std::memcpy(to + queries * dim, top.data, queries * sizeof(float));
        std::memcpy(to + queries * (dim + 1), sum.data, queries * sizeof(float));
    }
    // Put together what `count` segments have saved, `size` numbers apart; `begin` has been called.
    void join(const float* parts, long size, int count) {
        for (int q = 0; q < queries; q++) {
            for (int s = 0; s < count; s++) top[q] = std::max(top[q], parts[s * size + queries * dim + q]);
            for (int s = 0; s < count; s++) {
                const float *part = parts + s * size, best = part[queries * dim + q];
                if (best == -__builtin_inff()) continue;  // it sees nothing of this segment
                const Floats by = exp16(all(best - top[q]));
                for (int n = 0; n < dim; n += 16) store(row(q, n), fma(load(part + q * dim + n), by, load(row(q, n))));
                sum[q] += part[queries * (dim + 1) + q] * first_of(by);
            }
        }
    }
};
