// Products with weights that lie in tiles, in bf16 or on a grid of few levels that yields the very same bf16 numbers.
#pragma once
#include "tile.h"

enum Format : int32_t { BF16 = 0, GRID8 = 1, GRID4 = 2 };

// weight [columns, depth] by blocks of 16 columns; in a block, k-block after k-block of 32; in a k-block, 16 rows of 32
// lanes: lane 2 c + i of row p is column c at k = 2 p + i, as tile products want it.
//   BF16:  lanes as bf16
//   GRID8: lanes as int8; scales [16] float32:                          w = bf16(scale * code)
//   GRID4: lane j in the low half of byte j, lane 16 + j in the high half; scales [2][16] half precision:
//                                                                       w = bf16(step * code + least)
struct Weight {
    int32_t format, columns, depth;
    int32_t none;
    const uint8_t* codes;
    const uint8_t* scales;
};
constexpr int CODE_BYTES[] = {2 * TILE, TILE, TILE / 2}, SCALE_BYTES[] = {0, 4 * COLUMNS, 4 * COLUMNS};
constexpr int PANEL = 18;  // k-blocks that are unpacked at once
constexpr int AHEAD = 16;  // k-blocks whose bytes are asked for in advance

// Every scale twice, for the two lanes of its column: columns 0 .. 7 and 8 .. 15.
struct Lanes {
    __m512 low, high;
    explicit Lanes(__m512 scale) {
        const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        low = _mm512_permutexvar_ps(twice, scale);
        high = _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), scale);
    }
};
inline void put(bf16* to, __m512 low, __m512 high) { _mm512_store_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low)); }

inline void unpack8(bf16* to, const uint8_t* codes, const uint8_t* scales) {
    const Lanes scale(_mm512_loadu_ps(scales));
    auto value = [](const uint8_t* at) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)at))); };
    for (int p = 0; p < DEPTH / 2; p++, codes += 32, to += 32)
        put(to, _mm512_mul_ps(value(codes), scale.low), _mm512_mul_ps(value(codes + 16), scale.high));
}

// A step has 11 bits and a code 4: their product is exact, so one rounding or two make no difference.
inline void unpack4(bf16* to, const uint8_t* codes, const uint8_t* scales) {
    const Lanes step(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)scales)));
    const Lanes least(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 2 * COLUMNS))));
    const __m512 number = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int p = 0; p < DEPTH / 2; p++, codes += 16, to += 32) {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));  // only 4 bits of an index count
        const __m512 low = _mm512_permutexvar_ps(both, number), high = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), number);
        put(to, _mm512_fmadd_ps(low, step.low, least.low), _mm512_fmadd_ps(high, step.high, least.high));
    }
}

// Tiles k .. k + count of a column block: where they lie, or unpacked into `room`.
inline const bf16* tiles(const Weight& w, int block, int k, int count, bf16* room) {
    const long at = long(block) * (w.depth / DEPTH) + k;
    const uint8_t* codes = w.codes + at * CODE_BYTES[w.format];
    if (w.format == BF16) return (const bf16*)codes;
    const uint8_t* scales = w.scales + at * SCALE_BYTES[w.format];
    for (int i = 0; i < count; i++) {
        const uint8_t *code = codes + i * CODE_BYTES[w.format], *scale = scales + i * SCALE_BYTES[w.format];
        for (int line = 0; line < CODE_BYTES[w.format]; line += 64)
            _mm_prefetch((const char*)code + AHEAD * CODE_BYTES[w.format] + line, _MM_HINT_T0);
        _mm_prefetch((const char*)scale + AHEAD * SCALE_BYTES[w.format], _MM_HINT_T0);
        w.format == GRID8 ? unpack8(room + i * TILE, code, scale) : unpack4(room + i * TILE, code, scale);
    }
    return room;
}

// Where a thread unpacks.
struct alignas(64) Room {
    bf16 panel[4][PANEL * TILE];
    float sums[4][ROWS][COLUMNS];
    Line<bf16> whole[2];  // column blocks that many rows want
};

template <int R, int N, class Emit> void emit_sums(int row, int rows, Room& room, Emit emit) {
    Tiles<R, N>::store(room.sums);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < R * ROWS && row + i < rows; i++)
            emit(row + i, n, _mm512_load_ps(room.sums[(i / ROWS) * N + n][i % ROWS]));
}

template <int R, class Emit>
void multiply(const bf16* a, long lda, int rows, const bf16* const* b, int depth, int row, Room& room, Emit emit) {
    Tiles<R, 2>::clear();
    Tiles<R, 2>::add(a + row * lda, lda, rows - row, b, depth / DEPTH);
    emit_sums<R, 2>(row, rows, room, emit);
}

template <int R, int N, class Emit>
void product_block(const bf16* a, long lda, int rows, const Weight& w, const int* blocks, int row, Room& room, Emit emit) {
    using Sum = Tiles<R, N>;
    const int depth = w.depth / DEPTH;
    Sum::clear();
    for (int k = 0; k < depth; k += PANEL) {
        const int count = depth - k < PANEL ? depth - k : PANEL;
        const bf16* b[N];
        for (int n = 0; n < N; n++) b[n] = tiles(w, blocks[n], k, count, room.panel[n]);
        Sum::add(a + row * lda + k * DEPTH, lda, rows - row, b, count);
    }
    emit_sums<R, N>(row, rows, room, emit);
}

// Columns of a [rows, depth] times weight' for the blocks that `block(j)` names, j in begin .. end.
// emit(row, j, 16 sums) is called once for each; a holds whole tiles of rows, those beyond `rows` may be anything.
template <class Block, class Emit>
void product(const bf16* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    const int wide = rows <= ROWS ? 4 : 2;
    for (int j = begin; j < end; j += wide) {
        int blocks[4];
        for (int n = 0; n < wide; n++) blocks[n] = block(j + n < end ? j + n : end - 1);  // the last may come twice
        auto each = [&](int row, int n, __m512 sum) { if (j + n < end) emit(row, j + n, sum); };
        if (wide == 4) {
            product_block<1, 4>(a, lda, rows, w, blocks, 0, room, each);
        } else if (rows <= 2 * ROWS) {
            product_block<2, 2>(a, lda, rows, w, blocks, 0, room, each);
        } else {  // unpack once, not for every 32 rows
            const bf16* b[2];
            for (int n = 0; n < 2; n++) {
                room.whole[n].reserve(w.depth * COLUMNS);
                b[n] = tiles(w, blocks[n], 0, w.depth / DEPTH, room.whole[n].data);
            }
            for (int row = 0; row < rows; row += 2 * ROWS)
                rows - row > ROWS ? multiply<2>(a, lda, rows, b, w.depth, row, room, each)
                                  : multiply<1>(a, lda, rows, b, w.depth, row, room, each);
        }
    }
}
