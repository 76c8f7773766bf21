// Tiles: 16 rows of 32 bf16 against 32 x 16 weights, sums in float32.
//
// Every element of a product is summed over k in one fixed order, whatever rows are computed beside it. A row's numbers
// therefore do not depend on the batch, on the draft around it, or on the number of threads.
#pragma once
#include "act.h"
#include "formats.h"

#include <sys/syscall.h>
#include <unistd.h>

inline bool allow_tiles() {  // the kernel gives a process its tile registers on request
    static const bool allowed = syscall(SYS_arch_prctl, 0x1023, 18) == 0;
    return allowed;
}
// Sums and left factors have as many rows as there are: a product takes as many cycles. So do those of the last rows in
// `Tiles<2, 2>` (17 to 32 rows) and `Tiles<3, 1>` (33 to 48); tiles 0, 1 and 4, which all use, are whole from 16 rows on.
inline void begin_tiles(int rows) {
    struct alignas(64) { uint8_t palette = 1, start = 0, none[14] = {}; uint16_t bytes[16] = {}; uint8_t rows[16] = {}; } shape;
    for (int i = 0; i < 8; i++) shape.bytes[i] = 64, shape.rows[i] = i < 6 && rows < ROWS ? rows : ROWS;
    const int beyond = rows <= 2 * ROWS ? rows - ROWS : rows - 2 * ROWS;
    if (rows > ROWS && beyond < ROWS) shape.rows[2] = shape.rows[5] = beyond;
    if (rows > ROWS && rows < 2 * ROWS) shape.rows[3] = beyond;
    asm volatile("" ::"r"(&shape) : "memory");  // compilers may think that only eight bytes of it are read
    _tile_loadconfig(&shape);
}
inline void end_tiles() { _tile_release(); }

inline void settle() { asm volatile("" ::: "memory"); }  // tile loads do not tell the compiler that they read memory

// Sums of R x N tile products over `depth` k-blocks: acc[r][n] (tiles r * N + n) += a[r] x b[n].
template <int R, int N> struct Tiles {
    static_assert((R == 1 && (N == 2 || N == 4)) || (R == 2 && N == 2) || (R == 3 && N == 1), "at most four accumulators");
    static void clear() {
        _tile_zero(0); _tile_zero(1); _tile_zero(2); _tile_zero(3);
    }
    static void add(const bf16* a, long lda, int, const bf16* const* b, int depth) {
        settle();
        for (int k = 0; k < depth; k++) {
            if constexpr (R == 3) {
                _tile_loadd(6, b[0] + k * TILE, 64);
                _tile_loadd(3, a + k * DEPTH, lda * 2);
                _tile_dpbf16ps(0, 3, 6);
                _tile_loadd(4, a + ROWS * lda + k * DEPTH, lda * 2);
                _tile_dpbf16ps(1, 4, 6);
                _tile_loadd(5, a + 2 * ROWS * lda + k * DEPTH, lda * 2);
                _tile_dpbf16ps(2, 5, 6);
                continue;
            }
            _tile_loadd(4, a + k * DEPTH, lda * 2);
            if constexpr (R == 2) {
                _tile_loadd(5, a + ROWS * lda + k * DEPTH, lda * 2);
                _tile_loadd(6, b[0] + k * TILE, 64);
                _tile_loadd(7, b[1] + k * TILE, 64);
                _tile_dpbf16ps(0, 4, 6); _tile_dpbf16ps(1, 4, 7); _tile_dpbf16ps(2, 5, 6); _tile_dpbf16ps(3, 5, 7);
            } else if constexpr (R == 1) {
                _tile_loadd(6, b[0] + k * TILE, 64);
                _tile_dpbf16ps(0, 4, 6);
                _tile_loadd(7, b[1] + k * TILE, 64);
                _tile_dpbf16ps(1, 4, 7);
            }
            if constexpr (N == 4) {
                _tile_loadd(6, b[2] + k * TILE, 64);
                _tile_dpbf16ps(2, 4, 6);
                _tile_loadd(7, b[3] + k * TILE, 64);
                _tile_dpbf16ps(3, 4, 7);
            }
        }
    }
    static void store(float (*c)[ROWS][COLUMNS]) {
        _tile_stored(0, c[0], 64); _tile_stored(1, c[1], 64);
        if constexpr (R * N > 2) _tile_stored(2, c[2], 64);
        if constexpr (R * N > 3) _tile_stored(3, c[3], 64);
    }
    static void store_to(float* const* c) { _tile_stored(0, c[0], 64); _tile_stored(1, c[1], 64); }
    static void load_from(float* const* c) {
        settle();
        _tile_loadd(0, c[0], 64); _tile_loadd(1, c[1], 64);
    }
};
