// Products for processors without bf16 tiles: by words of 16 bits (words.h) where weights lie on a grid; weights in bf16 are
// widened to float32 and multiplied by the row's own float32 numbers.
#pragma once
#include "words.h"
#if defined(__AVX512VNNI__)
#include "eight.h"
#endif

inline bool allow_tiles() { return true; }  // there are none here
inline void begin_tiles(int) {}
inline void end_tiles() {}

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

struct Room {  // where a thread works
    WordRows words;
#if defined(__AVX512VNNI__)
    Rounded rounded;
#endif
    bool rounds = true;  // of use in product.h, as the next
    int tiles = GRID8;
};

constexpr int UNIT = 2;  // blocks of columns that are best taken together

// Bring rows to the form that products with `w` want; done once, before products with any of its columns.
inline void prepare(const act* a, long lda, int rows, const Weight& w, Room& room) {
    bool words = false;
    for (const Weight* part = &w; part; part = part->more) {
#if defined(__AVX512VNNI__)
        if (part->format == EIGHT) room.rounded.take(a, lda, rows, w.depth);
#endif
        words = words || by_words(part->format);
    }
    if (words) room.words.take(a, lda, rows, w.depth);
}

// Columns of a [rows, depth] times weight' for the blocks that `block(j)` names, j in begin .. end: emit(row, j, 16 sums);
// `prepare` has been called.
template <class Block, class Emit>
void product(const act* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    by_parts(w, begin, end, block, emit, [&](const Weight& part, int from, int upto, auto which, auto to) {
        if (part.format == BF16) return product_by_floats(a, lda, rows, part, from, upto, which, to);
#if defined(__AVX512VNNI__)
        if (part.format == EIGHT)  // of many rows too: eight bits are the quickest here
            return product_eight(room.rounded, rows, part.depth, part.codes, (const float*)part.scales, from, upto, which, to);
#endif
        product_of_words(room.words, rows, part, from, upto, which, to);
    });
}
