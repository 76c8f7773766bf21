// The products of words.h by tiles of bytes, for several rows. A row's 12-bit number is sixteen times one signed byte plus another;
// products of both with the codes, as bytes too, are whole numbers whose sum is the whole number of words.h, which then goes into
// the same float32 sum by the same operations. So a row gets the same bits here and there, whatever rows are beside it.
//
// A tile product takes a panel of rows, two lines of bytes each, against a group of k (32, or 16 where scales are as fine) of a
// block of columns: a tile of lines that hold four k of each column. In which order k comes is all the same if rows and
// weights have it alike; here line 2 q + s has k = 8 q + 2 s + {0, 4, 1, 5}, which a shift and a mask make of packed nibbles.
// Where codes are nibbles, one line of bytes holds a row, and one product does it (nibbles.h).
#pragma once
#include "tile.h"
#include "words.h"

constexpr int BYTE_ROWS = 9;   // fewer rows go by words, which are quicker up to eight (docs/notes/any-cpu.md)
constexpr int BYTE_LINES = 8;  // fours of a k-block
constexpr int CHUNK = 16;      // k-blocks whose codes are kept spread out, for all rows: as many as stay in the nearest cache
constexpr int BEHIND = 2;      // groups of k between a product and the use of its sums: it takes long, others go on meanwhile

// Rows [sixteens of rows][k-blocks][16][2][32]: high bytes and low bytes of a row's k-block.
struct ByteRows : WordRows {
    Line<int8_t> bytes;
    static constexpr int ROW = 2 * DEPTH, SIXTEEN = ROWS * ROW;

    void take_bytes(const act* a, long lda, int rows, int depth) {
        const size_t count = depth / DEPTH, sixteens = (rows + ROWS - 1) / ROWS;
        bytes.reserve(sixteens * count * SIXTEEN);
        blocks.reserve(sixteens * (ROWS / MANY) * count);  // whole sixteens: what a row lacks is read, not used
        take_rows(a, lda, rows, depth, PutBytes{bytes.data, long(count)});
    }
    // A panel's first k-block; the next lies SIXTEEN further on.
    const int8_t* panel(int number, int count) const { return &bytes[place(number, count)]; }

  private:
    static long place(long panel, long count) { return panel * MANY / ROWS * count * SIXTEEN + panel * MANY % ROWS * ROW; }
    struct PutBytes {
        int8_t* bytes;
        long count;
        void put(long block, int row, Words codes) const {
            split(codes, bytes + place(block / count, count) + block % count * SIXTEEN + row * ROW);
        }
        void row(long block, int row, const int16_t* codes) const { put(block, row, load_words(codes)); }
        void panel(long block, const Ints (&low)[MANY], const Ints (&high)[MANY]) const {
            int8_t* to = bytes + place(block / count, count) + block % count * SIXTEEN;
            UNROLLED for (int r = 0; r < MANY; r++) split(words_of(low[r], high[r]), to + r * ROW);
        }
    };
    static void split(Words x, int8_t* to) {  // 16 high + low, low from -8 on: high is rounded, not cut
        const __m512i high = _mm512_srai_epi16(_mm512_add_epi16(x, _mm512_set1_epi16(8)), 4);
        const __m512i both = blended(_mm512_sub_epi16(x, up<4>(high)), up<8>(high), 0xff);
        const __m128i order = _mm_setr_epi8(0, 8, 2, 10, 4, 12, 6, 14, 1, 9, 3, 11, 5, 13, 7, 15);  // of eight k: low, then high
        const __m512i eights = _mm512_shuffle_epi8(both, _mm512_broadcast_i32x4(order));
        _mm512_store_si512(to, _mm512_permutexvar_epi64(_mm512_setr_epi64(1, 3, 5, 7, 0, 2, 4, 6), eights));
    }
};

// Fields of a pair of k at bit AT of low bytes, those of the pair after the next at the same bit of high ones: k, k + 4, k + 1, k + 5.
template <int WIDTH, int AT, int PAIR> inline Words brought_twice(const uint8_t* lines) {
    if constexpr (WIDTH == 4) return brought<4, AT, PAIR>(lines);  // they lie so
    else return blended(brought<WIDTH, AT, PAIR>(lines), brought<WIDTH, AT + 8, PAIR + 2>(lines), 0xff);
}
constexpr int16_t low_bits(int bits) { return 0x101 * ((1 << bits) - 1); }  // of both bytes

// One of the eight lines of fours, less the center.
template <class Form, int WHICH> inline Words fours(const uint8_t* codes) {
    constexpr int PAIR = WHICH / 2 * 4 + WHICH % 2;
    if constexpr (std::is_same_v<Form, Grid8>) {
        return blended(Form::template word<PAIR>(codes), up<8>(Form::template word<PAIR + 2>(codes)), 0xff);
    } else {
        constexpr int LOW = Codes<Form::BITS>::LOW, HIGH = Codes<Form::BITS>::HIGH;
        Words x = brought_twice<LOW, 0, PAIR>(codes);
        if constexpr (HIGH > 0) x = blended(x, brought_twice<HIGH, LOW, PAIR>(codes + LOW * LINE), low_bits(LOW));
        x = masked(x, low_bits(Form::BITS));
        if constexpr (Form::CURVED) return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_load_si128((const __m128i*)CURVE_VALUES)), x);
        return Form::CENTER ? _mm512_sub_epi8(x, _mm512_set1_epi8(Form::CENTER)) : x;
    }
}

// Codes of 16 columns that have been spread out, with their scales as floats.
template <int LINES> struct alignas(64) SpreadBlock {
    uint8_t lines[LINES][LINE];
    float step[2][COLUMNS], least[2][COLUMNS];
};
using ByteBlock = SpreadBlock<BYTE_LINES>;
struct ByteRoom {  // where a thread works: codes of two blocks of columns, whole numbers of a few groups of k, sums
    union {
        ByteBlock blocks[CHUNK][2];
        SpreadBlock<2 * BYTE_LINES> nibbles[CHUNK];
    };
    alignas(64) int32_t wholes[2 * BEHIND][2][ROWS][COLUMNS];
    Line<float> sums;  // [panels][2 blocks][MANY][16]
    ByteRoom() {}
};

template <class Form, class Block> INLINED inline void keep_scales(const Column& column, unsigned k, Block& to) {
    UNROLLED for (int group = 0; group < Form::GROUPS; group++) {
        store(to.step[group], Form::step(column.scales, k, group));
        if (Form::HAS_LEAST) store(to.least[group], Form::least(column.scales, k, group));
    }
}
template <class Form> INLINED inline void spread(const Column& column, unsigned k, ByteBlock& to) {
    const uint8_t* codes = column.codes + long(k) * Form::CODES;
    each<BYTE_LINES>([&](auto line) INLINED { _mm512_store_si512(to.lines[line], fours<Form, line>(codes)); });
    each<Form::CODES / LINE>([&](auto line) INLINED { _mm_prefetch((const char*)codes + column.codes_ahead + line * LINE, _MM_HINT_T0); });
    keep_scales<Form>(column, k, to);
}

// Sums and left factors have two lines for every row. A thread's tiles keep this shape from one product to the next.
inline void begin_byte_tiles(int rows, int groups) {
    const int here = rows < MANY ? rows : MANY, wanted = 4 * here + groups;
    if (byte_shape == wanted) return;
    TileShape shape;
    for (int i = 0; i < 8; i++) {
        shape.rows[i] = i < 6 ? 2 * here : BYTE_LINES / groups;
        shape.bytes[i] = i == 4 || i == 5 ? DEPTH / groups : 64;
    }
    shape_tiles(shape);
    byte_shape = wanted;
}

// Whole numbers of a group of k of a panel against two blocks of columns; TURN: which half of the registers.
template <int TURN> inline void multiply_group(const int8_t* x, const uint8_t* w, const uint8_t* w2, int32_t (*to)[ROWS][COLUMNS]) {
    constexpr int C = 2 * TURN, A = 4 + TURN;
    clear_tile<C>(), clear_tile<C + 1>();
    load_tile<A>(x, DEPTH);
    load_tile<6>(w, LINE);
    multiply_bytes<C, A, 6>();
    load_tile<7>(w2, LINE);
    multiply_bytes<C + 1, A, 7>();
    store_tile<C>(to[0], LINE), store_tile<C + 1>(to[1], LINE);
}

// Sums [2][MANY][16] of the first R rows of a panel, which grow by k-blocks `from` to `upto`; `fresh`: their codes are not yet spread
// out. Tiles are multiplied while others spread codes and take whole numbers into the sums, which is what lasts.
template <class Form, int R>
void add_bytes(const int8_t* x, const Block* block, const Column (&column)[2], unsigned from, unsigned upto, bool fresh, ByteRoom& room,
               float* sums) {
    constexpr int GROUPS = Form::GROUPS, LINES = BYTE_LINES / GROUPS, TWO = 2 / GROUPS;  // k-blocks of two groups
    Floats sum[2][R];
    UNROLLED for (int i = 0; i < 2 * R; i++) sum[i / R][i % R] = load(sums + (i / R * MANY + i % R) * 16);
    auto ready = [&](unsigned k) INLINED {  // two groups from k on
        for (const unsigned end = k + TWO; fresh && k < end && k < upto; k++)
            spread<Form>(column[0], k, room.blocks[k % CHUNK][0]), spread<Form>(column[1], k, room.blocks[k % CHUNK][1]);
    };
    auto multiply = [&](auto turn, unsigned g) INLINED {
        constexpr int GROUP = turn % GROUPS;
        const ByteBlock* w = room.blocks[g / GROUPS % CHUNK];
        multiply_group<turn>(x + g / GROUPS * ByteRows::SIXTEEN + GROUP * LINES * 4, w[0].lines[GROUP * LINES], w[1].lines[GROUP * LINES],
                             room.wholes[g % (2 * BEHIND)]);
    };
    auto take = [&](auto turn, unsigned g) INLINED {
        constexpr int GROUP = turn % GROUPS, PART = GROUPS == 1 ? 0 : 1 + GROUP;
        const ByteBlock* w = room.blocks[g / GROUPS % CHUNK];
        const Block& own = block[g / GROUPS];
        const auto* wholes = room.wholes[g % (2 * BEHIND)];
        const Floats step[2] = {load(w[0].step[GROUP]), load(w[1].step[GROUP])};
        const Floats least[2] = {load(w[0].least[GROUP]), load(w[1].least[GROUP])};
        UNROLLED for (int r = 0; r < R; r++) {
            const Floats unit = all(own.step[r]), total = all(own.total[PART][r]);
            UNROLLED for (int n = 0; n < 2; n++) {
                const Ints whole = plus(doubled<4>(load_ints(wholes[n][2 * r])), load_ints(wholes[n][2 * r + 1]));
                sum[n][r] = fma(to_floats(whole), mul(step[n], unit), sum[n][r]);
                if (Form::HAS_LEAST) sum[n][r] = fma(least[n], total, sum[n][r]);
            }
        }
    };
    const std::integral_constant<int, 0> even;
    const std::integral_constant<int, 1> odd;
    const unsigned first = from * GROUPS, last = upto * GROUPS;
    for (unsigned next = first; next < last + 2 + BEHIND; next += 2) {  // codes are spread out one step ahead
        ready(next / GROUPS);
        if (next == first) continue;
        const unsigned g = next - 2;
        settle();
        if (g < last) multiply(even, g);
        if (g >= first + BEHIND) take(even, g - BEHIND);
        if (g + 1 < last) multiply(odd, g + 1);
        if (g >= first + BEHIND && g + 1 < last + BEHIND) take(odd, g + 1 - BEHIND);
    }
    UNROLLED for (int i = 0; i < 2 * R; i++) store(sums + (i / R * MANY + i % R) * 16, sum[i / R][i % R]);
}

template <class Form>
void product_by_bytes(const ByteRows& x, int rows, const Weight& w, int begin, int end, ByteRoom& room, const Which& block, const Taker& emit) {
    const int blocks = w.depth / DEPTH, panels = ByteRows::panels(rows), chunk = panels > 1 ? CHUNK : blocks;
    constexpr int SUMS = 2 * MANY * 16, HALF = FEW<Form> ? MANY : MANY / 2;  // sums of a panel; rows of a small one
    begin_byte_tiles(rows, Form::GROUPS);
    room.sums.reserve(size_t(panels) * SUMS);
    auto column = [&](int j) {  // the last may come twice
        const long at = block(j < end ? j : end - 1), next = block(j + 2 < end ? j + 2 : end - 1);
        return Column{w.codes + at * blocks * Form::CODES, w.scales + at * Form::scale_bytes(blocks), (next - at) * blocks * Form::CODES};
    };
    for (int j = begin; j < end; j += 2) {
        const Column both[2] = {column(j), column(j + 1)};
        std::memset(room.sums.data, 0, panels * SUMS * sizeof(float));
        for (int k = 0; k < blocks; k += chunk)
            for (int panel = 0; panel < panels; panel++) {
                const auto add = rows - panel * MANY > HALF ? add_bytes<Form, MANY> : add_bytes<Form, HALF>;
                const long at = long(panel) * blocks;
                const int upto = k + chunk < blocks ? k + chunk : blocks;
                add(x.panel(panel, blocks), &x.blocks[at], both, k, upto, panel == 0, room, &room.sums[panel * SUMS]);
            }
        for (int panel = 0; panel < panels; panel++)
            for (int i = 0; i < 2 * MANY; i++)
                if (const int row = panel * MANY + i % MANY, one = j + i / MANY; row < rows && one < end)
                    emit(row, one, load(&room.sums[panel * SUMS + i * 16]));
    }
}
