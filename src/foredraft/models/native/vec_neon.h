// The verbs of vec.h on NEON: sixteen lanes in four registers. Included by vec.h alone.
#pragma once

struct Floats { float32x4_t v[4]; };
struct Ints { int32x4_t v[4]; };
struct Words { int16x8_t v[4]; };

// f(i) for each of the four registers.
template <class F> inline Floats each_float(F f) { return {{f(0), f(1), f(2), f(3)}}; }
template <class F> inline Ints each_int(F f) { return {{f(0), f(1), f(2), f(3)}}; }
template <class F> inline Words each_word(F f) { return {{f(0), f(1), f(2), f(3)}}; }

inline Floats load(const float* x) { return each_float([&](int i) { return vld1q_f32(x + 4 * i); }); }
inline void store(float* to, Floats x) {
    for (int i = 0; i < 4; i++) vst1q_f32(to + 4 * i, x.v[i]);
}
inline Floats all(float x) { return each_float([&](int) { return vdupq_n_f32(x); }); }
inline Floats add(Floats a, Floats b) { return each_float([&](int i) { return vaddq_f32(a.v[i], b.v[i]); }); }
inline Floats sub(Floats a, Floats b) { return each_float([&](int i) { return vsubq_f32(a.v[i], b.v[i]); }); }
inline Floats mul(Floats a, Floats b) { return each_float([&](int i) { return vmulq_f32(a.v[i], b.v[i]); }); }
inline Floats fma(Floats a, Floats b, Floats c) { return each_float([&](int i) { return vfmaq_f32(c.v[i], a.v[i], b.v[i]); }); }
inline Floats fnma(Floats a, Floats b, Floats c) { return each_float([&](int i) { return vfmsq_f32(c.v[i], a.v[i], b.v[i]); }); }
inline Floats max(Floats a, Floats b) { return each_float([&](int i) { return vmaxq_f32(a.v[i], b.v[i]); }); }
inline Floats min(Floats a, Floats b) { return each_float([&](int i) { return vminq_f32(a.v[i], b.v[i]); }); }
inline Floats abs(Floats a) { return each_float([&](int i) { return vabsq_f32(a.v[i]); }); }
inline Floats round(Floats a) { return each_float([&](int i) { return vrndnq_f32(a.v[i]); }); }
inline Floats times_power(Floats a, Floats n) {
    return each_float([&](int i) {
        const int32x4_t exponent = vaddq_s32(vcvtnq_s32_f32(n.v[i]), vdupq_n_s32(127));
        return vmulq_f32(a.v[i], vreinterpretq_f32_s32(vshlq_n_s32(exponent, 23)));
    });
}
inline Floats select(uint32_t mask, Floats yes, Floats no) {
    const uint32_t powers[4] = {1, 2, 4, 8};
    const uint32x4_t bit = vld1q_u32(powers);
    return each_float([&](int i) { return vbslq_f32(vtstq_u32(vdupq_n_u32(mask >> 4 * i), bit), yes.v[i], no.v[i]); });
}
inline uint32_t not_at_most(Floats a, Floats b) {
    const uint32_t powers[4] = {1, 2, 4, 8};
    uint32_t mask = 0;
    for (int i = 0; i < 4; i++) mask |= vaddvq_u32(vbicq_u32(vld1q_u32(powers), vcleq_f32(a.v[i], b.v[i]))) << 4 * i;
    return mask;
}
inline float sum_of(Floats a) { return vaddvq_f32(vaddq_f32(vaddq_f32(a.v[0], a.v[1]), vaddq_f32(a.v[2], a.v[3]))); }
inline float max_of(Floats a) { return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.v[0], a.v[1]), vmaxq_f32(a.v[2], a.v[3]))); }
inline float first_of(Floats a) { return vgetq_lane_f32(a.v[0], 0); }
inline Floats reciprocal(Floats a) { return each_float([&](int i) { return vdivq_f32(vdupq_n_f32(1.0f), a.v[i]); }); }
inline Floats widen16(const bf16* x) {
    return each_float([&](int i) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(x + 4 * i), 16)); });
}
inline Floats halves(const uint8_t* x) {
    return each_float([&](int i) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(x + 8 * i))); });
}
inline Floats bytes(const uint8_t* x) {
    float found[16];
    for (int i = 0; i < 16; i++) found[i] = x[i];
    return load(found);
}
inline Floats signed_bytes(const uint8_t* x) {
    float found[16];
    for (int i = 0; i < 16; i++) found[i] = int8_t(x[i]);
    return load(found);
}
inline uint32x4_t bf16_bits(float32x4_t x) {
    const uint32x4_t bits = vreinterpretq_u32_f32(x), odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    const uint32x4_t up = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    return vbslq_u32(vceqq_f32(x, x), up, vdupq_n_u32(0x7fc0));  // what is not a number stays so
}
inline void narrow16(bf16* to, Floats x) {
    for (int i = 0; i < 4; i++) vst1_u16(to + 4 * i, vmovn_u32(bf16_bits(x.v[i])));
}
inline Floats round16(Floats x) {
    return each_float([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(bf16_bits(x.v[i]), 16)); });
}
inline uint32x4_t four_pairs(const bf16* x, int i) { return vreinterpretq_u32_u16(vld1q_u16(x + 8 * i)); }
inline Floats evens(const bf16* x) {
    return each_float([&](int i) { return vreinterpretq_f32_u32(vshlq_n_u32(four_pairs(x, i), 16)); });
}
inline Floats odds(const bf16* x) {
    return each_float([&](int i) { return vreinterpretq_f32_u32(vandq_u32(four_pairs(x, i), vdupq_n_u32(0xffff0000))); });
}

inline Ints no_ints() { return each_int([](int) { return vdupq_n_s32(0); }); }
inline Ints all_ints(int32_t x) { return each_int([&](int) { return vdupq_n_s32(x); }); }
template <int BITS> inline Ints doubled(Ints a) { return each_int([&](int i) { return vshlq_n_s32(a.v[i], BITS); }); }
inline Ints plus(Ints a, Ints b) { return each_int([&](int i) { return vaddq_s32(a.v[i], b.v[i]); }); }
inline Floats to_floats(Ints a) { return each_float([&](int i) { return vcvtq_f32_s32(a.v[i]); }); }
inline int32_t sum_of_ints(Ints a) { return vaddvq_s32(vaddq_s32(vaddq_s32(a.v[0], a.v[1]), vaddq_s32(a.v[2], a.v[3]))); }
inline Ints to_ints(Floats a) { return each_int([&](int i) { return vcvtnq_s32_f32(a.v[i]); }); }
inline void store_words(int16_t* to, Ints a) {
    for (int i = 0; i < 4; i++) vst1_s16(to + 4 * i, vqmovn_s32(a.v[i]));
}
inline Words load_words(const int16_t* x) { return each_word([&](int i) { return vld1q_s16(x + 8 * i); }); }
inline Words words_of_bytes(const uint8_t* x) {
    return each_word([&](int i) { return vmovl_s8(vreinterpret_s8_u8(vld1_u8(x + 8 * i))); });
}
template <int BITS> inline Words down(Words a) {
    return each_word([&](int i) { return vreinterpretq_s16_u16(vshrq_n_u16(vreinterpretq_u16_s16(a.v[i]), BITS)); });
}
inline Words masked(Words a, int16_t mask) { return each_word([&](int i) { return vandq_s16(a.v[i], vdupq_n_s16(mask)); }); }
template <int BITS> inline Words up(Words a) { return each_word([&](int i) { return vshlq_n_s16(a.v[i], BITS); }); }
inline Words blended(Words a, Words b, int16_t mask) {  // a where the mask is set, else b
    return each_word([&](int i) { return vbslq_s16(vdupq_n_u16(uint16_t(mask)), a.v[i], b.v[i]); });
}
inline Words looked_up(Words places, const int8_t* table) {  // of 16 values; the low byte of a word is its place
    const int8x16_t values = vld1q_s8(table);
    return each_word([&](int i) {
        const int16x8_t found = vreinterpretq_s16_s8(vqtbl1q_s8(values, vreinterpretq_u8_s16(places.v[i])));
        return vshrq_n_s16(vshlq_n_s16(found, 8), 8);
    });
}
inline void keep_words(int16_t* to, Words a) {
    for (int i = 0; i < 4; i++) vst1q_s16(to + 8 * i, a.v[i]);
}
using Pair = int16x8_t;
inline Pair all_pairs(int32_t both) { return vreinterpretq_s16_s32(vdupq_n_s32(both)); }
inline Ints add_pairs(Ints sum, Words w, Pair x) {
    return each_int([&](int i) {
        const int32x4_t low = vmull_s16(vget_low_s16(w.v[i]), vget_low_s16(x)), high = vmull_high_s16(w.v[i], x);
        return vaddq_s32(sum.v[i], vpaddq_s32(low, high));
    });
}
inline void prefetch(const void* at) { __builtin_prefetch(at); }
inline void relax() { asm volatile("yield"); }
