// The verbs of tile.h for processors without bf16 products: rows of float32 against 32 x 16 tiles of bf16, which are widened
// in registers, by fused multiply-adds. Each sum runs over k in order: first the even, then the odd one of a pair.
#pragma once
#include "act.h"
#include "formats.h"

inline bool allow_tiles() { return true; }
inline void begin_tiles(int) {}
inline void end_tiles() {}

// sums[r][n] += a[r] x b[n] over `depth` k-blocks, for R rows and N column blocks.
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

template <int R, int N> struct Tiles {
    static_assert(R == 1 && N == 2, "attention alone uses these");
    static inline thread_local float sums[N][ROWS][COLUMNS];
    static void clear() { std::memset(sums, 0, sizeof sums); }
    template <int M> static void add_rows(const float* a, long lda, int row, const bf16* const* b, int depth) {
        Floats found[M][N];
        for (int r = 0; r < M; r++)
            for (int n = 0; n < N; n++) found[r][n] = load(sums[n][row + r]);
        add_bf16<M, N>(a + row * lda, lda, b, depth, found);
        for (int r = 0; r < M; r++)
            for (int n = 0; n < N; n++) store(sums[n][row + r], found[r][n]);
    }
    static void add(const float* a, long lda, int rows, const bf16* const* b, int depth) {
        int row = 0;
        for (; row + 4 <= rows; row += 4) add_rows<4>(a, lda, row, b, depth);
        for (; row < rows; row++) add_rows<1>(a, lda, row, b, depth);
    }
    static void store(float (*c)[ROWS][COLUMNS]) { std::memcpy(c, sums, sizeof sums); }
    static void store(float* to, Floats x) { ::store(to, x); }
    static void store_to(float* const* c) {
        for (int n = 0; n < N; n++) std::memcpy(c[n], sums[n], sizeof sums[n]);
    }
    static void load_from(float* const* c) {
        for (int n = 0; n < N; n++) std::memcpy(sums[n], c[n], sizeof sums[n]);
    }
};
