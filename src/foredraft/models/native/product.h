// Products with weights that lie in tiles, in bf16 or on a grid of few levels that yields the very same bf16 numbers; weights in
// other formats go by words of 16 bits (words.h), or by tiles of bytes (bytes.h) where the processor has these and rows are several.
#pragma once
#include "bytes.h"
#include "eight.h"
#include "line.h"
#include "tile.h"
#include "words.h"

constexpr int CODE_BYTES[] = {2 * TILE, TILE, TILE / 2, TILE}, SCALE_BYTES[] = {0, 4 * COLUMNS, 4 * COLUMNS, 4 * COLUMNS};
constexpr int LAG = 2;     // k-blocks between unpacking and multiplying, which go on side by side
constexpr int RING = 4;    // unpacked k-blocks that are kept, where a column block is wanted once

// Every scale twice, for the two lanes of its column: columns 0 .. 7 and 8 .. 15.
struct Lanes {
    __m512 low, high;
    explicit Lanes(__m512 scale) {
        const __m512i twice = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
        low = _mm512_permutexvar_ps(twice, scale);
        high = _mm512_permutexvar_ps(_mm512_add_epi32(twice, _mm512_set1_epi32(8)), scale);
    }
};

inline __m512 whole16(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }

inline void unpack8(bf16* to, const uint8_t* codes, const uint8_t* scales) {
    const Lanes scale(_mm512_loadu_ps(scales));
    auto value = [](const uint8_t* at) { return whole16(_mm_loadu_si128((const __m128i*)at)); };
    for (int p = 0; p < DEPTH / 2; p++, codes += 32, to += 32)
        narrow32(to, _mm512_mul_ps(value(codes), scale.low), _mm512_mul_ps(value(codes + 16), scale.high));
}

inline void unpack_eight(bf16* to, const uint8_t* codes, const uint8_t* scales) {  // fours of a column into twice two
    const Lanes scale(_mm512_loadu_ps(scales));
    for (int g = 0; g < DEPTH / 4; g++, codes += 64) {
        const __m512i fours = _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128));
        for (const __m512i half : {fours, _mm512_srli_epi32(fours, 16)}) {
            const __m256i twos = _mm512_cvtepi32_epi16(half);
            narrow32(to, _mm512_mul_ps(whole16(_mm256_castsi256_si128(twos)), scale.low),
                     _mm512_mul_ps(whole16(_mm256_extracti128_si256(twos, 1)), scale.high));
            to += 32;
        }
    }
}

// A step has 11 bits and a code 4: their product is exact, so one rounding or two make no difference.
inline void unpack4(bf16* to, const uint8_t* codes, const uint8_t* scales) {
    const Lanes step(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)scales)));
    const Lanes least(_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)(scales + 2 * COLUMNS))));
    const __m512 number = _mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
    for (int p = 0; p < DEPTH / 2; p++, codes += 16, to += 32) {
        const __m512i both = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)codes));  // only 4 bits of an index count
        const __m512 low = _mm512_permutexvar_ps(both, number), high = _mm512_permutexvar_ps(_mm512_srli_epi32(both, 4), number);
        narrow32(to, _mm512_fmadd_ps(low, step.low, least.low), _mm512_fmadd_ps(high, step.high, least.high));
    }
}

inline const uint8_t* codes_of(const Weight& w, int block, int k) {
    return w.codes + (long(block) * (w.depth / DEPTH) + k) * CODE_BYTES[w.format];
}
inline const uint8_t* scales_of(const Weight& w, int block, int k) {
    return w.scales + (long(block) * (w.depth / DEPTH) + k) * SCALE_BYTES[w.format];
}

// Unpack a tile, and ask memory for the same tile of the column block that will be wanted next.
inline void unpack(const Weight& w, int block, int next, int k, bf16* to) {
    const char* codes = (const char*)codes_of(w, next, k);
    for (int line = 0; line < CODE_BYTES[w.format]; line += 64) _mm_prefetch(codes + line, _MM_HINT_T1);
    _mm_prefetch((const char*)scales_of(w, next, k), _MM_HINT_T1);
    const auto how = w.format == GRID8 ? unpack8 : w.format == GRID4 ? unpack4 : unpack_eight;
    how(to, codes_of(w, block, k), scales_of(w, block, k));
}

// Where a thread works: unpacked tiles of up to four column blocks, and their sums.
struct alignas(64) Room {
    float sums[4][ROWS][COLUMNS];
    Line<bf16> tiles[4];
    Rounded rounded;
    ByteRows words;
    ByteRoom bytes;
    bool rounds = true;  // whether rows are rounded where a weight allows it
};

template <int R, int N, class Emit> void emit_sums(int row, int rows, Room& room, Emit emit) {
    Tiles<R, N>::store(room.sums);
    for (int n = 0; n < N; n++)
        for (int i = 0; i < R * ROWS && row + i < rows; i++)
            emit(row + i, n, _mm512_load_ps(room.sums[(i / ROWS) * N + n][i % ROWS]));
}

// Sums of R x N tiles over the whole depth. Unpacked tiles stay in the room if its rings are long enough.
template <int R, int N>
void unpack_and_add(const bf16* a, long lda, int rows, const Weight& w, const int* blocks, int ring, Room& room) {
    const int depth = w.depth / DEPTH;
    const bf16* b[N];
    Tiles<R, N>::clear();
    for (int k = 0; k < depth + LAG; k++) {
        for (int n = 0; n < N && k < depth; n++) unpack(w, blocks[n], blocks[N + n], k, room.tiles[n].data + k % ring * TILE);
        if (k < LAG) continue;
        for (int n = 0; n < N; n++) b[n] = room.tiles[n].data + (k - LAG) % ring * TILE;
        Tiles<R, N>::add(a + (k - LAG) * DEPTH, lda, rows, b, 1);
    }
}

template <int R, int N> void add(const bf16* a, long lda, int rows, const bf16* const* b, int depth) {
    Tiles<R, N>::clear();
    Tiles<R, N>::add(a, lda, rows, b, depth / DEPTH);
}

constexpr int UNIT = 4;  // blocks of columns that are best taken together

// The rest by words or bytes: nothing is unpacked to bf16 for them.
#if defined(GRIDS_BY_WORDS)
constexpr int LEAST_WORDS = GRID8;
#else
constexpr int LEAST_WORDS = NIBBLES;
#endif
inline bool by_tiles(int format) { return format < NIBBLES && format != LEAST_WORDS; }
inline bool by_bytes(int rows) { return BYTE_TILES && rows >= BYTE_ROWS; }

// Bring rows to the form that products with `w` want; done once, before products with any of its columns.
inline void prepare(const bf16* a, long lda, int rows, const Weight& w, Room& room) {
    bool words = false;
    for (const Weight* part = &w; part; part = part->more) {
        if (part->format == EIGHT && room.rounds) room.rounded.take(a, lda, rows, w.depth);
        words = words || !by_tiles(part->format);
    }
    if (words) by_bytes(rows) ? room.words.take_bytes(a, lda, rows, w.depth) : room.words.take(a, lda, rows, w.depth);
}

// As `product`, for weights of one format that tiles multiply; a holds whole tiles of rows, those beyond `rows` may be anything.
template <class Block, class Emit>
void product_by_tiles(const bf16* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    if (w.format == EIGHT && room.rounds)
        return product_eight(room.rounded, rows, w.depth, w.codes, (const float*)w.scales, begin, end, block, emit);
    const bool triple = rows > 2 * ROWS && rows <= 3 * ROWS;
    const int wide = rows <= ROWS ? 4 : triple ? 1 : 2, step = triple ? 3 * ROWS : 2 * ROWS;
    const int ring = rows <= step ? RING : w.depth / DEPTH;
    for (int n = 0; n < wide && w.format != BF16; n++) room.tiles[n].reserve(size_t(ring) * TILE);
    for (int j = begin; j < end; j += wide) {
        int blocks[8];  // these and the next; the last may come twice
        const bf16* b[4];
        for (int n = 0; n < 2 * wide; n++) blocks[n] = block(j + n < end ? j + n : end - 1);
        for (int n = 0; n < wide; n++) {
            b[n] = w.format == BF16 ? (const bf16*)codes_of(w, blocks[n], 0) : room.tiles[n].data;
        }
        auto each = [&](int row, int n, __m512 sum) { if (j + n < end) emit(row, j + n, sum); };
        for (int row = 0; row < rows; row += step) {
            const bf16* from = a + row * lda;
            const int left = rows - row;
            const bool fresh = row == 0 && w.format != BF16;  // later rows find the tiles unpacked
            if (wide == 4) {
                fresh ? unpack_and_add<1, 4>(from, lda, left, w, blocks, ring, room) : add<1, 4>(from, lda, left, b, w.depth);
                emit_sums<1, 4>(row, rows, room, each);
            } else if (triple) {
                fresh ? unpack_and_add<3, 1>(from, lda, left, w, blocks, ring, room) : add<3, 1>(from, lda, left, b, w.depth);
                emit_sums<3, 1>(row, rows, room, each);
            } else if (left > ROWS) {
                fresh ? unpack_and_add<2, 2>(from, lda, left, w, blocks, ring, room) : add<2, 2>(from, lda, left, b, w.depth);
                emit_sums<2, 2>(row, rows, room, each);
            } else {
                add<1, 2>(from, lda, left, b, w.depth);
                emit_sums<1, 2>(row, rows, room, each);
            }
        }
    }
}

// Columns of a [rows, depth] times weight' for the blocks that `block(j)` names, j in begin .. end; `prepare` has been called.
// emit(row, j, 16 sums) is called once for each.
template <class Block, class Emit>
void product(const bf16* a, long lda, int rows, const Weight& w, int begin, int end, Block block, Room& room, Emit emit) {
    by_parts(w, begin, end, block, emit, [&](const Weight& part, int from, int upto, auto which, auto to) {
        if (by_tiles(part.format)) {
            if (BYTE_TILES && byte_shape) begin_tiles(rows);
            return product_by_tiles(a, lda, rows, part, from, upto, which, room, to);
        }
        if constexpr (BYTE_TILES)
            if (by_bytes(rows)) return product_of_bytes(room.words, rows, part, from, upto, room.bytes, which, to);
        product_of_words(room.words, rows, part, from, upto, which, to);
    });
}
