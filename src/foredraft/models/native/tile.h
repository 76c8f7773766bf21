// Tiles: 16 rows of 32 bf16 against 32 x 16 weights, sums in float32.
//
// Every element of a product is summed over k in one fixed order, whatever rows are computed beside it. A row's numbers
// therefore do not depend on the batch, on the draft around it, or on the number of threads.
#pragma once
#include "act.h"
#include "formats.h"
#include "registers.h"

inline bool allow_tiles() {
    static const bool allowed = ask_for_tiles();
    return allowed;
}
// The shape that products of bytes have given this thread's tiles (bytes.h); 0 while it is that of begin_tiles.
inline thread_local int byte_shape = 0;

// Sums and left factors have as many rows as there are: a product takes as many cycles. So do those of the last rows in
// `Tiles<2, 2>` (17 to 32 rows) and `Tiles<3, 1>` (33 to 48); tiles 0, 1 and 4, which all use, are whole from 16 rows on.
inline void begin_tiles(int rows) {
    TileShape shape;
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = i < 6 && rows < ROWS ? rows : ROWS;
    const int beyond = rows <= 2 * ROWS ? rows - ROWS : rows - 2 * ROWS;
    if (rows > ROWS && beyond < ROWS) shape.rows[2] = shape.rows[5] = beyond;
    if (rows > ROWS && rows < 2 * ROWS) shape.rows[3] = beyond;
    shape_tiles(shape);
    if (BYTE_TILES) byte_shape = 0;
}
inline void end_tiles() { release_tiles(); }

// Sums of R x N tile products over `depth` k-blocks: acc[r][n] (tiles r * N + n) += a[r] x b[n].
template <int R, int N> struct Tiles {
    static_assert((R == 1 && (N == 2 || N == 4)) || (R == 2 && N == 2) || (R == 3 && N == 1), "at most four accumulators");
    static void clear() {
        clear_tile<0>(); clear_tile<1>(); clear_tile<2>(); clear_tile<3>();
    }
    static void add(const bf16* a, long lda, int, const bf16* const* b, int depth) {
        settle();
        for (int k = 0; k < depth; k++) {
            if constexpr (R == 3) {
                load_tile<6>(b[0] + k * TILE, 64);
                load_tile<3>(a + k * DEPTH, lda * 2);
                multiply_bf16<0, 3, 6>();
                load_tile<4>(a + ROWS * lda + k * DEPTH, lda * 2);
                multiply_bf16<1, 4, 6>();
                load_tile<5>(a + 2 * ROWS * lda + k * DEPTH, lda * 2);
                multiply_bf16<2, 5, 6>();
                continue;
            }
            load_tile<4>(a + k * DEPTH, lda * 2);
            if constexpr (R == 2) {
                load_tile<5>(a + ROWS * lda + k * DEPTH, lda * 2);
                load_tile<6>(b[0] + k * TILE, 64);
                load_tile<7>(b[1] + k * TILE, 64);
                multiply_bf16<0, 4, 6>(); multiply_bf16<1, 4, 7>(); multiply_bf16<2, 5, 6>(); multiply_bf16<3, 5, 7>();
            } else if constexpr (R == 1) {
                load_tile<6>(b[0] + k * TILE, 64);
                multiply_bf16<0, 4, 6>();
                load_tile<7>(b[1] + k * TILE, 64);
                multiply_bf16<1, 4, 7>();
            }
            if constexpr (N == 4) {
                load_tile<6>(b[2] + k * TILE, 64);
                multiply_bf16<2, 4, 6>();
                load_tile<7>(b[3] + k * TILE, 64);
                multiply_bf16<3, 4, 7>();
            }
        }
    }
    static void store(float (*c)[ROWS][COLUMNS]) {
        store_tile<0>(c[0], 64); store_tile<1>(c[1], 64);
        if constexpr (R * N > 2) store_tile<2>(c[2], 64);
        if constexpr (R * N > 3) store_tile<3>(c[3], 64);
    }
    static void store_to(float* const* c) { store_tile<0>(c[0], 64); store_tile<1>(c[1], 64); }
    static void load_from(float* const* c) {
        settle();
        load_tile<0>(c[0], 64); load_tile<1>(c[1], 64);
    }
};
