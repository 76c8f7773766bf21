// The likeliest tokens of a row of logits, in two sweeps over it. Every sum runs in one order, whatever threads there are.
#pragma once
#include <cmath>

#include "curves.h"

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
    void take16(const float* x, int i, uint32_t better) {
        for (; better; better &= better - 1) {
            const int at = i + __builtin_ctz(better);
            take(x[at] == x[at] ? x[at] : __builtin_inff(), at);
        }
    }
    void search(const float* x, int size) {
        int i = 0;
        for (; i < size && count < k; i++) take16(x, i, 1);
        for (; i + 64 <= size; i += 64) {
            const Floats least = all(value[k - 1]);
            uint32_t found[4], any = 0;
            for (int n = 0; n < 4; n++) any |= found[n] = not_at_most(load(x + i + 16 * n), least);  // larger, or not a number
            for (int n = 0; any && n < 4; n++) take16(x, i + 16 * n, found[n]);
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
    Floats sums[2] = {all(0.0f), all(0.0f)};
    const Floats from = all(top);
    int i = 0;
    for (; i + 16 <= size; i += 16) sums[i / 16 % 2] = add(sums[i / 16 % 2], exp16(sub(load(x + i), from)));
    if (i < size) {
        float last[16] = {};
        std::memcpy(last, x + i, (size - i) * sizeof(float));
        const Floats y = select((1u << (size - i)) - 1, exp16(sub(load(last), from)), all(0.0f));
        sums[i / 16 % 2] = add(sums[i / 16 % 2], y);
    }
    return top + std::log(sum_of(add(sums[0], sums[1])));
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
