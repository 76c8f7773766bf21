// The likeliest tokens of a row of logits, in two sweeps over it. Every sum runs in one order, whatever threads there are.
#pragma once
#include <cmath>

#include "tile.h"

constexpr int MOST = 16;  // entries that are looked for

// The k largest so far, from the largest on; of equal ones the first one first. What is not a number counts as infinite.
struct Largest {
    int k, count = 0;
    float value[MOST] = {};
    int64_t place[MOST] = {};
    explicit Largest(int k_) : k(k_) {}

    void take(float x, int64_t at) {
        if (count == k && !(x > value[k - 1])) return;
        int i = count < k ? count++ : k - 1;
        for (; i > 0 && x > value[i - 1]; i--) value[i] = value[i - 1], place[i] = place[i - 1];
        value[i] = x, place[i] = at;
    }
    // Sixteen from place i on, of which `better` may be among the largest.
    void take16(const float* x, int i, __mmask16 better) {
        for (; better; better &= better - 1) {
            const int at = i + __builtin_ctz(better);
            take(x[at] == x[at] ? x[at] : __builtin_inff(), at);
        }
    }
    __mmask16 better(const float* x, __m512 bar) const {  // larger, or not a number
        return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), bar, _CMP_NLE_UQ);
    }
    void search(const float* x, int size) {
        int i = 0;
        for (; i < size && count < k; i++) take16(x, i, 1);
        for (; i + 64 <= size; i += 64) {
            const __m512 bar = _mm512_set1_ps(value[k - 1]);
            const __mmask16 found[] = {better(x + i, bar), better(x + i + 16, bar), better(x + i + 32, bar), better(x + i + 48, bar)};
            if (!(found[0] | found[1] | found[2] | found[3])) continue;
            for (int n = 0; n < 4; n++) take16(x, i + 16 * n, found[n]);
        }
        for (; i < size; i++) take16(x, i, 1);
    }
};

inline void largest(const float* x, int size, int k, float* values, int64_t* places) {
    Largest found(k);
    found.search(x, size);
    for (int i = 0; i < k; i++) values[i] = found.value[i], places[i] = found.place[i];
}

// log of the sum of exp(x), whose largest entry is known and finite.
inline float log_mass(const float* x, int size, float top) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    const __m512 from = _mm512_set1_ps(top);
    for (int i = 0; i < size; i += 16) {
        const __mmask16 real = size - i < 16 ? (1u << (size - i)) - 1 : 0xffff;
        const __m512 y = exp16(_mm512_sub_ps(_mm512_maskz_loadu_ps(real, x + i), from));
        sums[i / 16 % 2] = _mm512_mask_add_ps(sums[i / 16 % 2], real, sums[i / 16 % 2], y);
    }
    return top + std::log(_mm512_reduce_add_ps(_mm512_add_ps(sums[0], sums[1])));
}

// Log-probabilities of the k likeliest, none below `least`, and the ids that stand at their places. A row that is no law,
// because something in it is infinite or no number, gets `least` throughout.
inline void likeliest(const float* x, int size, int k, const int64_t* ids, float least, float* values, int64_t* places) {
    Largest found(k);
    found.search(x, size);
    const float top = found.value[0];
    const bool law = std::isfinite(top);
    const float total = law ? log_mass(x, size, top) : 0.0f;
    for (int i = 0; i < k; i++) {
        const float value = found.value[i] - total;
        values[i] = law && value > least ? value : least;
        places[i] = ids ? ids[found.place[i]] : found.place[i];
    }
}
