// Attention as in attention.h, in float32: scores with places in the lanes, values with channels in them. Sums run over
// channels and places in one fixed order, whatever queries are computed beside one.
#pragma once
#include <type_traits>

#include "softmax.h"

#if defined(__AVX512F__)
constexpr int TOGETHER = 4;  // queries that share what is read of keys; of values twice as many: their sums fill the registers
#else
constexpr int TOGETHER = 1;
#endif

// each(R, i) for parts of R (a constant, at most MOST) of 0 .. count, the first of which is i.
template <int MOST, class Each> void part(int count, int i, const Each& each) {
    if (count >= MOST) return each(std::integral_constant<int, MOST>(), i);
    if constexpr (MOST > 1) part<MOST - 1>(count, i, each);
}
template <int MOST, class Each> void in_parts(int count, const Each& each) {
    for (int i = 0; i < count; i += MOST) part<MOST>(count - i, i, each);
}

struct Softmax : RunningSoftmax {
    alignas(64) float keys[MAX_DIM][PLACES], values[PLACES][MAX_DIM], scores[ROWS][PLACES];

    // Widen the keys and values of up to 32 places, keys by channel; places beyond `count` are zeros.
    void place(const bf16* const* key, const bf16* const* value, int count) {
        alignas(64) bf16 pairs[TILE];
        const bf16* from[16];
        for (int half = 0; half < 2; half++)
            for (int c = 0; c < dim; c += DEPTH) {
                const int here = count - 16 * half;
                for (int i = 0; i < 16 && i < here; i++) from[i] = key[16 * half + i] + c;
                lay_keys(from, here, pairs);
                for (int i = 0; i < DEPTH; i += 2) {
                    store(keys[c + i] + 16 * half, evens(pairs + i * COLUMNS));
                    store(keys[c + i + 1] + 16 * half, odds(pairs + i * COLUMNS));
                }
            }
        for (int i = 0; i < PLACES; i++)
            for (int c = 0; c < dim; c += 16) store(values[i] + c, i < count ? widen16(value[i] + c) : all(0.0f));
    }

    // Take the places that `place` has widened into queries q .. q + count (at most 16); seen(i) = those it may see.
    template <class Seen> void take(int q, int count, Seen seen) {
        in_parts<TOGETHER>(count, [&](auto r, int i) { score<r>(q + i, i); });
        for (int i = 0; i < count; i++) weigh(q + i, seen(i), scores[i], scores[i] + 16, scores[i]);
        in_parts<2 * TOGETHER>(count, [&](auto r, int i) {
            for (int c = 0; c < dim; c += 32) gather<r>(q + i, i, c);
        });
    }

  private:
    // Scores of R queries; even and odd channels apart, to hide the latency of a product.
    template <int R> void score(int q, int i) {
        Floats sums[R][2][2];
        for (auto& one : sums)
            for (auto& two : one) two[0] = two[1] = all(0.0f);
        const float* x = &query[q * dim];
        for (int c = 0; c < dim; c += 2)
            for (int odd = 0; odd < 2; odd++) {
                const Floats low = load(keys[c + odd]), high = load(keys[c + odd] + 16);
                for (int r = 0; r < R; r++) {
                    const Floats by = all(x[r * dim + c + odd]);
                    sums[r][odd][0] = fma(by, low, sums[r][odd][0]);
                    sums[r][odd][1] = fma(by, high, sums[r][odd][1]);
                }
            }
        for (int r = 0; r < R; r++)
            for (int half = 0; half < 2; half++) store(scores[i + r] + 16 * half, add(sums[r][0][half], sums[r][1][half]));
    }

    // What R queries gather of 32 channels.
    template <int R> void gather(int q, int i, int c) {
        Floats sums[R][2];
        for (int r = 0; r < R; r++) sums[r][0] = load(row(q + r, c)), sums[r][1] = load(row(q + r, c + 16));
        for (int at = 0; at < PLACES; at++) {
            const Floats low = load(values[at] + c), high = load(values[at] + c + 16);
            for (int r = 0; r < R; r++) {
                const Floats by = all(scores[i + r][at]);
                sums[r][0] = fma(by, low, sums[r][0]);
                sums[r][1] = fma(by, high, sums[r][1]);
            }
        }
        for (int r = 0; r < R; r++) store(row(q + r, c), sums[r][0]), store(row(q + r, c + 16), sums[r][1]);
    }
};
