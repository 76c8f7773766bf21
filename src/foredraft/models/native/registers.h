// The eight tile registers: what the rest of the library may do with them. Compilers' own names for these instructions take a
// register's number as a literal and nothing else; here it is known when compiling. `emulated.h` has the same without registers,
// for tests on processors that lack them.
#pragma once
#include <cstdint>

struct alignas(64) TileShape {  // of every register: rows, and bytes of a row
    uint8_t palette = 1, start = 0, none[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};
};

#if defined(EMULATED_TILES)
#include "emulated.h"
#else
#include <sys/syscall.h>
#include <unistd.h>

inline bool ask_for_tiles() { return syscall(SYS_arch_prctl, 0x1023, 18) == 0; }  // the kernel gives them on request
inline void shape_tiles(const TileShape& shape) { asm volatile("ldtilecfg %0" ::"m"(shape)); }
inline void release_tiles() { asm volatile("tilerelease"); }
inline void settle() { asm volatile("" ::: "memory"); }  // loads do not tell the compiler that they read memory

template <int T> inline void clear_tile() { asm volatile("tilezero %%tmm%c0" ::"i"(T)); }
template <int T> inline void load_tile(const void* from, long stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(from), "r"(stride), "i"(T));
}
template <int T> inline void store_tile(void* to, long stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(to), "r"(stride), "i"(T) : "memory");
}
// C [rows][16] += A [rows][k] x B [k][16]: pairs of bf16 into float32, fours of bytes into 32-bit integers, signed ones or those of
// B without a sign.
template <int C, int A, int B> inline void multiply_bf16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> inline void multiply_bytes() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
template <int C, int A, int B> inline void multiply_by_unsigned() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
}
#endif
