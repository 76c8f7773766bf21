// The products of bytes.h where codes are nibbles: sixteen times a code is a byte, too, so a row's high bytes times those and its
// low bytes times the codes add up in one tile product to the whole number of words.h. It takes half of the products, of their
// sums and of the work on these.
#pragma once
#include "bytes.h"

constexpr int NIBBLE_LINES = 2 * BYTE_LINES;  // fours of a k-block: sixteen times each, then each
using NibbleBlock = SpreadBlock<NIBBLE_LINES>;

template <class Form> constexpr bool FOLDED = Form::BITS == 4 && !Form::CURVED;

template <class Form> INLINED inline void spread_nibbles(const Column& column, unsigned k, NibbleBlock& to) {
    static_assert(Form::GROUPS == 1, "a product goes over a whole k-block");
    const uint8_t* codes = column.codes + long(k) * Form::CODES;
    UNROLLED for (int q = 0; q < BYTE_LINES / 2; q++) {
        const Words line = load_words((const int16_t*)(codes + q * LINE));
        const Words low = masked(line, 0x0f0f), high = masked(line, int16_t(0xf0f0));
        _mm512_store_si512(to.lines[2 * q], up<4>(low)), _mm512_store_si512(to.lines[2 * q + 1], high);
        _mm512_store_si512(to.lines[BYTE_LINES + 2 * q], low), _mm512_store_si512(to.lines[BYTE_LINES + 2 * q + 1], down<4>(high));
        _mm_prefetch((const char*)codes + column.codes_ahead + q * LINE, _MM_HINT_T0);
    }
    keep_scales<Form>(column, k, to);
}

inline void begin_nibble_tiles(int rows) {
    const int here = rows < ROWS ? rows : ROWS;
    if (byte_shape == -here) return;
    TileShape shape;
    for (int i = 0; i < 8; i++) shape.bytes[i] = LINE, shape.rows[i] = i < 6 ? here : NIBBLE_LINES;
    shape_tiles(shape);
    byte_shape = -here;
}

// Whole numbers of a k-block of up to 16 rows; TURN: which of four registers takes them.
template <int TURN> INLINED inline void multiply_nibbles(const int8_t* x, const NibbleBlock& w, int32_t (*to)[COLUMNS]) {
    constexpr int A = 4 + TURN % 2, B = 6 + TURN % 2;
    clear_tile<TURN>();
    load_tile<A>(x, ByteRows::ROW);
    load_tile<B>(w.lines, LINE);
    multiply_by_unsigned<TURN, A, B>();
    store_tile<TURN>(to, LINE);
}

constexpr int AHEAD = 2;   // k-blocks between spreading codes and multiplying them
constexpr int ONCE = 8;    // spread k-blocks that are kept where sixteen rows want them once: more would crowd the rows out
static_assert(AHEAD + BEHIND < ONCE && ONCE <= CHUNK, "scales of a k-block are wanted until its sums are taken");

// Sums [16][16] of the first R of sixteen rows, which grow by k-blocks `from` to `upto`; `fresh`: codes are not yet spread out, of
// which `ring` stay. Of `block` the other panel lies `blocks` further on.
template <class Form, int R>
void add_nibbles(const int8_t* x, const Block* block, int blocks, const Column& column, int from, int upto, bool fresh, unsigned ring,
                 ByteRoom& room, float* sums) {
    constexpr int TURNS = 4;
    const auto at = [&](unsigned k) INLINED -> NibbleBlock& { return room.nibbles[k % ring]; };
    const auto wholes = [&](unsigned k) INLINED { return room.wholes[k % (2 * BEHIND)][0]; };
    Floats sum[R];
    UNROLLED for (int r = 0; r < R; r++) sum[r] = load(sums + r * 16);
    auto spread = [&](int k) INLINED { if (fresh && k < upto) spread_nibbles<Form>(column, k, at(k)); };
    auto take = [&](int k) INLINED {
        const NibbleBlock& w = at(k);
        const Floats step = load(w.step[0]), least = load(w.least[0]);
        const auto* whole = wholes(k);
        UNROLLED for (int r = 0; r < R; r++) {
            const Block& own = block[k + r / MANY * blocks];
            Ints x = load_ints(whole[r]);
            if (Form::CENTER) x = plus(x, beginning<Form::CENTER>(&own.minus[0][r % MANY]));
            sum[r] = fma(to_floats(x), mul(step, all(own.step[r % MANY])), sum[r]);
            if (Form::HAS_LEAST) sum[r] = fma(least, all(own.total[0][r % MANY]), sum[r]);
        }
    };
    for (int k = from; k < from + AHEAD; k++) spread(k);
    for (int first = from; first < upto + BEHIND; first += TURNS)
        each<TURNS>([&](auto turn) INLINED {
            const int k = first + turn;
            spread(k + AHEAD);
            settle();
            if (k < upto) multiply_nibbles<turn>(x + long(k) * ByteRows::SIXTEEN, at(k), wholes(k));
            if (k >= from + BEHIND && k < upto + BEHIND) take(k - BEHIND);
        });
    UNROLLED for (int r = 0; r < R; r++) store(sums + r * 16, sum[r]);
}

template <class Form>
void product_by_nibbles(const ByteRows& x, int rows, const Weight& w, int begin, int end, ByteRoom& room, const Which& block, const Taker& emit) {
    const int blocks = w.depth / DEPTH, sixteens = (rows + ROWS - 1) / ROWS, chunk = sixteens > 1 ? CHUNK : blocks;
    const unsigned ring = sixteens > 1 ? CHUNK : ONCE;
    constexpr int SUMS = ROWS * COLUMNS, FEWER = FEW<Form> ? ROWS : ROWS / 2;
    begin_nibble_tiles(rows);
    room.sums.reserve(size_t(sixteens) * 2 * SUMS);
    auto sums = [&](int sixteen, int n) { return &room.sums[(sixteen * 2 + n) * SUMS]; };
    auto column = [&](int j) {
        const long at = block(j), next = block(j + 1 < end ? j + 1 : j);
        return Column{w.codes + at * blocks * Form::CODES, w.scales + at * Form::scale_bytes(blocks), (next - at) * blocks * Form::CODES, 0};
    };
    for (int j = begin; j < end; j += 2) {  // whoever takes sums may want two blocks of a row soon
        std::memset(room.sums.data, 0, sixteens * 2 * SUMS * sizeof(float));
        for (int n = 0; n < 2 && j + n < end; n++) {
            const Column own = column(j + n);
            for (int k = 0; k < blocks; k += chunk)
                for (int i = 0; i < sixteens; i++) {
                    const auto add = rows - i * ROWS > FEWER ? add_nibbles<Form, ROWS> : add_nibbles<Form, FEWER>;
                    const int upto = k + chunk < blocks ? k + chunk : blocks, panel = i * (ROWS / MANY);
                    add(x.panel(panel, blocks), &x.blocks[size_t(panel) * blocks], blocks, own, k, upto, i == 0, ring, room, sums(i, n));
                }
        }
        for (int row = 0; row < rows; row++)
            for (int n = 0; n < 2 && j + n < end; n++) emit(row, j + n, load(sums(row / ROWS, n) + row % ROWS * 16));
    }
}

// Columns of at least BYTE_ROWS rows times a weight of one format.
template <class Block, class Emit>
void product_of_bytes(const ByteRows& x, int rows, const Weight& w, int begin, int end, ByteRoom& room, Block block, Emit emit) {
    const Which which(block);
    const Taker to(emit);
    by_form(w.format, [&](auto form) {
        using Form = decltype(form);
        if constexpr (FOLDED<Form>) product_by_nibbles<Form>(x, rows, w, begin, end, room, which, to);
        else product_by_bytes<Form>(x, rows, w, begin, end, room, which, to);
    });
}
