// Tiles: 16 rows of 32 bf16 against 32 x 16 weights, sums in float32.
//
// Every element of a product is summed over k in one fixed order, whatever rows are computed beside it. A row's numbers
// therefore do not depend on the batch, on the draft around it, or on the number of threads.
#pragma once
#include <immintrin.h>

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#ifndef __AVX512BF16__
#error "needs a CPU with bf16 products (AVX512-BF16)"
#endif

using bf16 = uint16_t;
constexpr int ROWS = 16, COLUMNS = 16, DEPTH = 32;  // of a tile product
constexpr int TILE = DEPTH * COLUMNS;               // weights of a tile: [DEPTH / 2][COLUMNS][2]

inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
inline __m512 widen16(const bf16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}
inline void narrow16(bf16* to, __m512 x) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x)); }

inline __m512 round16(__m512 x) {  // to bf16 and back
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16));
}

// Room that grows, begins at a cache line (tile loads that straddle two cost double), and is not cleared.
template <class T> struct Line {
    T* data = nullptr;
    size_t size = 0;
    Line() = default;
    Line(const Line&) = delete;
    ~Line() { std::free(data); }
    void reserve(size_t count) {
        if (count <= size) return;
        std::free(data);
        size = (count * sizeof(T) + 63) / 64 * 64 / sizeof(T);
        data = static_cast<T*>(std::aligned_alloc(64, size * sizeof(T)));
        std::memset(data, 0, size * sizeof(T));
    }
    T& operator[](size_t i) { return data[i]; }
    const T& operator[](size_t i) const { return data[i]; }
};

// exp(x) for -87 <= x <= 87, by 2^n times a polynomial in the rest; relative error about 2e-7.
inline __m512 exp16(__m512 x) {
    x = _mm512_min_ps(_mm512_max_ps(x, _mm512_set1_ps(-87.0f)), _mm512_set1_ps(87.0f));
    const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
    r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
    __m512 y = _mm512_set1_ps(1.3888889e-3f);
    for (float c : {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f})
        y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(c));
    return _mm512_scalef_ps(y, n);
}

// x / (1 + exp(-x)); the reciprocal is refined once, to about 2e-7.
inline __m512 silu16(__m512 x) {
    const __m512 by = _mm512_add_ps(_mm512_set1_ps(1.0f), exp16(_mm512_sub_ps(_mm512_setzero_ps(), x)));
    const __m512 rough = _mm512_rcp14_ps(by);
    return _mm512_mul_ps(x, _mm512_mul_ps(rough, _mm512_fnmadd_ps(by, rough, _mm512_set1_ps(2.0f))));
}

// Where each thread waits for all. It yields after a while: a waiting thread must not starve a working one.
struct Barrier {
    int threads;
    std::atomic<int> arrived{0}, turn{0};
    void wait() {
        if (threads == 1) return;
        const int now = turn.load(std::memory_order_relaxed);
        if (arrived.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            arrived.store(0, std::memory_order_relaxed);
            turn.store(now + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; turn.load(std::memory_order_acquire) == now; spins++)
            spins < 4000 ? _mm_pause() : (void)sched_yield();
    }
};

#ifdef __AMX_BF16__
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
#else
inline bool allow_tiles() { return true; }
inline void begin_tiles(int) {}
inline void end_tiles() {}

// The same without tile registers: sums live in memory, rows beyond `rows` are left out.
template <int R, int N> struct Tiles {
    static inline thread_local float sums[4][ROWS][COLUMNS];
    static void clear() { std::memset(sums, 0, sizeof sums); }
    static void add(const bf16* a, long lda, int rows, const bf16* const* b, int depth) {
        for (int r = 0; r < R; r++)
            for (int n = 0; n < N; n++)
                for (int i = 0; i < ROWS && r * ROWS + i < rows; i++) {
                    __m512 sum = _mm512_loadu_ps(sums[r * N + n][i]);
                    const bf16* row = a + (r * ROWS + i) * lda;
                    for (int k = 0; k < depth; k++)
                        for (int pair = 0; pair < DEPTH / 2; pair++) {
                            int both;
                            std::memcpy(&both, row + k * DEPTH + 2 * pair, 4);
                            const void* w = b[n] + k * TILE + pair * 2 * COLUMNS;
                            sum = _mm512_dpbf16_ps(sum, (__m512bh)_mm512_set1_epi32(both), (__m512bh)_mm512_loadu_si512(w));
                        }
                    _mm512_storeu_ps(sums[r * N + n][i], sum);
                }
    }
    static void store(float (*c)[ROWS][COLUMNS]) { std::memcpy(c, sums, R * N * sizeof sums[0]); }
    static void store_to(float* const* c) {
        for (int i = 0; i < 2; i++) std::memcpy(c[i], sums[i], sizeof sums[i]);
    }
    static void load_from(float* const* c) {
        for (int i = 0; i < 2; i++) std::memcpy(sums[i], c[i], sizeof sums[i]);
    }
};
#endif
