// Sixteen lanes, on every instruction set: `Floats` (16 float32), `Ints` (16 int32) and `Words` (16 pairs of int16).
// AVX-512 holds them in one register, AVX2 in two, NEON in four. This is the only file besides those of tiles
// (registers.h, product.h, bytes.h, eight.h) that names instructions; everything else is written in these verbs.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

// Which tile registers there are to multiply: bf16 (product.h), and bytes besides (bytes.h).
#if defined(__AMX_BF16__) || defined(EMULATED_TILES)
#define BF16_TILES
#endif
#if defined(__AMX_INT8__) || defined(EMULATED_TILES)
constexpr bool BYTE_TILES = true;
#else
constexpr bool BYTE_TILES = false;
#endif

// Left to itself, a compiler keeps some of the loops and lambdas of a product, and what should be in registers in memory:
// products of eight rows took 1.3 to 1.7 times as long.
#define INLINED __attribute__((always_inline))
#define UNROLLED _Pragma("GCC unroll 64")

// Keep what `at` points to in memory: a compiler that tries to hold it in registers runs out of them.
template <class T> inline void in_memory(T& at) { asm volatile("" ::"r"(&at) : "memory"); }

using bf16 = uint16_t;

inline float widen(bf16 x) {
    uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

#if defined(__AVX512F__)

using Floats = __m512;
using Ints = __m512i;
using Words = __m512i;

inline Floats load(const float* x) { return _mm512_loadu_ps(x); }
inline void store(float* to, Floats x) { _mm512_storeu_ps(to, x); }
inline Floats all(float x) { return _mm512_set1_ps(x); }
inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }    // a * b + c
inline Floats fnma(Floats a, Floats b, Floats c) { return _mm512_fnmadd_ps(a, b, c); }  // c - a * b
inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
inline Floats abs(Floats a) { return _mm512_abs_ps(a); }
inline Floats round(Floats a) { return _mm512_roundscale_ps(a, 0); }
inline Floats times_power(Floats a, Floats n) { return _mm512_scalef_ps(a, n); }  // a * 2^n, n a whole number
inline Floats select(uint32_t mask, Floats yes, Floats no) { return _mm512_mask_blend_ps(__mmask16(mask), no, yes); }
inline uint32_t not_at_most(Floats a, Floats b) { return _mm512_cmp_ps_mask(a, b, _CMP_NLE_UQ); }  // or not a number
inline float sum_of(Floats a) { return _mm512_reduce_add_ps(a); }
inline float max_of(Floats a) { return _mm512_reduce_max_ps(a); }
inline float first_of(Floats a) { return _mm512_cvtss_f32(a); }
inline Floats reciprocal(Floats a) {  // refined once, to about 2e-7
    const Floats rough = _mm512_rcp14_ps(a);
    return _mm512_mul_ps(rough, _mm512_fnmadd_ps(a, rough, _mm512_set1_ps(2.0f)));
}
inline Floats widen16(const bf16* x) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)x)), 16));
}
inline Floats halves(const uint8_t* x) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)x)); }
inline Floats bytes(const uint8_t* x) { return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)x))); }
inline Floats signed_bytes(const uint8_t* x) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)x)));
}
#if defined(__AVX512BF16__)
inline void narrow16(bf16* to, Floats x) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(x)); }
inline void narrow_pairs(bf16* to, Floats first, Floats second) {  // one of each in turn
    const __m512i turns = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4,
                                           19, 3, 18, 2, 17, 1, 16, 0);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(turns, (__m512i)_mm512_cvtne2ps_pbh(second, first)));
}
inline Floats round16(Floats x) {  // to bf16 and back
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16));
}
#else
inline __m512i bf16_bits(Floats x) {  // rounded to even; what is not a number stays so
    const __m512i bits = _mm512_castps_si512(x), one = _mm512_set1_epi32(1);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), one);
    const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    return _mm512_mask_mov_epi32(_mm512_srli_epi32(up, 16), nan, _mm512_set1_epi32(0x7fc0));
}
inline void narrow16(bf16* to, Floats x) { _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(bf16_bits(x))); }
inline void narrow_pairs(bf16* to, Floats first, Floats second) {
    _mm512_storeu_si512(to, _mm512_or_si512(bf16_bits(first), _mm512_slli_epi32(bf16_bits(second), 16)));
}
inline Floats round16(Floats x) { return _mm512_castsi512_ps(_mm512_slli_epi32(bf16_bits(x), 16)); }
#endif
// Of 16 pairs of bf16: the first of each, the second of each.
inline Floats evens(const bf16* x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(x), 16)); }
inline Floats odds(const bf16* x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(x), _mm512_set1_epi32(int(0xffff0000))));
}

inline Ints no_ints() { return _mm512_setzero_si512(); }
inline Ints all_ints(int32_t x) { return _mm512_set1_epi32(x); }
inline Ints load_ints(const int32_t* x) { return _mm512_loadu_si512(x); }
template <int BITS> inline Ints doubled(Ints a) { return _mm512_slli_epi32(a, BITS); }  // BITS times
inline Ints plus(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
inline int32_t sum_of_ints(Ints a) { return _mm512_reduce_add_epi32(a); }
inline Ints to_ints(Floats a) { return _mm512_cvtps_epi32(a); }  // to the nearest
inline void store_words(int16_t* to, Ints a) { _mm256_storeu_si256((__m256i*)to, _mm512_cvtsepi32_epi16(a)); }
inline Words load_words(const int16_t* x) { return _mm512_loadu_si512(x); }
inline Words words_of_bytes(const uint8_t* x) { return _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)x)); }
template <int BITS> inline Words down(Words a) { return _mm512_srli_epi16(a, BITS); }
template <int BITS> inline Words up(Words a) { return _mm512_slli_epi16(a, BITS); }
inline Words masked(Words a, int16_t mask) { return _mm512_and_si512(a, _mm512_set1_epi16(mask)); }
inline Words blended(Words a, Words b, int16_t mask) {  // a where the mask is set, else b
    return _mm512_ternarylogic_epi32(a, b, _mm512_set1_epi16(mask), 0xe4);
}
inline Words looked_up(Words places, const int8_t* table) {  // of 16 values
    const __m256i values = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)table));
    return _mm512_permutexvar_epi16(places, _mm512_castsi256_si512(values));
}
inline void keep_words(int16_t* to, Words a) { _mm512_storeu_si512(to, a); }
using Pair = __m512i;  // two numbers x of 16 bits, for all lanes
inline Pair all_pairs(int32_t both) { return _mm512_set1_epi32(both); }
// Lane c: sum + w[2 c] * x[0] + w[2 c + 1] * x[1].
inline Ints add_pairs(Ints sum, Words w, Pair x) {
#if defined(__AVX512VNNI__)
    return _mm512_dpwssd_epi32(sum, w, x);
#else
    return _mm512_add_epi32(sum, _mm512_madd_epi16(w, x));
#endif
}
// Eight registers at a time: `both` of the halves, quarters .. of each until one number of each is left, in their order.
template <class Both> INLINED inline __m256i reduced(const __m512i* x, const Both& both) {
    __m512i half[4], four[2];
    UNROLLED for (int i = 0; i < 4; i++)
        half[i] = both(_mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0x44), _mm512_shuffle_i32x4(x[2 * i], x[2 * i + 1], 0xee));
    UNROLLED for (int i = 0; i < 2; i++)
        four[i] = both(_mm512_shuffle_i32x4(half[2 * i], half[2 * i + 1], 0x88), _mm512_shuffle_i32x4(half[2 * i], half[2 * i + 1], 0xdd));
    const __m512i two = both(_mm512_unpacklo_epi32(four[0], four[1]), _mm512_unpackhi_epi32(four[0], four[1]));
    const __m512i one = both(two, _mm512_shuffle_epi32(two, _MM_PERM_BADC));
    return _mm512_castsi512_si256(_mm512_permutexvar_epi32(_mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 0, 0, 0, 0, 0, 0, 0, 0), one));
}
INLINED inline void max_of_each(const Floats (&x)[8], float* to) {
    auto both = [](__m512i a, __m512i b) { return _mm512_castps_si512(_mm512_max_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b))); };
    _mm256_storeu_si256((__m256i*)to, reduced((const __m512i*)x, both));
}
INLINED inline void sum_of_each(const Ints (&x)[8], int32_t* to) {
    _mm256_storeu_si256((__m256i*)to, reduced(x, [](__m512i a, __m512i b) { return _mm512_add_epi32(a, b); }));
}
inline Words words_of(Ints low, Ints high) {
    return _mm512_inserti64x4(_mm512_castsi256_si512(_mm512_cvtsepi32_epi16(low)), _mm512_cvtsepi32_epi16(high), 1);
}
// Sixteen words and sixteen more of each of eight rows, by pairs: to[pair][row].
INLINED inline void keep_pairs(const Ints (&low)[8], const Ints (&high)[8], int32_t* to) {
    __m512i x[8], y[8];
    UNROLLED for (int r = 0; r < 8; r++) x[r] = words_of(low[r], high[r]);
    UNROLLED for (int r = 0; r < 8; r += 2) y[r] = _mm512_unpacklo_epi32(x[r], x[r + 1]), y[r + 1] = _mm512_unpackhi_epi32(x[r], x[r + 1]);
    UNROLLED for (int p = 0; p < 4; p++) {  // pairs p, 4 + p, 8 + p and 12 + p: rows 0 to 3, then 4 to 7
        const __m512i* from = y + p / 2;
        const __m512i first = p % 2 ? _mm512_unpackhi_epi64(from[0], from[2]) : _mm512_unpacklo_epi64(from[0], from[2]);
        const __m512i last = p % 2 ? _mm512_unpackhi_epi64(from[4], from[6]) : _mm512_unpacklo_epi64(from[4], from[6]);
        const __m512i low_lanes = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11), last);
        const __m512i high_lanes = _mm512_permutex2var_epi64(first, _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15), last);
        _mm256_storeu_si256((__m256i*)(to + 8 * p), _mm512_castsi512_si256(low_lanes));
        _mm256_storeu_si256((__m256i*)(to + 8 * (4 + p)), _mm512_extracti64x4_epi64(low_lanes, 1));
        _mm256_storeu_si256((__m256i*)(to + 8 * (8 + p)), _mm512_castsi512_si256(high_lanes));
        _mm256_storeu_si256((__m256i*)(to + 8 * (12 + p)), _mm512_extracti64x4_epi64(high_lanes, 1));
    }
}
inline void prefetch(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }
inline void relax() { _mm_pause(); }

#elif defined(__AVX2__)

struct Floats { __m256 a, b; };
struct Ints { __m256i a, b; };
struct Words { __m256i a, b; };

inline Floats load(const float* x) { return {_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)}; }
inline void store(float* to, Floats x) { _mm256_storeu_ps(to, x.a), _mm256_storeu_ps(to + 8, x.b); }
inline Floats all(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
inline Floats add(Floats x, Floats y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
inline Floats sub(Floats x, Floats y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
inline Floats mul(Floats x, Floats y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
inline Floats fma(Floats x, Floats y, Floats z) { return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)}; }
inline Floats fnma(Floats x, Floats y, Floats z) { return {_mm256_fnmadd_ps(x.a, y.a, z.a), _mm256_fnmadd_ps(x.b, y.b, z.b)}; }
inline Floats max(Floats x, Floats y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
inline Floats min(Floats x, Floats y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
inline Floats abs(Floats x) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, x.a), _mm256_andnot_ps(sign, x.b)};
}
inline Floats round(Floats x) { return {_mm256_round_ps(x.a, 8), _mm256_round_ps(x.b, 8)}; }
inline __m256 power_of_two(__m256 n) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23));
}
inline Floats times_power(Floats x, Floats n) { return mul(x, {power_of_two(n.a), power_of_two(n.b)}); }
inline __m256 lanes8(uint32_t mask) {  // bit i -> all bits of lane i
    const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(int(mask)), bit), bit));
}
inline Floats select(uint32_t mask, Floats yes, Floats no) {
    return {_mm256_blendv_ps(no.a, yes.a, lanes8(mask)), _mm256_blendv_ps(no.b, yes.b, lanes8(mask >> 8))};
}
inline uint32_t not_at_most(Floats x, Floats y) {
    const int low = _mm256_movemask_ps(_mm256_cmp_ps(x.a, y.a, _CMP_NLE_UQ));
    return uint32_t(low | _mm256_movemask_ps(_mm256_cmp_ps(x.b, y.b, _CMP_NLE_UQ)) << 8);
}
inline float sum_of(Floats x) {
    const __m256 eight = _mm256_add_ps(x.a, x.b);
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
inline float max_of(Floats x) {
    const __m256 eight = _mm256_max_ps(x.a, x.b);
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float first_of(Floats x) { return _mm256_cvtss_f32(x.a); }
inline Floats reciprocal(Floats x) { return {_mm256_div_ps(_mm256_set1_ps(1), x.a), _mm256_div_ps(_mm256_set1_ps(1), x.b)}; }
inline __m256 widen8(const bf16* x) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)x)), 16));
}
inline Floats widen16(const bf16* x) { return {widen8(x), widen8(x + 8)}; }
inline Floats halves(const uint8_t* x) {
    return {_mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)x)), _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)(x + 16)))};
}
inline Floats to_floats(Ints x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
inline Floats bytes(const uint8_t* x) {
    const __m128i all16 = _mm_loadu_si128((const __m128i*)x);
    return to_floats({_mm256_cvtepu8_epi32(all16), _mm256_cvtepu8_epi32(_mm_srli_si128(all16, 8))});
}
inline Floats signed_bytes(const uint8_t* x) {
    const __m128i all16 = _mm_loadu_si128((const __m128i*)x);
    return to_floats({_mm256_cvtepi8_epi32(all16), _mm256_cvtepi8_epi32(_mm_srli_si128(all16, 8))});
}
inline __m256i bf16_bits(__m256 x) {
    const __m256i bits = _mm256_castps_si256(x);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    const __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    return _mm256_blendv_epi8(_mm256_srli_epi32(up, 16), _mm256_set1_epi32(0x7fc0), nan);
}
inline void narrow16(bf16* to, Floats x) {
    const __m256i mixed = _mm256_packus_epi32(bf16_bits(x.a), bf16_bits(x.b));  // quarters 0 2 1 3
    _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(mixed, 0xd8));
}
inline Floats round16(Floats x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(x.a), 16)), _mm256_castsi256_ps(_mm256_slli_epi32(bf16_bits(x.b), 16))};
}
inline __m256i load8(const void* x) { return _mm256_loadu_si256((const __m256i*)x); }
inline Floats evens(const bf16* x) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(load8(x), 16)), _mm256_castsi256_ps(_mm256_slli_epi32(load8(x + 16), 16))};
}
inline Floats odds(const bf16* x) {
    const __m256i high = _mm256_set1_epi32(int(0xffff0000));
    return {_mm256_castsi256_ps(_mm256_and_si256(load8(x), high)), _mm256_castsi256_ps(_mm256_and_si256(load8(x + 16), high))};
}

inline Ints no_ints() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
inline Ints all_ints(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
template <int BITS> inline Ints doubled(Ints x) { return {_mm256_slli_epi32(x.a, BITS), _mm256_slli_epi32(x.b, BITS)}; }
inline Ints plus(Ints x, Ints y) { return {_mm256_add_epi32(x.a, y.a), _mm256_add_epi32(x.b, y.b)}; }
inline int32_t sum_of_ints(Ints x) {
    const __m256i eight = _mm256_add_epi32(x.a, x.b);
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    const __m128i two = _mm_add_epi32(four, _mm_srli_si128(four, 8));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_srli_si128(two, 4)));
}
inline Ints to_ints(Floats x) { return {_mm256_cvtps_epi32(x.a), _mm256_cvtps_epi32(x.b)}; }
inline void store_words(int16_t* to, Ints x) {
    _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(_mm256_packs_epi32(x.a, x.b), 0xd8));
}
inline Words load_words(const int16_t* x) { return {load8(x), load8(x + 16)}; }
inline Words words_of_bytes(const uint8_t* x) {
    return {_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)x)), _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)(x + 16)))};
}
template <int BITS> inline Words down(Words x) { return {_mm256_srli_epi16(x.a, BITS), _mm256_srli_epi16(x.b, BITS)}; }
inline Words masked(Words x, int16_t mask) {
    const __m256i by = _mm256_set1_epi16(mask);
    return {_mm256_and_si256(x.a, by), _mm256_and_si256(x.b, by)};
}
template <int BITS> inline Words up(Words x) { return {_mm256_slli_epi16(x.a, BITS), _mm256_slli_epi16(x.b, BITS)}; }
inline Words blended(Words x, Words y, int16_t mask) {  // x where the mask is set, else y
    const __m256i by = _mm256_set1_epi16(mask);
    auto half = [&](__m256i a, __m256i b) { return _mm256_or_si256(_mm256_and_si256(by, a), _mm256_andnot_si256(by, b)); };
    return {half(x.a, y.a), half(x.b, y.b)};
}
inline Words looked_up(Words places, const int8_t* table) {  // of 16 values; the low byte of a word is its place
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
    auto half = [&](__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(_mm256_shuffle_epi8(values, x), 8), 8); };
    return {half(places.a), half(places.b)};
}
inline void keep_words(int16_t* to, Words x) {
    _mm256_storeu_si256((__m256i*)to, x.a), _mm256_storeu_si256((__m256i*)(to + 16), x.b);
}
using Pair = __m256i;
inline Pair all_pairs(int32_t both) { return _mm256_set1_epi32(both); }
inline Ints add_pairs(Ints sum, Words w, Pair x) {
    return {_mm256_add_epi32(sum.a, _mm256_madd_epi16(w.a, x)), _mm256_add_epi32(sum.b, _mm256_madd_epi16(w.b, x))};
}
inline void prefetch(const void* at) { _mm_prefetch((const char*)at, _MM_HINT_T0); }
inline void relax() { _mm_pause(); }

#elif defined(__aarch64__)
#include "vec_neon.h"
#else
#error "no vector code for this processor (AVX2, AVX-512 or NEON)"
#endif
