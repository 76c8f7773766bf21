// Layers of a Llama-like decoder over packed rows, in one call: norms, merged products, rotary positions, attention over
// the store, SwiGLU. Streams are bf16 and rounded where the torch decoder rounds them. Compiled where it is used.
#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "draw.h"
#include "pass.h"
#include "pool.h"
#if defined(BF16_TILES)
#include "attention.h"
#include "product.h"
#else
#include "attention_fma.h"
#include "floats.h"
#endif

template <class From, class To> static void norm(const From* x, const bf16* gain, float eps, int size, To* to) {
    Floats square = all(0.0f);
    for (int i = 0; i < size; i += 16) square = fma(get16(x + i), get16(x + i), square);
    const Floats by = all(1.0f / std::sqrt(sum_of(square) / size + eps));
    for (int i = 0; i < size; i += 16) put16(to + i, mul(mul(get16(x + i), by), widen16(gain + i)));
}

static void rotate(act* x, const bf16* turn, int dim) {
    const int half = dim / 2;
    for (int i = 0; i < half; i += 16) {
        const Floats a = get16(x + i), b = get16(x + half + i);
        const Floats low = fma(b, widen16(turn + dim + i), mul(a, widen16(turn + i)));
        const Floats high = fma(a, widen16(turn + dim + half + i), mul(b, widen16(turn + half + i)));
        put16(x + i, low), put16(x + half + i, high);
    }
}

struct Buffers {  // shared by the threads of a pass; rows in whole pairs of tiles
    Line<bf16> stream;
    Line<act> normed, qkv, mixed, gated, turned;
    Line<float> parts;  // attention over segments of a long text, before they are put together
};

struct Runner {
    const Pass& p;
    Buffers& b;
    Shares* shares;  // those of the next work; all threads come to the same ones, and whatever is done is done in one
    Room& room;
    Softmax& soft;

    template <class Each> void each_row(int rows, const Each& each) { shares++->each_of(rows, p.threads, each); }
    // Rows times a weight: emit(row, j, 16 sums) for j in 0 .. blocks, whose columns are those of block(j).
    template <class Block, class Emit>
    void multiply(const act* a, int rows, const Weight& w, int blocks, Block block, Emit emit) {
        bool prepared = false;  // by those alone that take a part: for others the rows may have changed already
        shares++->take(blocks, UNIT, p.threads, [&](int begin, int end) {
            if (!std::exchange(prepared, true)) prepare(a, w.depth, rows, w, room);
            product(a, w.depth, rows, w, begin, end, block, room, emit);
        });
    }
    template <class Emit> void multiply(const act* a, int rows, const Weight& w, Emit emit) {
        multiply(a, rows, w, w.columns / COLUMNS, [](int j) { return j; }, emit);
    }
    int width(const Layer& layer) const { return layer.enter == PAIRED ? 2 * p.hidden : p.hidden; }

    void enter(const Layer& layer, bf16* tap) {
        const int d = p.hidden, w = width(layer);
        each_row(p.rows, [&](int r) {
            const bf16* x = &b.stream[r * d];
            act* to = &b.normed[r * w];
            if (tap) std::memcpy(tap + long(r) * d, x, d * 2);
            if (layer.enter == BARE) convert(to, x, d);
            if (layer.enter == NORMED) norm(x, layer.attn_norm, p.eps, d, to);
            if (layer.enter == PAIRED) {
                static thread_local Line<bf16> row;
                row.reserve(d);
                norm(p.token.at(r, row.data), layer.token_norm, p.eps, d, to);
                norm(x, layer.attn_norm, p.eps, d, to + d);
            }
        });
    }

    // Queries, keys and values of all rows; keys and values alone where nobody attends.
    void project(const Layer& layer, bool attends) {
        const int n = layer.qkv.columns, first = attends ? 0 : p.heads * p.dim / COLUMNS;
        auto emit = [&](int row, int j, Floats sum) {
            const int at = 16 * (first + j);
            if (layer.qkv_bias) sum = add(sum, widen16(layer.qkv_bias + at));
            put16(&b.qkv[row * n + at], sum);
        };
        multiply(b.normed.data, p.rows, layer.qkv, n / COLUMNS - first, [first](int j) { return first + j; }, emit);
    }

    bf16* stored(int layer, int which, int slot, int head) const {
        return p.stored(layer, which, slot) + long(head) * p.capacity * p.dim;
    }

    void turn_and_store(const Layer& layer, int index, bool attends) {
        const int n = layer.qkv.columns;
        each_row(p.rows, [&](int row) {
            const Span* span = p.span;
            while (row >= span->begin + span->count) span++;
            const int at = span->length + span->first + row - span->begin;
            for (int h = attends ? 0 : p.heads; h < p.heads + 2 * p.kv_heads; h++) {
                act* x = &b.qkv[row * n + h * p.dim];
                const bf16* gain = h < p.heads ? layer.q_norm : layer.k_norm;
                const int kv = h - p.heads, head = kv % p.kv_heads;
                if (kv < p.kv_heads) {
                    if (gain) norm(x, gain, p.eps, p.dim, x);
                    rotate(x, p.rotations + p.position[row] * 2 * p.dim, p.dim);
                }
                if (kv >= 0) convert(stored(index, kv / p.kv_heads, span->slot, head) + long(at) * p.dim, x, p.dim);
            }
        });
    }

    // The places that a row sees from `begin` on: committed rows, its ancestors by depth, itself.
    static int line(const Span& span, int row, int begin, int* places) {
        int depth = 0, count = 0;
        for (int i = begin; i < span.length; i++) places[count++] = i;
        for (int i = span.first + row; i >= 0; i = span.parent ? span.parent[i] : i - 1) depth++;
        for (int i = span.first + row, at = count + depth; i >= 0; i = span.parent ? span.parent[i] : i - 1)
            places[--at] = span.length + i;
        return count + depth;
    }

    void lay_out(const bf16* keys, const bf16* values, const int* places, int begin, int count) {
        const bf16 *key[PLACES], *value[PLACES];
        for (int i = 0; i < count; i++) {
            const long at = long(places ? places[i] : begin + i) * p.dim;
            key[i] = keys + at, value[i] = values + at;
        }
        soft.place(key, value, count);
    }

    struct Item {  // rows chunk .. chunk + count of a span against one key/value head, within one segment of their text
        const Span* span;
        int chunk, count, head, segment, place;
    };
    static int chunks(const Span& span) { return (span.count + ROWS - 1) / ROWS; }
    static int segments(const Span& span) { return (span.length + span.first + span.count + SEGMENT - 1) / SEGMENT; }
    static std::pair<int, int> parts(const Pass& p) {  // items of one segment, and segments of the longest text
        int places = 0, most = 1;
        for (int s = 0; s < p.spans; s++) places += chunks(p.span[s]) * p.kv_heads, most = std::max(most, segments(p.span[s]));
        return {places, most};
    }
    static int part_size(const Pass& p) { return ROWS * (p.heads / p.kv_heads) * (p.dim + 2); }
    Item item(int number, int most) const {  // `most`: segments of the longest text
        const int segment = number % most, place = number / most;
        const Span* span = p.span;
        int left = place / p.kv_heads;
        for (; left >= chunks(*span); span++) left -= chunks(*span);
        const int rows = span->count - left * ROWS;
        return {span, left * ROWS, rows < ROWS ? rows : ROWS, place % p.kv_heads, segment, place};
    }

    void attend(const Layer& layer, int index, const Item& it) {
        const Span& span = *it.span;
        const int group = p.heads / p.kv_heads, n = layer.qkv.columns, queries = it.count * group;
        const bf16 *keys = stored(index, 0, span.slot, it.head), *values = stored(index, 1, span.slot, it.head);
        soft.begin(p.dim, queries);
        for (int r = 0; r < it.count; r++)
            convert(&soft.query[r * group * p.dim], &b.qkv[(span.begin + it.chunk + r) * n + it.head * group * p.dim], group * p.dim);
        const int before = span.length + span.first + it.chunk;  // place of the chunk's first row, in a chain
        const int shared = span.parent ? span.length / PLACES * PLACES : before + it.count;
        const int begin = it.segment * SEGMENT, end = std::min(shared, begin + SEGMENT);
        for (int at = begin; at < end; at += PLACES) {
            lay_out(keys, values, nullptr, at, std::min(end - at, PLACES));
            for (int q = 0; q < queries; q += ROWS) {
                auto seen = [&](int i) {
                    const int last = span.parent ? PLACES : before + (q + i) / group - at;  // greatest place that it sees
                    return last >= PLACES - 1 ? ~0u : last < 0 ? 0u : (2u << last) - 1;
                };
                soft.take(q, std::min(queries - q, ROWS), seen);
            }
        }
        if (span.parent) attend_lines(it, shared, group, keys, values);
    }

    void attend_lines(const Item& it, int shared, int group, const bf16* keys, const bf16* values) {
        const Span& span = *it.span;
        const int begin = it.segment * SEGMENT - shared, end = begin + SEGMENT;  // of the segment, counted from `shared` on
        if (end <= 0) return;
        std::vector<int> places(PLACES + span.first + span.count);
        for (int r = 0; r < it.count; r++) {
            const int all = std::min(line(span, it.chunk + r, shared, places.data()), end);
            for (int at = std::max(begin, 0); at < all; at += PLACES) {
                const int here = std::min(all - at, PLACES);
                lay_out(keys, values, places.data() + at, 0, here);
                for (int g = 0; g < group; g += ROWS)
                    soft.take(r * group + g, std::min(group - g, ROWS), [&](int) { return here == PLACES ? ~0u : (1u << here) - 1; });
            }
        }
    }

    void hand_on(const Item& it) {  // what the softmax has gathered
        const int group = p.heads / p.kv_heads;
        for (int r = 0; r < it.count; r++)
            for (int i = 0; i < group * p.dim; i += 16) {
                const int q = r * group + i / p.dim;
                const Floats by = all(1.0f / soft.sum[q]);
                put16(&b.mixed[((it.span->begin + it.chunk + r) * p.heads + it.head * group) * p.dim + i], mul(load(soft.row(q, i % p.dim)), by));
            }
    }

    // A text is attended to by segments, each by whoever is free, and these are put together in order: what a row gets
    // depends neither on threads nor on rows beside it.
    void attention(const Layer& layer, int index) {
        const int size = part_size(p);
        const auto sizes = parts(p);
        const int places = sizes.first, most = sizes.second;
        shares++->each_of(places * most, places * most, [&](int number) {
            const Item it = item(number, most);
            if (it.segment >= segments(*it.span)) return;
            attend(layer, index, it);
            most == 1 ? hand_on(it) : soft.save(&b.parts[long(number) * size]);
        });
        if (most == 1) return;
        shares++->each_of(places, places, [&](int place) {
            const Item it = item(place * most, most);
            soft.begin(p.dim, it.count * (p.heads / p.kv_heads));
            soft.join(&b.parts[long(place) * most * size], size, segments(*it.span));
            hand_on(it);
        });
    }

    void add_to_stream(const Line<act>& a, const Weight& w) {
        auto emit = [&](int row, int j, Floats sum) {
            bf16* at = &b.stream[row * p.hidden + 16 * j];
            narrow16(at, add(sum, widen16(at)));
        };
        multiply(a.data, p.rows, w, emit);
    }

    void gate(const Layer& layer) {
        each_row(p.rows, [&](int r) { norm(&b.stream[r * p.hidden], layer.mlp_norm, p.eps, p.hidden, &b.normed[r * p.hidden]); });
        const int blocks = p.inner / COLUMNS;
        alignas(64) float gates[2][3 * ROWS][COLUMNS];  // gate blocks wait here for their up blocks
        auto emit = [&](int row, int j, Floats sum) {
            float* gate = gates[j / 2 % 2][row % (3 * ROWS)];
            sum = as_act(sum);
            if (j % 2 == 0) return store(gate, sum);
            put16(&b.gated[row * p.inner + j / 2 * 16], mul(as_act(silu16(load(gate))), sum));
        };
        auto block = [&](int j) { return j / 2 + (j % 2) * blocks; };  // gate, up, gate, up, ..
        multiply(b.normed.data, p.rows, layer.gate_up, 2 * blocks, block, emit);
    }

    void hand_out(bf16* to) {  // the stream as it is
        if (to) each_row(p.rows, [&](int r) { std::memcpy(to + long(r) * p.hidden, &b.stream[r * p.hidden], p.hidden * 2); });
    }

    // The final norm, the turn of those that have one, the logits, and the likeliest words.
    void finish(const Tail& tail) {
        const int d = p.hidden, rows = tail.row ? tail.rows : p.rows;
        each_row(rows, [&](int r) {
            bf16* own = tail.features + long(r) * d;  // features are bf16, and the words are those of what is handed out
            norm(&b.stream[(tail.row ? tail.row[r] : r) * d], tail.norm, p.eps, d, own);
            convert(&b.normed[r * d], own, d);
        });
        begin_tiles(rows);
        const act* features = b.normed.data;
        if (tail.turn.columns) {
            auto emit = [&](int row, int j, Floats sum) { put16(&b.turned[row * d + 16 * j], round16(sum)); };
            multiply(features, rows, tail.turn, emit);
            features = b.turned.data;
            each_row(rows, [&](int r) { convert(tail.features + long(r) * d, features + long(r) * d, d); });
        }
        auto emit = [&](int row, int j, Floats sum) {
            if (tail.words_bias) sum = add(sum, widen16(tail.words_bias + 16 * j));
            store(tail.logits + long(row) * tail.words.columns + 16 * j, sum);
        };
        multiply(features, rows, tail.words, emit);
        if (!tail.top) return;
        each_row(rows, [&](int r) {
            likeliest(tail.logits + long(r) * tail.words.columns, tail.words.columns, tail.top, tail.ids, tail.least,
                      tail.values + r * tail.top, tail.places + r * tail.top);
        });
    }

    void run() {
        room.rounds = p.tail ? p.tail->words.columns : !p.stores_only;
        room.tiles = p.tiles;
        for (int index = p.first_layer; index < p.last_layer; index++) {
            const Layer& layer = p.layers[index];
            const bool attends = !p.stores_only || index + 1 < p.last_layer;
            if (layer.enter == SKIPPED) hand_out(p.taps[index]);
            if (layer.enter != SKIPPED) {
                enter(layer, p.taps[index]);
                begin_tiles(p.rows);
                project(layer, attends);
                turn_and_store(layer, index, attends);
                if (!attends) return;
                begin_tiles(p.rows * (p.heads / p.kv_heads));
                attention(layer, index);
            }
            begin_tiles(p.rows);
            if (layer.enter != SKIPPED) add_to_stream(b.mixed, layer.out);
            if (!layer.has_mlp) continue;
            gate(layer);
            add_to_stream(b.gated, layer.down);
        }
        hand_out(p.taps[p.last_layer]);
        hand_out(p.output);
        if (p.tail) finish(*p.tail);
    }
};

static thread_local Room room;
static thread_local Softmax soft;

extern "C" int fd_ready() { return allow_tiles(); }  // whether the kernel lets this process use what was compiled

// Whether every row was to be found; if not, nothing is done.
extern "C" int fd_layers(const Pass* pass) {
    const Pass& p = *pass;
    for (int r = 0; r < p.rows; r++)
        if (!p.stream.inside(r) || !p.token.inside(r)) return 0;
    static thread_local Buffers buffers;
    Buffers& b = buffers;
    const size_t rows = (p.rows + 2 * ROWS - 1) / (2 * ROWS) * (2 * ROWS);
    const size_t qkv = (p.heads + 2 * p.kv_heads) * p.dim;
    b.stream.reserve(rows * p.hidden);
    for (auto [buffer, width] : {std::pair{&b.normed, size_t(2 * p.hidden)}, {&b.qkv, qkv}, {&b.mixed, size_t(p.heads * p.dim)},
                                 {&b.gated, size_t(p.inner)}, {&b.turned, size_t(p.hidden)}})
        buffer->reserve(rows * width);
    if (const auto [places, most] = Runner::parts(p); most > 1) b.parts.reserve(size_t(places) * most * Runner::part_size(p));
    for (int r = 0; r < p.rows; r++) {
        bf16* to = &b.stream[r * p.hidden];
        if (const bf16* row = p.stream.at(r, to); row != to) std::memcpy(to, row, p.hidden * 2);
    }
    constexpr int OF_A_LAYER = 9;  // four products, two norms, rotations, attention and its parts put together
    constexpr int OF_A_TAIL = 7;   // two copies of the stream, norm, turn and its copy, logits, likeliest words
    std::vector<Shares> shares(OF_A_LAYER * (p.last_layer - p.first_layer) + OF_A_TAIL);
    Pool::own().run(p.threads, [&] {
        Runner{p, b, shares.data(), room, soft}.run();
        end_tiles();
    });
    return 1;
}

// x [rows, depth] times weight', plus bias: into bf16 or float32.
extern "C" void fd_linear(const bf16* x, int rows, const Weight* weight, const bf16* bias, void* to, int wide, int tiles, int threads) {
    const Weight& w = *weight;
    static thread_local Line<act> padded;
    const size_t whole = (rows + 2 * ROWS - 1) / (2 * ROWS) * (2 * ROWS);
    padded.reserve(whole * w.depth);
    convert(padded.data, x, long(rows) * w.depth);
    const act* a = padded.data;
    const int blocks = w.columns / COLUMNS;
    auto emit = [&](int row, int j, Floats sum) {
        const long at = long(row) * w.columns + 16 * j;
        if (bias) sum = add(sum, widen16(bias + 16 * j));
        wide ? store((float*)to + at, sum) : narrow16((bf16*)to + at, sum);
    };
    Shares shares;
    Pool::own().run(threads, [&] {
        room.rounds = true, room.tiles = tiles;
        begin_tiles(rows);
        bool prepared = false;
        shares.take(blocks, UNIT, threads, [&](int begin, int end) {
            if (!std::exchange(prepared, true)) prepare(a, w.depth, rows, w, room);
            product(a, w.depth, rows, w, begin, end, [](int j) { return j; }, room, emit);
        });
        end_tiles();
    });
}

// Rows shared out among threads.
template <class Each> static void each_row(int rows, int threads, Each each) {
    Shares shares;
    Pool::own().run(threads < rows ? threads : rows, [&] { shares.each_of(rows, rows, each); });
}

// The k largest of each row of float32 numbers and their places; the k likeliest of each row of logits. See largest.h.
extern "C" void fd_largest(const float* x, int rows, int size, int k, float* values, int64_t* places, int threads) {
    each_row(rows, threads, [&](int r) { largest(x + long(r) * size, size, k, values + r * k, places + r * k); });
}

extern "C" void fd_likeliest(const float* x, int rows, int size, int k, const int64_t* ids, float least, float* values,
                             int64_t* places, int threads) {
    each_row(rows, threads, [&](int r) { likeliest(x + long(r) * size, size, k, ids, least, values + r * k, places + r * k); });
}

extern "C" int64_t fd_draw(const float* x, int size, const Options* how, uint64_t key) {
    static thread_local Race race;
    return draw(x, size, *how, key, race);
}

extern "C" void fd_norm(const bf16* x, const bf16* gain, float eps, int rows, int size, bf16* to) {
    for (int r = 0; r < rows; r++) norm(x + long(r) * size, gain, eps, size, to + long(r) * size);
}

#include "copying.h"
#include "correct.h"
#include "pointing.h"

#include "block_rows.h"
#include "greedy_chain.h"
#include "value_tree.h"
