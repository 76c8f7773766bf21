// The rows of a block drafter's round: from pending tokens and the target's states before them, through the drafter's
// layers, to what the rows share with their levels and to the places that texts may be copied from.
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct BlockRows {
    int32_t texts, size, hidden, states, layers;  // size: rows of a text; states: width of those; a pass for each layer
    int32_t heads, dim, places, matches, turns;   // of what is asked for; best places; tokens that may agree; rotations
    int32_t threads;
    float eps, scale, asked_scale, nothing;  // of norms, tokens, what is asked for; the score of a missing place
    int32_t tiles;
    Source token;                            // [texts] pending ones
    const bf16* state;                       // [texts, states]
    const float* state_scale;                // [states]
    const bf16* query;                       // [size, hidden]
    const Pass* passes;                      // from `rows` to `rows`
    bf16* rows;                              // [texts * size, hidden]
    const bf16 *share_norm, *ask_norm;
    bf16* shares;                            // [texts * size, share.columns]
    const int64_t* const* text;              // the tokens of each
    const int64_t* end;                      // [texts] where pending tokens are; keys of those before are known
    const bf16* rotations;
    const float* worth;                      // of 0 to `matches` tokens that agree
    float* scores;                           // [texts, places]
    int64_t* after;                          // [texts, places, size] the tokens after each place; -1 where its text ends
    Weight fuse, share, ask;                 // without columns: left out
};

template <class T> static T* scratch(Line<T>& line, size_t count) {
    line.reserve(count);
    return line.data;
}

// rows[t, j] = fuse [scale token; states / their scales] + query[j]
static void begin_rows(const BlockRows& b) {
    const int d = b.hidden, wide = d + b.states;
    static thread_local Line<bf16> reads, joins;
    bf16 *read = scratch(reads, size_t(b.texts) * wide), *joined = scratch(joins, size_t(b.texts) * d);
    for (int t = 0; t < b.texts; t++) {
        bf16* to = read + long(t) * wide;
        const bf16* token = b.token.at(t, to);
        for (int i = 0; i < d; i += 16) narrow16(to + i, mul(widen16(token + i), all(b.scale)));
        for (int i = 0; i < b.states; i += 16)
            narrow16(to + d + i, mul(widen16(b.state + long(t) * b.states + i), load(b.state_scale + i)));
    }
    fd_linear(read, b.texts, &b.fuse, nullptr, joined, 0, b.tiles, b.threads);
    for (int r = 0; r < b.texts * b.size; r++)
        for (int i = 0; i < d; i += 16) {
            const bf16 *own = joined + long(r / b.size) * d + i, *query = b.query + r % b.size * d + i;
            narrow16(b.rows + long(r) * d + i, add(widen16(own), widen16(query)));
        }
}

// What first rows ask texts for, turned as keys are: [texts, heads, dim].
static const float* what_is_asked(const BlockRows& b) {
    const int d = b.hidden, wide = b.heads * b.dim;
    static thread_local Line<bf16> reads, asks;
    static thread_local Line<act> turns;
    static thread_local Line<float> all_asked;
    bf16 *read = scratch(reads, size_t(b.texts) * d), *ask = scratch(asks, size_t(b.texts) * wide);
    for (int t = 0; t < b.texts; t++) norm(b.rows + long(t) * b.size * d, b.ask_norm, b.eps, d, read + long(t) * d);
    fd_linear(read, b.texts, &b.ask, nullptr, ask, 0, b.tiles, b.threads);
    act* turned = scratch(turns, b.dim);
    float* asked = scratch(all_asked, size_t(b.texts) * wide);
    for (int head = 0; head < b.texts * b.heads; head++) {
        convert(turned, ask + long(head) * b.dim, b.dim);
        rotate(turned, b.rotations + std::min<int64_t>(b.end[head / b.heads], b.turns - 1) * 2 * b.dim, b.dim);
        for (int i = 0; i < b.dim; i += 16) store(asked + long(head) * b.dim + i, mul(get16(turned + i), all(b.asked_scale)));
    }
    return asked;
}

// The best places of every text, and what follows them there.
static void point(const BlockRows& b) {
    const float* asked = what_is_asked(b);
    std::vector<const bf16*> keys(b.layers);
    std::vector<int64_t> places(b.places);
    for (int t = 0; t < b.texts; t++) {
        for (int i = 0; i < b.layers; i++) keys[i] = b.passes[i].stored(b.passes[i].first_layer, 0, b.passes[i].span[t].slot);
        const Pass& p = *b.passes;
        Pointing order{b.layers, b.heads / b.layers, b.dim, b.matches, b.places, b.threads, b.end[t], keys.data()};
        order.head_stride = long(p.capacity) * p.dim, order.place_stride = p.dim;
        order.asked = asked + long(t) * b.heads * b.dim, order.text = b.text[t], order.worth = b.worth;
        order.values = b.scores + t * b.places, order.places = places.data();
        std::fill_n(order.values, b.places, b.nothing);
        const int found = find_places(order);
        for (int i = 0; i < b.places * b.size; i++) {
            const int64_t at = i / b.size < found ? places[i / b.size] + 1 + i % b.size : b.end[t] + 1;
            b.after[long(t) * b.places * b.size + i] = at <= b.end[t] ? b.text[t][at] : -1;
        }
    }
}

// Whether every token was to be found; if not, nothing is done.
extern "C" int fd_block_rows(const BlockRows* given) {
    const BlockRows& b = *given;
    for (int t = 0; t < b.texts; t++)
        if (!b.token.inside(t)) return 0;
    begin_rows(b);
    for (int i = 0; i < b.layers; i++) fd_layers(b.passes + i);
    if (b.ask.columns) point(b);
    if (!b.share.columns) return 1;
    static thread_local Line<bf16> reads;
    const int rows = b.texts * b.size;
    bf16* read = scratch(reads, size_t(rows) * b.hidden);
    fd_norm(b.rows, b.share_norm, b.eps, rows, b.hidden, read);
    fd_linear(read, rows, &b.share, nullptr, b.shares, 0, b.tiles, b.threads);
    return 1;
}
