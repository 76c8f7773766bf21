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
constexpr int FOURS = DEPTH / 4;  // lines of a k-block

template <int R> struct RoundedBlock {  // a k-block of R rows
    int32_t four[FOURS][R];       // codes
    float step[R];
    int32_t begin[R];  // -128 times the sum of a row's codes: what the weights' 128 adds to a sum
};

struct Rounded {  // rows [rows, depth] in panels of 1, 2, 4 or 8, k-block by k-block: a product finds all it needs next at one address
    int panel = 0;
    Line<RoundedBlock<1>> blocks;  // those of a panel of R rows: a RoundedBlock<R> for every k-block

    // f(R) for the rows of a panel.
    template <class F> static void by_panel(int panel, F f) {
        using std::integral_constant;
        panel == 8   ? f(integral_constant<int, 8>())
        : panel == 4 ? f(integral_constant<int, 4>())
        : panel == 2 ? f(integral_constant<int, 2>())
                     : f(integral_constant<int, 1>());
    }
    template <int R> const RoundedBlock<R>* at(int row, int depth) const {
        return (const RoundedBlock<R>*)&blocks[size_t(row) * (depth / DEPTH)];
    }

    void take(const act* a, long lda, int rows, int depth) {  // rows that a last panel lacks may be anything
        panel = rows > 4 ? 8 : rows > 2 ? 4 : rows > 1 ? 2 : 1;
        blocks.reserve(size_t(rows + panel - 1) / panel * panel * (depth / DEPTH));
        by_panel(panel, [&](auto r) {
            for (int row = 0; row < rows; row++) take_row<r()>(a + row * lda, row, depth);
        });
    }

  private:
    template <int R> void take_row(const act* a, int row, int depth) {
        const int r = row % R;
        RoundedBlock<R>* to = (RoundedBlock<R>*)at<R>(row - r, depth);
        for (int k = 0; k < depth; k += DEPTH, to++) {
            const __m512 low = get16(a + k), high = get16(a + k + 16);
            const float most = _mm512_reduce_max_ps(_mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high)));
            const __m512 by = _mm512_set1_ps(most > 0 ? 127.0f / most : 0.0f);
            const __m512i first = _mm512_cvtps_epi32(_mm512_mul_ps(low, by)), second = _mm512_cvtps_epi32(_mm512_mul_ps(high, by));
            alignas(DEPTH) int8_t codes[DEPTH];
            _mm_store_si128((__m128i*)codes, _mm512_cvtsepi32_epi8(first));
            _mm_store_si128((__m128i*)(codes + 16), _mm512_cvtsepi32_epi8(second));
            for (int g = 0; g < FOURS; g++) std::memcpy(&to->four[g][r], codes + 4 * g, 4);
            to->step[r] = most / 127.0f;
            to->begin[r] = -128 * _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
        }
    }
};

struct EightColumn {  // where the codes and scales of a block of columns lie, and how far on those that will be wanted next
    const uint8_t* codes;
    const float* scales;
    long ahead;
};

// Sums of R rows of a panel against N blocks of columns, over the whole depth.
template <int R, int N> void add_eight(const RoundedBlock<R>* x, int blocks, EightColumn (&column)[N], __m512 (&sums)[R][N]) {
    UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int n = 0; n < N; n++) sums[r][n] = _mm512_setzero_ps();
    for (int k = 0; k < blocks; k++, x++) {
        __m512i sum[R][N];
        UNROLLED for (int r = 0; r < R; r++) UNROLLED for (int n = 0; n < N; n++) sum[r][n] = _mm512_set1_epi32(x->begin[r]);
        UNROLLED for (int g = 0; g < FOURS; g++) {
            __m512i line[N];
            UNROLLED for (int n = 0; n < N; n++) {
                line[n] = _mm512_loadu_si512(column[n].codes + 64 * g);
                _mm_prefetch((const char*)column[n].codes + column[n].ahead * TILE + 64 * g, _MM_HINT_T0);
            }
            UNROLLED for (int r = 0; r < R; r++) {
                const __m512i four = _mm512_set1_epi32(x->four[g][r]);
                UNROLLED for (int n = 0; n < N; n++) sum[r][n] = _mm512_dpbusd_epi32(sum[r][n], line[n], four);
            }
        }
        UNROLLED for (int n = 0; n < N; n++) {
            _mm_prefetch((const char*)(column[n].scales + column[n].ahead * COLUMNS), _MM_HINT_T0);
            const __m512 scale = _mm512_loadu_ps(column[n].scales);
            UNROLLED for (int r = 0; r < R; r++)
                sums[r][n] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[r][n]), _mm512_mul_ps(scale, _mm512_set1_ps(x->step[r])), sums[r][n]);
            column[n].codes += TILE, column[n].scales += COLUMNS;
        }
        if (R * N > 8) in_memory(sums);
    }
}

// As `product`, for weights of this kind. Column blocks go by twos: whoever takes sums may want both for a row soon.
template <class Block, class Emit>
void product_eight(const Rounded& x, int rows, int depth, const uint8_t* codes, const float* scales, int begin, int end, Block block, Emit emit) {
    const int blocks = depth / DEPTH;
    auto some = [&](auto r, auto n, int row, int j) {
        constexpr int R = decltype(r)::value, N = decltype(n)::value;
        EightColumn column[N];
        for (int i = 0; i < N; i++) {
            const long from = long(block(j + i)) * blocks, next = j + i + 2 < end ? long(block(j + i + 2)) * blocks : from;
            column[i] = {codes + from * TILE, scales + from * COLUMNS, next - from};
        }
        __m512 sums[R][N];
        add_eight<R, N>(x.at<R>(row, depth), blocks, column, sums);
        for (int i = 0; i < R && row + i < rows; i++)
            for (int c = 0; c < N; c++) emit(row + i, j + c, sums[i][c]);
    };
    Rounded::by_panel(x.panel, [&](auto r) {
        for (int j = begin; j < end; j += 2)
            for (int row = 0; row < rows; row += r())
                j + 1 < end ? some(r, std::integral_constant<int, 2>(), row, j) : some(r, std::integral_constant<int, 1>(), row, j);
    });
}
