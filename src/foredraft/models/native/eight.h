// Products of drafters: weights on a grid of 8 bits against rows that are rounded to 8 bits, 32 numbers with one step each.
// Sums of 32 are whole numbers, so nothing is unpacked: for few rows three times as quick as by tiles. What rounding
// changes the target corrects; its own products are never rounded. A row's result is its own affair here too. Passes
// of a head that ask for no words read many rows, a prompt's: these go by tiles.
#pragma once
#include "act.h"
#include "formats.h"
#include "line.h"

// weight [columns, depth] by blocks of 16 columns; in a block, k-block after k-block of 32; in a k-block, 8 lines of 16
// columns of 4 numbers each, as code + 128; scales [16] float32.
struct Rounded {  // rows [rows, depth] by k-blocks
    Line<int8_t> codes;
    Line<float> step;
    Line<int32_t> begin;  // -128 times the sum of a k-block's codes: what the weights' 128 adds to a sum

    void take(const act* a, long lda, int rows, int depth) {
        const int blocks = depth / DEPTH;
        const size_t whole = (rows + 7) / 8 * 8;  // rows go by eights; those beyond may be anything
        codes.reserve(whole * depth), step.reserve(whole * blocks), begin.reserve(whole * blocks);
        for (int r = 0; r < rows; r++)
            for (int k = 0; k < blocks; k++) {
                const __m512 low = get16(a + r * lda + k * DEPTH), high = get16(a + r * lda + k * DEPTH + 16);
                const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
                const __m512 by = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
                const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, by)), second = _mm512_cvtps_epi32(_mm512_mul_ps(high, by));
                int8_t* to = &codes[size_t(r) * depth + k * DEPTH];
                _mm_storeu_si128((__m128i*)to, _mm512_cvtsepi32_epi8(first));
                _mm_storeu_si128((__m128i*)(to + 16), _mm512_cvtsepi32_epi8(second));
                step[r * blocks + k] = most / 127.0f;
                begin[r * blocks + k] = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
            }
    }
};

// Sums of R rows against a block of columns, over the whole depth; asks memory for the block that will be wanted next.
template <int R>
void add_eight(const Rounded& x, int row, int depth, const uint8_t* codes, const float* scales, long ahead, __m512* sums) {
    const int blocks = depth / DEPTH;
    for (int r = 0; r < R; r++) sums[r] = _mm512_setzero_ps();
    for (int k = 0; k < blocks; k++, codes += TILE, scales += COLUMNS) {
        __m512i line[DEPTH / 4];
        for (int g = 0; g < DEPTH / 4; g++) {
            line[g] = _mm512_loadu_si512(codes + 64 * g);
            _mm_prefetch((const char*)codes + ahead * TILE + 64 * g, _MM_HINT_T0);
        }
        _mm_prefetch((const char*)(scales + ahead * COLUMNS), _MM_HINT_T0);
        const __m512 scale = _mm512_loadu_ps(scales);
        for (int r = 0; r < R; r++) {
            const long at = long(row + r) * blocks + k;
            __m512i sum = _mm512_set1_epi32(x.begin[at]);
            for (int g = 0; g < DEPTH / 4; g++) {
                int32_t four;
                std::memcpy(&four, &x.codes[at * DEPTH + 4 * g], 4);
                sum = _mm512_dpbusd_epi32(sum, line[g], _mm512_set1_epi32(four));
            }
            sums[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), _mm512_mul_ps(scale, _mm512_set1_ps(x.step[at])), sums[r]);
        }
    }
}

// As `product`, for weights of this kind. Column blocks go by twos: whoever takes sums may want both for a row soon.
template <class Block, class Emit>
void product_eight(const Rounded& x, int rows, int depth, const uint8_t* codes, const float* scales, int begin, int end, Block block, Emit emit) {
    constexpr int MANY = 8;
    const int blocks = depth / DEPTH;
    for (int pair = begin; pair < end; pair += 2)
        for (int row = 0; row < rows; row += MANY)
            for (int j = pair; j < end && j < pair + 2; j++) {
                __m512 sums[MANY];
                const long from = long(block(j)) * blocks, ahead = j + 2 < end ? long(block(j + 2)) * blocks - from : 0;
                const uint8_t* code = codes + from * TILE;
                const float* scale = scales + from * COLUMNS;
                const int left = rows - row < MANY ? rows - row : MANY;
                left > 4 ? add_eight<8>(x, row, depth, code, scale, ahead, sums)
                : left > 2 ? add_eight<4>(x, row, depth, code, scale, ahead, sums)
                : left > 1 ? add_eight<2>(x, row, depth, code, scale, ahead, sums)
                           : add_eight<1>(x, row, depth, code, scale, ahead, sums);
                for (int r = 0; r < left; r++) emit(row + r, j, sums[r]);
            }
}
