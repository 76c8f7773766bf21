// Products with weights on a grid (forms.h): a row's numbers become 16-bit whole numbers with a step for every 32, which is finer than bf16
// (an error of 2^-16 of the largest of the 32, 2^-12 where tiles of bytes multiply them). Codes are widened to 16 bits in registers and multiplied in pairs; sums of 32
// are whole numbers, exact in any order, and go into float32 sums block by block, k ascending.
// A row's result depends on nothing but the row: not on the rows or columns beside it.
#pragma once
#include "act.h"
#include "forms.h"
#include "line.h"

// 127 * 256: with 8-bit codes, a sum of 32 products stays below 2^31. Or 16 * 127 + 7: sixteen times a signed byte and a nibble.
constexpr float MOST_WORD = BYTE_TILES ? 2039 : 32512;

#if defined(__AVX512F__)
constexpr int MANY = 8;  // rows at a time (a panel), and whether by two blocks of columns: as many sums as registers hold
constexpr bool WIDE = true;
#else
constexpr int MANY = 4;
constexpr bool WIDE = false;
#endif
constexpr int LEAST_TALL = 3 * MANY, MOST_TALL = 3 * ROWS;  // rows of several panels that share codes, widened once

struct Block {  // of MANY rows: x = step * code; sums of x over the whole block and over its halves; those of codes, below zero
    float step[MANY], total[3][MANY];
    int32_t minus[3][MANY];
};

// Rows [rows, depth] in panels of MANY: [panels][k-blocks][16 pairs of k][MANY], so that a product finds everything that
// it needs next at one address. Rows that a last panel lacks are never looked at.
struct WordRows {
    Line<int32_t> pairs;
    Line<Block> blocks;

    void take(const act* a, long lda, int rows, int depth) {
        pairs.reserve(panels(rows) * (depth / DEPTH) * PAIRS * MANY);
        take_rows(a, lda, rows, depth, PutPairs{pairs.data});
    }

    static constexpr int PAIRS = DEPTH / 2;
    static size_t panels(int rows) { return size_t(rows + MANY - 1) / MANY; }

  protected:
    // put.row(k-block of a panel, row of the panel, 32 codes) for all rows, or put.panel(k-block of a panel, the first 16 codes of
    // all its rows, their other 16).
    template <class Put> void take_rows(const act* a, long lda, int rows, int depth, const Put& put) {
        const int count = depth / DEPTH;
        blocks.reserve(panels(rows) * count);
#if defined(__AVX512F__)
        if (rows > 2) return take_panels(a, lda, rows, count, put);
#endif
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < count; k++) put_row(a + r * lda + k * DEPTH, long(r / MANY) * count + k, r % MANY, put);
    }

  private:
    struct PutPairs {
        int32_t* pairs;
        void row(long block, int row, const int16_t* codes) const {
            for (int pair = 0; pair < PAIRS; pair++) std::memcpy(&pairs[(block * PAIRS + pair) * MANY + row], codes + 2 * pair, 4);
        }
#if defined(__AVX512F__)
        void panel(long block, const Ints (&low)[MANY], const Ints (&high)[MANY]) const {
            keep_pairs(low, high, &pairs[block * PAIRS * MANY]);
        }
#endif
    };
    template <class Put> void put_row(const act* a, long block, int row, const Put& put) {
        alignas(64) int16_t codes[DEPTH];
        take_block(a, block, row, codes);
        put.row(block, row, codes);
    }
#if defined(__AVX512F__)
    // All rows of a panel together: a quarter of the time. A last panel has its last row several times.
    template <class Put> void take_panels(const act* a, long lda, int rows, int count, const Put& put) {
        for (int first = 0; first < rows; first += MANY) {
            const act* row[MANY];
            for (int r = 0; r < MANY; r++) row[r] = a + long(first + r < rows ? first + r : rows - 1) * lda;
            for (int k = 0; k < count; k++) {
                const long block = long(first / MANY) * count + k;
                Ints low[MANY], high[MANY];
                if (take_panel(row, k, blocks[block], low, high)) put.panel(block, low, high);
                else for (int r = 0; r < MANY; r++) put_row(row[r] + k * DEPTH, block, r, put);
            }
        }
    }
    // Whether all numbers are finite; if not, nothing is done.
    INLINED static bool take_panel(const act* const (&row)[MANY], int k, Block& to, Ints (&first)[MANY], Ints (&second)[MANY]) {
        Floats low[MANY], high[MANY], most[MANY];
        uint32_t lost = 0;
        UNROLLED for (int r = 0; r < MANY; r++) {
            low[r] = get16(row[r] + k * DEPTH), high[r] = get16(row[r] + k * DEPTH + 16);
            most[r] = max(abs(low[r]), abs(high[r]));
            lost |= not_at_most(abs(low[r]), all(3.4028235e38f)) | not_at_most(abs(high[r]), all(3.4028235e38f));
        }
        if (lost) return false;
        alignas(64) float largest[MANY], by[MANY];
        alignas(64) int32_t sums[3][MANY];
        max_of_each(most, largest);
        for (int r = 0; r < MANY; r++) by[r] = largest[r] > 0 ? MOST_WORD / largest[r] : 0.0f, to.step[r] = largest[r] / MOST_WORD;
        UNROLLED for (int r = 0; r < MANY; r++) first[r] = to_ints(mul(low[r], all(by[r]))), second[r] = to_ints(mul(high[r], all(by[r])));
        sum_of_each(first, sums[1]), sum_of_each(second, sums[2]);
        for (int r = 0; r < MANY; r++) sums[0][r] = sums[1][r] + sums[2][r];
        for (int i = 0; i < 3; i++)
            for (int r = 0; r < MANY; r++) to.total[i][r] = to.step[r] * float(sums[i][r]), to.minus[i][r] = -sums[i][r];
        return true;
    }
#endif
    void take_block(const act* a, long block, int row, int16_t* codes) {
        const Floats low = get16(a), high = get16(a + 16), largest = all(3.4028235e38f);
        if (not_at_most(abs(low), largest) | not_at_most(abs(high), largest)) return lose_block(block, row, codes);
        const float most = max_of(max(abs(low), abs(high)));
        const Floats by = all(most > 0 ? MOST_WORD / most : 0.0f);
        const Ints first = to_ints(mul(low, by)), second = to_ints(mul(high, by));
        store_words(codes, first), store_words(codes + 16, second);
        Block& to = blocks[block];
        const float unit = to.step[row] = most / MOST_WORD;
        const int32_t low_sum = sum_of_ints(first), high_sum = sum_of_ints(second), sums[3] = {low_sum + high_sum, low_sum, high_sum};
        for (int i = 0; i < 3; i++) to.total[i][row] = unit * float(sums[i]), to.minus[i][row] = -sums[i];
    }
    // What is no number, or infinite, has no code. Its row gets no number either: damaged weights must not pass unseen.
    void lose_block(long block, int row, int16_t* codes) {
        std::memset(codes, 0, DEPTH * sizeof(int16_t));
        Block& to = blocks[block];
        to.step[row] = __builtin_nanf("");
        for (int i = 0; i < 3; i++) to.total[i][row] = to.step[row], to.minus[i][row] = 0;
    }
};

// Where a product finds the codes and scales of a block of columns, and how far on those lie that will be wanted next.
struct Column {
    const uint8_t *codes, *scales;
    long codes_ahead, scales_ahead;
};

template <class Form, int N> struct Scales {  // of a k-block of N blocks of columns, as they lie
    const Column (&column)[N];
    int k;
    template <int GROUP> INLINED Floats step(int n) const { return Form::step(column[n].scales, k, GROUP); }
    template <int GROUP> INLINED Floats least(int n) const { return Form::least(column[n].scales, k, GROUP); }
};
template <class Form, int N> struct WideScales {  // worked out
    Floats steps[Form::GROUPS][N], leasts[Form::GROUPS][N];
    INLINED explicit WideScales(const Scales<Form, N>& from) {
        each<Form::GROUPS>([&](auto group) INLINED {
            UNROLLED for (int n = 0; n < N; n++)
                steps[group][n] = from.template step<group>(n), leasts[group][n] = from.template least<group>(n);
        });
    }
    template <int GROUP> INLINED Floats step(int n) const { return steps[GROUP][n]; }
    template <int GROUP> INLINED Floats least(int n) const { return leasts[GROUP][n]; }
};

// CENTER times the number at `minus`: where a sum begins whose weights are widened from 0 on.
template <int CENTER> inline Ints beginning(const int32_t* minus) {
    static_assert((CENTER & (CENTER - 1)) == 0, "centers are powers of two");
    if constexpr (CENTER == 0) return no_ints();
    else return doubled<__builtin_ctz(CENTER)>(all_ints(*minus));
}

// One k-block of the first R rows of a panel, added to their sums [N][R][16] for N blocks of columns. word(n, pair) are codes of 16 bits.
// A row's pair of numbers is fetched once for all N, and the sums of whole k-blocks wait in memory: registers are for the products.
template <class Form, int R, int N, class Word, class Scale>
INLINED inline void add_block(const int32_t* pairs, const Block& block, const Word& word, const Scale& scales, float* sums) {
    constexpr int CHAINS = R * N <= 2 ? 4 : R * N <= 4 ? 2 : 1;  // sums that run side by side, to hide the latency of a product
    constexpr int PAIRS = WordRows::PAIRS / Form::GROUPS;
    each<Form::GROUPS>([&](auto group) INLINED {
        constexpr int PART = Form::GROUPS == 1 ? 0 : 1 + group;
        Ints whole[R * N * CHAINS];
        UNROLLED for (int i = 0; i < R * N * CHAINS; i++)
            whole[i] = i % CHAINS ? no_ints() : beginning<Form::CENTER>(&block.minus[PART][i / CHAINS / N]);
        each<PAIRS>([&](auto p) INLINED {
            constexpr int PAIR = group * PAIRS + p;
            Words w[N];
            UNROLLED for (int n = 0; n < N; n++) w[n] = word(n, std::integral_constant<int, PAIR>());
            UNROLLED for (int r = 0; r < R; r++) {
                const Pair both = all_pairs(pairs[PAIR * MANY + r]);
                UNROLLED for (int n = 0; n < N; n++) {
                    Ints& sum = whole[(r * N + n) * CHAINS + p % CHAINS];
                    sum = add_pairs(sum, w[n], both);
                }
            }
        });
        Floats step[N], least[N];
        UNROLLED for (int n = 0; n < N; n++)
            step[n] = scales.template step<group>(n), least[n] = scales.template least<group>(n);
        UNROLLED for (int r = 0; r < R; r++) {
            const Floats unit = all(block.step[r]), total = all(block.total[PART][r]);
            UNROLLED for (int n = 0; n < N; n++) {
                Ints* own = &whole[(r * N + n) * CHAINS];
                UNROLLED for (int c = 1; c < CHAINS; c++) own[0] = plus(own[0], own[c]);
                float* at = sums + (n * R + r) * 16;
                const Floats sum = fma(to_floats(own[0]), mul(step[n], unit), load(at));
                store(at, Form::HAS_LEAST ? fma(least[n], total, sum) : sum);
            }
        }
    });
    if (R * N > 8) in_memory(*sums);
}

// Sums of the first R rows of a panel over the whole depth.
template <class Form, int R, int N>
void add_words(const WordRows& x, int panel, int blocks, const Column (&column)[N], float* sums) {
    UNROLLED for (int i = 0; i < N * R; i++) store(sums + 16 * i, all(0.0f));
    const int32_t* pairs = &x.pairs[size_t(panel) * blocks * WordRows::PAIRS * MANY];
    const Block* block = &x.blocks[size_t(panel) * blocks];
    for (int k = 0; k < blocks; k++, block++, pairs += WordRows::PAIRS * MANY) {
        const uint8_t* codes[N];
        UNROLLED for (int n = 0; n < N; n++) {
            codes[n] = column[n].codes + long(k) * Form::CODES;
            for (int line = 0; line < Form::CODES; line += LINE) prefetch(codes[n] + column[n].codes_ahead + line);
            if (R > 2) prefetch(column[n].scales + column[n].scales_ahead + k * Form::scale_bytes(8) / 8);
        }
        auto word = [&](int n, auto pair) INLINED { return Form::template word<pair>(codes[n]); };
        add_block<Form, R, N>(pairs, *block, word, Scales<Form, N>{column, k}, sums);
    }
}

// The same for several panels, one after another: sums [panels][N][MANY][16]. Codes are widened once for all of them.
template <class Form, int N>
void add_words_to_many(const WordRows& x, int first, int panels, int blocks, const Column (&column)[N], float* sums) {
    constexpr int SIZE = N * MANY * 16;
    alignas(64) int16_t wide[N][WordRows::PAIRS][32];
    std::memset(sums, 0, sizeof(float) * panels * SIZE);
    for (int k = 0; k < blocks; k++) {
        UNROLLED for (int n = 0; n < N; n++) {
            const uint8_t* codes = column[n].codes + long(k) * Form::CODES;
            for (int line = 0; line < Form::CODES; line += LINE) prefetch(codes + column[n].codes_ahead + line);
            prefetch(column[n].scales + column[n].scales_ahead + k * Form::scale_bytes(8) / 8);
            each<WordRows::PAIRS>([&](auto pair) INLINED { keep_words(wide[n][pair], Form::template word<pair>(codes)); });
        }
        in_memory(wide);
        const WideScales<Form, N> scales(Scales<Form, N>{column, k});
        auto word = [&](int n, int pair) INLINED { return load_words(wide[n][pair]); };
        for (int panel = 0; panel < panels; panel++) {
            const size_t at = size_t(first + panel) * blocks + k;
            add_block<Form, MANY, N>(&x.pairs[at * WordRows::PAIRS * MANY], x.blocks[at], word, scales, sums + panel * SIZE);
        }
    }
}

// Formats that files seldom have, and ours never: one row or a panel, so that the library is built in less time.
template <class Form>
constexpr bool FEW = !(std::is_same_v<Form, Grid8> || std::is_same_v<Form, Flat<4, 0, true>> ||
                       std::is_same_v<Form, Super<4, 0, 1, MINIMA>> || std::is_same_v<Form, Super<6, 32, 2, SIGNED>>);

// The rows of a panel (at most MANY) against N blocks of columns: emit(row of the panel, which block, 16 sums).
template <class Form, int N, class Emit>
void panel_by_words(const WordRows& x, int panel, int rows, int blocks, const Column (&column)[N], Emit emit) {
    auto some = [&](auto count) {
        constexpr int R = decltype(count)::value;
        alignas(64) float sums[N * R * 16];
        add_words<Form, R, N>(x, panel, blocks, column, sums);
        for (int n = 0; n < N; n++)
            for (int r = 0; r < R && r < rows; r++) emit(r, n, load(sums + (n * R + r) * 16));
    };
    if (FEW<Form>) return rows > 1 ? some(std::integral_constant<int, MANY>()) : some(std::integral_constant<int, 1>());
    if (rows > 6) return some(std::integral_constant<int, MANY>());
    if (rows > 4) return some(std::integral_constant<int, MANY < 6 ? MANY : 6>());
    if (rows > 3 || N > 1) return some(std::integral_constant<int, 4>());
    if constexpr (N == 1) {
        if (rows > 2) return some(std::integral_constant<int, 3>());
        if (rows > 1) return some(std::integral_constant<int, 2>());
        some(std::integral_constant<int, 1>());
    }
}

// The same of several panels.
template <class Form, int N, class Emit>
void many_by_words(const WordRows& x, int first, int rows, int blocks, const Column (&column)[N], Emit emit) {
    alignas(64) float sums[MOST_TALL * N * 16];
    add_words_to_many<Form, N>(x, first, int(WordRows::panels(rows)), blocks, column, sums);
    for (int r = 0; r < rows; r++)  // row by row: whoever takes sums may want two blocks of a row soon
        for (int n = 0; n < N; n++) emit(r, n, load(sums + ((r / MANY * N + n) * MANY + r % MANY) * 16));
}

// Somebody's functions by their addresses: products of all forms are compiled once, not for every place that calls them.
struct Which {
    const void* self;
    int (*call)(const void*, int);
    template <class F> explicit Which(const F& f) : self(&f), call([](const void* at, int j) -> int { return (*static_cast<const F*>(at))(j); }) {}
    int operator()(int j) const { return call(self, j); }
};
struct Taker {
    const void* self;
    void (*call)(const void*, int, int, Floats);
    template <class F>
    explicit Taker(const F& f) : self(&f), call([](const void* at, int row, int j, Floats sums) { (*static_cast<const F*>(at))(row, j, sums); }) {}
    void operator()(int row, int j, Floats sums) const { call(self, row, j, sums); }
};

template <class Form>
void product_by_words(const WordRows& x, int rows, const Weight& w, int begin, int end, const Which& block, const Taker& emit) {
    const int blocks = w.depth / DEPTH;
    // Only the first panel has to wait for memory. Beyond its own part a thread of several rows asks for what the next to come will
    // want; one row leaves no time for it.
    const int last = rows > 2 ? w.own / COLUMNS : end;
    auto column = [&](int j, bool first) {
        const long at = block(j), ahead = first && j + 2 < last ? block(j + 2) - at : 0, scales = Form::scale_bytes(blocks);
        return Column{w.codes + at * blocks * Form::CODES, w.scales + at * scales, ahead * blocks * Form::CODES, ahead * scales};
    };
    for (int j = begin; j < end; j += 2)  // whoever takes sums may want two blocks of a row soon
        for (int row = 0, here; row < rows; row += here) {
            auto each = [&](int first) { return [&, first](int r, int n, Floats sums) { emit(row + r, first + n, sums); }; };
            here = rows - row < MANY ? rows - row : MANY;
            if (WIDE && !FEW<Form> && here > 3 && j + 1 < end) {
                const Column both[] = {column(j, !row), column(j + 1, !row)};
                const int tall = (rows - row < MOST_TALL ? rows - row : MOST_TALL) / MANY * MANY;
                if (tall < LEAST_TALL) panel_by_words<Form, 2>(x, row / MANY, here, blocks, both, each(j));
                else many_by_words<Form, 2>(x, row / MANY, here = tall, blocks, both, each(j));
                continue;
            }
            for (int one = j; one < end && one < j + 2; one++)
                panel_by_words<Form, 1>(x, row / MANY, here, blocks, {column(one, !row)}, each(one));
        }
}

inline bool by_words(int format) { return format >= GRID8; }

// Columns of rows times a weight of one format.
template <class Block, class Emit>
void product_of_words(const WordRows& x, int rows, const Weight& w, int begin, int end, Block block, Emit emit) {
    const Which which(block);
    const Taker to(emit);
    by_form(w.format, [&](auto form) { product_by_words<decltype(form)>(x, rows, w, begin, end, which, to); });
}

// A weight of several parts has its columns in order: block(j) is j. one(part, begin, end, block, emit) for each that is wanted.
template <class Block, class Emit, class One>
void by_parts(const Weight& w, int begin, int end, Block block, Emit emit, One one) {
    if (!w.more) return one(w, begin, end, block, emit);
    int first = 0;
    for (const Weight* part = &w; part; first += part->own / COLUMNS, part = part->more) {
        const int from = begin > first ? begin - first : 0, here = part->own / COLUMNS, left = end - first;
        const int upto = left < here ? left : here;
        auto later = [&](int row, int j, Floats sums) { emit(row, first + j, sums); };
        if (from < upto) one(*part, from, upto, [](int j) { return j; }, later);
    }
}
