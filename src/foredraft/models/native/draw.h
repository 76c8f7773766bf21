// A token drawn from a row of logits: what core/distributions says of temperature, min-p, top-k and top-p, and the race of
// core/distributions/tensors.py by the random numbers of core/rng/hashing.py, in a few sweeps over the row.
#pragma once
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "largest.h"
#include "line.h"

struct Options {
    float temperature, top_p, min_p;
    int32_t top_k;  // 0 = all
};

// The i-th exponential of a key, i from 1 on: SplitMix64's finaliser, 53 bits of it, -log(1 - u).
inline float exponential(uint64_t key, uint64_t i) {
    uint64_t x = key + i * 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    const float u = float(double((x ^ (x >> 31)) >> 11) * 0x1p-53);
    return -std::log1p(-std::min(std::max(u, 1e-38f), 1 - 0x1p-24f));
}

// Weights exp((x - top) / temperature) of a row, filled up with zeros to whole blocks, whose sums are kept.
struct Race {
    static constexpr int BLOCK = 256;
    Line<float> weight, mass;
    int blocks;

    void weigh(const float* x, int size, float top, float temperature) {
        blocks = (size + BLOCK - 1) / BLOCK;
        weight.reserve(blocks * BLOCK), mass.reserve(blocks);
        const Floats from = all(top), by = all(1 / temperature), none = all(0.0f), least = all(-87.0f);
        for (int i = 0; i < blocks * BLOCK; i += 16) {
            alignas(64) float last[16];
            const float* at = x + i;
            if (i + 16 > size) {
                for (int n = 0; n < 16; n++) last[n] = i + n < size ? x[i + n] : -__builtin_inff();
                at = last;
            }
            const Floats y = mul(sub(load(at), from), by);
            store(&weight[i], select(not_at_most(y, least), exp16(y), none));
        }
        add_up();
    }
    void add_up() {
        for (int b = 0; b < blocks; b++) {
            Floats sum = all(0.0f);
            for (int i = 0; i < BLOCK; i += 16) sum = add(sum, load(&weight[b * BLOCK + i]));
            mass[b] = sum_of(sum);
        }
    }
    double total() const { return std::accumulate(mass.data, mass.data + blocks, 0.0); }
    // Weights below `least` are no longer there.
    void cut(float least) {
        for (int i = 0; i < blocks * BLOCK; i += 16) {
            const Floats w = load(&weight[i]);
            store(&weight[i], select(not_at_most(all(least), w), all(0.0f), w));
        }
        add_up();
    }
    // The largest weights, from the largest on, and at least as many as are wanted: `count` of them, or `share` of the mass.
    std::vector<float> largest_weights(int count, float share) const {
        const double enough = share * total();
        std::vector<float> found;
        for (float least = 1.0f / 64;; least /= 64) {
            found.clear();
            double sum = 0;
            for (int i = 0; i < blocks * BLOCK; i += 16)
                for (uint32_t more = not_at_most(load(&weight[i]), all(least)); more; more &= more - 1) {
                    found.push_back(weight[i + __builtin_ctz(more)]);
                    sum += found.back();
                }
            if (least == 0 || (int(found.size()) >= count && sum >= enough)) break;
        }
        std::sort(found.begin(), found.end(), std::greater<float>());
        return found;
    }
    // What top-k and top-p leave; ties at the border stay in.
    void truncate(int top_k, float top_p) {
        const std::vector<float> found = largest_weights(top_k, top_k || top_p >= 1 ? 0.0f : top_p);
        int keep = top_k && top_k < int(found.size()) ? top_k : int(found.size());
        if (top_p < 1) {  // of what top-k has left; a token stays while the mass before it is short of top_p
            const double whole = top_k ? std::accumulate(found.begin(), found.begin() + keep, 0.0) : total();
            int short_of = 0;
            for (double before = found[0]; short_of < keep && before < top_p * whole;)
                if (++short_of < keep) before += found[short_of];
            keep = std::min(keep, short_of + 1);
        }
        cut(found[keep - 1]);
    }
    // Two races, among blocks by their mass and inside the winner: the largest weight / exponential wins.
    int64_t run(uint64_t key, int size) const {
        if (size <= BLOCK) return fastest(weight.data, size, key, 1);
        const int64_t block = fastest(mass.data, blocks, key, 1 + BLOCK);
        return block * BLOCK + fastest(&weight[block * BLOCK], BLOCK, key, 1);
    }
    static int64_t fastest(const float* x, int count, uint64_t key, uint64_t first) {
        int best = 0;
        float most = -1;
        for (int i = 0; i < count; i++)
            if (const float speed = x[i] > 0 ? x[i] / exponential(key, first + i) : 0; speed > most) most = speed, best = i;
        return best;
    }
};

// -1 for a row that is no distribution: something in it is no number or infinite, or nothing is allowed.
inline int64_t draw(const float* x, int size, const Options& how, uint64_t key, Race& race) {
    Largest found(1);
    found.search(x, size);
    if (!std::isfinite(found.value[0])) return -1;
    if (how.temperature == 0) return found.place[0];
    race.weigh(x, size, found.value[0], how.temperature);
    if (how.min_p > 0) race.cut(how.min_p);
    if (how.top_k || how.top_p < 1) race.truncate(how.top_k, how.top_p);
    return race.run(key, size);
}
