// The numbers between two products of a layer. Where the processor multiplies bf16 they are bf16, rounded where the torch
// decoder rounds them; elsewhere float32. The stream between layers, keys, values and features are bf16 everywhere.
#pragma once
#include "vec.h"

inline Floats get16(const bf16* x) { return widen16(x); }
inline Floats get16(const float* x) { return load(x); }
inline void put16(bf16* to, Floats x) { narrow16(to, x); }
inline void put16(float* to, Floats x) { store(to, x); }

#if defined(BF16_TILES)
using act = bf16;
inline Floats as_act(Floats x) { return round16(x); }
#else
using act = float;
inline Floats as_act(Floats x) { return x; }
#endif

template <class To, class From> void convert(To* to, const From* from, long count) {  // a multiple of 16
    for (long i = 0; i < count; i += 16) put16(to + i, get16(from + i));
}
template <class T> void convert(T* to, const T* from, long count) { std::memcpy(to, from, count * sizeof(T)); }
