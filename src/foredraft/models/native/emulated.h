// Tile registers in plain C++, instruction by instruction as Intel describes them; what a processor would refuse ends the program.
#pragma once
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "vec.h"

struct Registers {  // of a thread
    TileShape shape{0};
    uint8_t data[8][16][64];

    void expect(bool right, const char* what) const {
        if (!right) std::fprintf(stderr, "tile registers: %s\n", what), std::abort();
    }
    void expect_shape(int t) const { expect(shape.palette == 1 && shape.rows[t] && shape.bytes[t], "not shaped"); }
    void expect_product(int c, int a, int b) const {
        for (int t : {c, a, b}) expect_shape(t);
        expect(c != a && a != b && b != c, "a product of a register with itself");
        const bool fit = shape.rows[c] == shape.rows[a] && shape.bytes[c] == shape.bytes[b] && shape.bytes[a] == 4 * shape.rows[b];
        expect(fit, "shapes do not fit");
    }
    template <class T> T at(int t, int row, int i) const {
        T value;
        std::memcpy(&value, data[t][row] + i * sizeof(T), sizeof(T));
        return value;
    }
};
inline Registers& registers() {
    static thread_local Registers own;
    return own;
}

inline bool ask_for_tiles() { return true; }
inline void settle() {}
inline void shape_tiles(const TileShape& shape) {
    registers().shape = shape;
    std::memset(registers().data, 0, sizeof registers().data);
    for (int t = 0; t < 8; t++) registers().expect(shape.rows[t] <= 16 && shape.bytes[t] <= 64, "a shape that is too large");
}
inline void release_tiles() { registers().shape = {0}; }
template <int T> inline void clear_tile() {
    registers().expect_shape(T);
    std::memset(registers().data[T], 0, sizeof registers().data[T]);
}
template <int T> inline void load_tile(const void* from, long stride) {
    clear_tile<T>();  // rows and bytes beyond the shape, too
    Registers& own = registers();
    for (int r = 0; r < own.shape.rows[T]; r++) std::memcpy(own.data[T][r], (const char*)from + r * stride, own.shape.bytes[T]);
}
template <int T> inline void store_tile(void* to, long stride) {
    const Registers& own = registers();
    own.expect_shape(T);
    for (int r = 0; r < own.shape.rows[T]; r++) std::memcpy((char*)to + r * stride, own.data[T][r], own.shape.bytes[T]);
}
template <int C, int A, int B> inline void multiply_bf16() {
    Registers& own = registers();
    own.expect_product(C, A, B);
    for (int m = 0; m < own.shape.rows[C]; m++) {
        Floats even = all(0.0f), odd = all(0.0f);  // sums over even k and over odd k, for all columns
        for (int k = 0; k < own.shape.rows[B]; k++) {
            const bf16* pairs = (const bf16*)own.data[B][k];
            even = fma(all(widen(own.at<bf16>(A, m, 2 * k))), evens(pairs), even);
            odd = fma(all(widen(own.at<bf16>(A, m, 2 * k + 1))), odds(pairs), odd);
        }
        float sums[16];
        store(sums, add(load((const float*)own.data[C][m]), add(even, odd)));
        std::memcpy(own.data[C][m], sums, own.shape.bytes[C]);
    }
}
template <class Byte, int C, int A, int B> inline void multiply_fours() {
    Registers& own = registers();
    own.expect_product(C, A, B);
    for (int m = 0; m < own.shape.rows[C]; m++)
        for (int n = 0; n < own.shape.bytes[C] / 4; n++) {
            int32_t sum = own.at<int32_t>(C, m, n);
            for (int k = 0; k < own.shape.bytes[A]; k++) sum += own.at<int8_t>(A, m, k) * own.at<Byte>(B, k / 4, 4 * n + k % 4);
            std::memcpy(own.data[C][m] + 4 * n, &sum, 4);
        }
}
template <int C, int A, int B> inline void multiply_bytes() { multiply_fours<int8_t, C, A, B>(); }
template <int C, int A, int B> inline void multiply_by_unsigned() { multiply_fours<uint8_t, C, A, B>(); }
