// Products for processors without bf16 products.
//
// Weights on a grid: a row's numbers become 16-bit whole numbers with a step for every 32, which is finer than bf16
// (an error of 2^-16 of the largest of the 32). Codes are widened to 16 bits in registers and multiplied in pairs; sums of 32 are
// whole numbers, exact in any order, and go into float32 sums block by block, k ascending. Weights in bf16 are widened
// to float32 and multiplied by the row's own float32 numbers.
// Either way a row's result depends on nothing but the row: not on the rows or columns beside it.
#pragma once
#include <type_traits>

#include "act.h"
#include "formats.h"
#include "line.h"

inline bool allow_tiles() { return true; }  // there are none here
inline void begin_tiles(int) {}
inline void end_tiles() {}

constexpr float MOST_WORD = 32512;  // 127 * 256: with 8-bit codes, a sum of 32 products stays below 2^31

#if defined(__AVX512F__)
constexpr int MANY = 8;  // rows at a time, and whether by two blocks of columns: as many sums as registers hold
constexpr bool WIDE = true;
#else
constexpr int MANY = 4;
constexpr bool WIDE = false;
#endif

// Keep what `at` points to in memory: a compiler that tries to hold it in registers runs out of them.
template <class T> inline void in_memory(T& at) { asm volatile("" ::"r"(&at) : "memory"); }

// Rows [rows, depth] in panels of MANY: [panels][k-blocks][16 pairs of k][MANY], so that a product finds everything that
// it needs next at one address. Rows that a last panel lacks are never looked at.
struct WordRows {
    Line<int32_t> pairs;
    Line<float> step, total;  // [panels][k-blocks][MANY]: x = step * code, and the sum of the block's x

    void take(const act* a, long lda, int rows, int depth) {
        const int blocks = depth / DEPTH;
        const size_t all = size_t(rows + MANY - 1) / MANY * MANY * blocks;
        pairs.reserve(all * PAIRS), step.reserve(all), total.reserve(all);
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < blocks; k++) take_block(a + r * lda + k * DEPTH, long(r / MANY) * blocks + k, r % MANY);
    }

    static constexpr int PAIRS = DEPTH / 2;

  private:
    void take_block(const act* a, long block, int row) {
        const Floats low = get16(a), high = get16(a + 16);
        const float most = max_of(max(abs(low), abs(high)));
        const Floats by = all(most > 0 ? MOST_WORD / most : 0.0f);
        const Ints first = to_ints(mul(low, by)), second = to_ints(mul(high, by));
        alignas(64) int16_t codes[DEPTH];
        store_words(codes, first), store_words(codes + 16, second);
        for (int pair = 0; pair < PAIRS; pair++) std::memcpy(&pairs[(block * PAIRS + pair) * MANY + row], codes + 2 * pair, 4);
        const float unit = most / MOST_WORD;
        step[block * MANY + row] = unit;
        total[block * MANY + row] = unit * float(sum_of_ints(plus(first, second)));
    }
};

// A format of weights (formats.h): bytes of a k-block's codes, bytes of a column block's scales, and by k-block the scales as
// floats and a quarter of the codes (four pairs of k for every column) as words. GROUPS: scales a k-block has.
struct Grid8 {
    static constexpr int CODES = TILE, GROUPS = 1;
    static constexpr bool HAS_LEAST = false;
    static long scale_bytes(int blocks) { return blocks * 64L; }
    static Floats step(const uint8_t* scales, int k, int) { return load((const float*)(scales + k * 64)); }
    static Floats least(const uint8_t*, int) { return all(0.0f); }
    static void widen(const uint8_t* codes, int quarter, Words (&w)[4]) {
        for (int m = 0; m < 4; m++) w[m] = words_of_bytes(codes + (4 * quarter + m) * 32);
    }
};
struct Nibbles {
    static constexpr int CODES = TILE / 2, GROUPS = 1;
    static constexpr bool HAS_LEAST = true;
    static long scale_bytes(int blocks) { return blocks * 64L; }
    static Floats step(const uint8_t* scales, int k, int) { return halves(scales + k * 64); }
    static Floats least(const uint8_t* scales, int k) { return halves(scales + k * 64 + 32); }
    static void widen(const uint8_t* codes, int quarter, Words (&w)[4]) {
        const Words line = load_words((const int16_t*)codes + quarter * 32);
        w[0] = masked(line, 15), w[1] = masked(down<4>(line), 15), w[2] = masked(down<8>(line), 15), w[3] = down<12>(line);
    }
};
struct Super4 {
    static constexpr int CODES = TILE / 2, GROUPS = 1;
    static constexpr bool HAS_LEAST = true;
    static long scale_bytes(int blocks) { return blocks / 8 * 320L; }
    static Floats step(const uint8_t* scales, int k, int) {
        const uint8_t* at = scales + k / 8 * 320;
        return mul(halves(at), bytes(at + 64 + k % 8 * 32));
    }
    static Floats least(const uint8_t* scales, int k) {
        const uint8_t* at = scales + k / 8 * 320;
        return sub(all(0.0f), mul(halves(at + 32), bytes(at + 80 + k % 8 * 32)));
    }
    static void widen(const uint8_t* codes, int quarter, Words (&w)[4]) { Nibbles::widen(codes, quarter, w); }
};
struct Super8 {
    static constexpr int CODES = TILE, GROUPS = 2;
    static constexpr bool HAS_LEAST = false;
    static long scale_bytes(int blocks) { return blocks / 8 * 288L; }
    static Floats step(const uint8_t* scales, int k, int group) {
        const uint8_t* at = scales + k / 8 * 288;
        return mul(halves(at), signed_bytes(at + 32 + (k % 8 * 2 + group) * 16));
    }
    static Floats least(const uint8_t*, int) { return all(0.0f); }
    static void widen(const uint8_t* codes, int quarter, Words (&w)[4]) { Grid8::widen(codes, quarter, w); }
};

// Where a product finds the codes and scales of a block of columns, and how far on the codes lie that will be wanted next.
struct Column {
    const uint8_t *codes, *scales;
    long ahead;
};

// Sums of the first R rows of a panel against N blocks of columns, over the whole depth. A row's pair of numbers is fetched
// once for all N, and the sums of whole k-blocks wait in memory: registers are for the products.
template <class Form, int R, int N>
void add_words(const WordRows& x, int panel, int blocks, const Column (&column)[N], float (&sums)[N][R][16]) {
    constexpr int CHAINS = R * N <= 2 ? 4 : R * N <= 4 ? 2 : 1;  // sums that run side by side, to hide the latency of a product
    constexpr int QUARTERS = 4 / Form::GROUPS;
    const int32_t* pairs = &x.pairs[size_t(panel) * blocks * WordRows::PAIRS * MANY];
    const float *unit = &x.step[size_t(panel) * blocks * MANY], *total = &x.total[size_t(panel) * blocks * MANY];
    std::memset(sums, 0, sizeof sums);
    for (int k = 0; k < blocks; k++, unit += MANY, total += MANY) {
        const uint8_t* codes[N];
        for (int n = 0; n < N; n++) {
            codes[n] = column[n].codes + long(k) * Form::CODES;
            for (int line = 0; line < Form::CODES; line += 64) prefetch(codes[n] + column[n].ahead + line);
        }
#pragma GCC unroll 2
        for (int group = 0; group < Form::GROUPS; group++) {
            Ints whole[N][R][CHAINS];
            for (int n = 0; n < N; n++)
                for (int r = 0; r < R; r++)
                    for (int c = 0; c < CHAINS; c++) whole[n][r][c] = no_ints();
#pragma GCC unroll 4
            for (int q = 0; q < QUARTERS; q++, pairs += 4 * MANY) {
                Words w[N][4];
                for (int n = 0; n < N; n++) Form::widen(codes[n], group * QUARTERS + q, w[n]);
                for (int m = 0; m < 4; m++)
                    for (int r = 0; r < R; r++) {
                        const Pair both = all_pairs(pairs[m * MANY + r]);
                        for (int n = 0; n < N; n++) whole[n][r][m % CHAINS] = add_pairs(whole[n][r][m % CHAINS], w[n][m], both);
                    }
            }
            for (int n = 0; n < N; n++) {
                const Floats step = Form::step(column[n].scales, k, group);
                for (int r = 0; r < R; r++) {
                    for (int c = 1; c < CHAINS; c++) whole[n][r][0] = plus(whole[n][r][0], whole[n][r][c]);
                    store(sums[n][r], fma(to_floats(whole[n][r][0]), mul(step, all(unit[r])), load(sums[n][r])));
                }
            }
        }
        for (int n = 0; n < N && Form::HAS_LEAST; n++) {
            const Floats least = Form::least(column[n].scales, k);
            for (int r = 0; r < R; r++) store(sums[n][r], fma(least, all(total[r]), load(sums[n][r])));
        }
        if (R * N > 8) in_memory(sums);
    }
}

// The rows of a panel (at most MANY) against N blocks of columns: emit(row of the panel, which block, 16 sums).
template <class Form, int N, class Emit>
void panel_by_words(const WordRows& x, int panel, int rows, int blocks, const Column (&column)[N], Emit emit) {
    auto some = [&](auto count) {
        constexpr int R = decltype(count)::value;
        alignas(64) float sums[N][R][16];
        add_words<Form, R, N>(x, panel, blocks, column, sums);
        for (int n = 0; n < N; n++)
            for (int r = 0; r < R && r < rows; r++) emit(r, n, load(sums[n][r]));
    };
    if (rows > 6) return some(std::integral_constant<int, MANY>());
    if (rows > 4) return some(std::integral_constant<int, MANY < 6 ? MANY : 6>());
    if (rows > 3 || N > 1) return some(std::integral_constant<int, 4>());
    if constexpr (N == 1) {
        if (rows > 2) return some(std::integral_constant<int, 3>());
        if (rows > 1) return some(std::integral_constant<int, 2>());
        some(std::integral_constant<int, 1>());
    }
}

template <class Form, class Block, class Emit>
void product_by_words(const WordRows& x, int rows, const Weight& w, int begin, int end, Block block, Emit emit) {
    const int blocks = w.depth / DEPTH;
    auto column = [&](int j, bool first) {  // only the first panel has to wait for memory
        const long at = long(block(j)) * blocks, ahead = first && j + 2 < end ? long(block(j + 2)) * blocks - at : 0;
        return Column{w.codes + at * Form::CODES, w.scales + block(j) * Form::scale_bytes(blocks), ahead * Form::CODES};
    };
    for (int j = begin; j < end; j += 2)  // whoever takes sums may want two blocks of a row soon
        for (int row = 0; row < rows; row += MANY) {
            const int here = rows - row < MANY ? rows - row : MANY;
            auto each = [&](int first) { return [&, first](int r, int n, Floats sums) { emit(row + r, first + n, sums); }; };
            if (WIDE && here > 3 && j + 1 < end) {
                panel_by_words<Form, 2>(x, row / MANY, here, blocks, {column(j, !row), column(j + 1, !row)}, each(j));
                continue;
            }
            for (int one = j; one < end && one < j + 2; one++)
                panel_by_words<Form, 1>(x, row / MANY, here, blocks, {column(one, !row)}, each(one));
        }
}

// sums[r][n] += a[r] x b[n] over `depth` k-blocks, for R rows and N column blocks: bf16 is widened in registers, and each sum
// runs over k in order.
template <int R, int N>
inline void add_bf16(const float* a, long lda, const bf16* const* b, int depth, Floats (&sums)[R][N]) {
    for (int k = 0; k < depth * DEPTH; k += 2)
        for (int n = 0; n < N; n++) {
            const Floats even = evens(b[n] + k * COLUMNS), odd = odds(b[n] + k * COLUMNS);
            for (int r = 0; r < R; r++) {
                sums[r][n] = fma(all(a[r * lda + k]), even, sums[r][n]);
                sums[r][n] = fma(all(a[r * lda + k + 1]), odd, sums[r][n]);
            }
        }
}

// The same for weights in bf16.
template <class Block, class Emit>
void product_by_floats(const float* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Emit emit) {
    constexpr int N = 2;
    const long tiles = w.depth / DEPTH;
    for (int j = begin; j < end; j += N) {
        const bf16* b[N];
        for (int n = 0; n < N; n++) b[n] = (const bf16*)w.codes + block(j + n < end ? j + n : j) * tiles * TILE;
        auto some = [&](auto count, int row) {
            constexpr int R = decltype(count)::value;
            Floats sums[R][N];
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N; n++) sums[r][n] = all(0.0f);
            add_bf16<R, N>(a + row * lda, lda, b, tiles, sums);
            for (int r = 0; r < R; r++)
                for (int n = 0; n < N && j + n < end; n++) emit(row + r, j + n, sums[r][n]);
        };
        int row = 0;
        for (; row + MANY <= rows; row += MANY) some(std::integral_constant<int, MANY>(), row);
        for (; row + 2 <= rows; row += 2) some(std::integral_constant<int, 2>(), row);
        for (; row < rows; row++) some(std::integral_constant<int, 1>(), row);
    }
}

#if defined(__AVX512VNNI__)
#include "eight.h"
#endif

struct Room {  // where a thread works
    WordRows words;
#if defined(__AVX512VNNI__)
    Rounded rounded;
#endif
    bool rounds = true;  // of use in product.h
};

constexpr int UNIT = 2;  // blocks of columns that are best taken together

// Bring rows to the form that products with `w` want; done once, before products with any of its columns.
inline void prepare(const act* a, long lda, int rows, const Weight& w, Room& room) {
    bool words = false;
    for (const Weight* part = &w; part; part = part->more) {
#if defined(__AVX512VNNI__)
        if (part->format == EIGHT) room.rounded.take(a, lda, rows, w.depth);
#endif
        words = words || (part->format != BF16 && part->format != EIGHT);
    }
    if (words) room.words.take(a, lda, rows, w.depth);
}

// Columns of a [rows, depth] times a weight of one format.
template <class Block, class Emit>
void product_of_one(const act* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    if (w.format == BF16) return product_by_floats(a, lda, rows, w, begin, end, block, emit);
#if defined(__AVX512VNNI__)
    if (w.format == EIGHT)  // of many rows too: eight bits are the quickest here
        return product_eight(room.rounded, rows, w.depth, w.codes, (const float*)w.scales, begin, end, block, emit);
#endif
    if (w.format == GRID8) product_by_words<Grid8>(room.words, rows, w, begin, end, block, emit);
    if (w.format == NIBBLES) product_by_words<Nibbles>(room.words, rows, w, begin, end, block, emit);
    if (w.format == SUPER4) product_by_words<Super4>(room.words, rows, w, begin, end, block, emit);
    if (w.format == SUPER8) product_by_words<Super8>(room.words, rows, w, begin, end, block, emit);
}

// Columns of a [rows, depth] times weight' for the blocks that `block(j)` names, j in begin .. end: emit(row, j, 16 sums);
// `prepare` has been called.
// A weight of several parts has its columns in order: block(j) is j.
template <class Block, class Emit>
void product(const act* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    if (!w.more) return product_of_one(a, lda, rows, w, begin, end, block, room, emit);
    int first = 0;
    for (const Weight* part = &w; part; first += part->own / COLUMNS, part = part->more) {
        const int from = begin > first ? begin - first : 0, here = part->own / COLUMNS, left = end - first;
        const int upto = left < here ? left : here;
        auto moved = [&](int row, int j, Floats sums) { emit(row, first + j, sums); };
        if (from < upto) product_of_one(a, lda, rows, *part, from, upto, [](int j) { return j; }, room, moved);
    }
}
