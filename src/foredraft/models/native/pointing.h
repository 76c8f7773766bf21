// Places of a text that resemble its end; a block drafter copies what follows them. The score of a place is the sum over
// layers and heads of <its key, what is asked for>, and what it is worth that so many tokens up to it agree with the newest.
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct Pointing {
    int32_t layers, heads, dim, matches, count, threads;  // count: best places that are wanted, at most MOST
    int64_t end;                                          // where the newest token is; only places before it are looked at
    const bf16* const* keys;                              // of each layer, by head and place
    int64_t head_stride, place_stride;
    const float* asked;   // [layers, heads, dim]
    const int64_t* text;  // tokens up to `end`
    const float* worth;   // of 0 to `matches` tokens that agree
    float* values;        // [count] from the best on; what is missing stays as it is
    int64_t* places;
};

inline float likeness(const Pointing& p, int64_t place) {
    Floats sum = all(0.0f);
    const float* asked = p.asked;
    for (int layer = 0; layer < p.layers; layer++)
        for (int head = 0; head < p.heads; head++) {
            const bf16* key = p.keys[layer] + head * p.head_stride + place * p.place_stride;
            for (int i = 0; i < p.dim; i += 16, asked += 16) sum = fma(widen16(key + i), load(asked), sum);
        }
    int agree = 0;
    while (agree < p.matches && place >= agree && p.text[place - agree] == p.text[p.end - agree]) agree++;
    return sum_of(sum) + p.worth[agree];
}

// How many were found.
inline int find_places(const Pointing& p) {
    static thread_local Line<float> line;
    line.reserve(p.end + 1);
    float* scores = line.data;
    constexpr int64_t PART = 64;
    each_row((p.end + PART - 1) / PART, p.threads, [&](int part) {
        for (int64_t i = part * PART; i < std::min(p.end, (part + 1) * PART); i++) scores[i] = likeness(p, i);
    });
    const int count = std::min<int64_t>(p.count, p.end);
    if (count) largest(scores, p.end, count, p.values, p.places);
    return count;
}
