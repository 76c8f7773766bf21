// Products with weights that lie in tiles, in bf16 or on a grid that is unpacked to bf16. That takes as long for one row as for
// sixteen, so a pass of few texts takes weights on a grid by words of 16 bits instead (words.h), or by tiles of bytes (bytes.h)
// where rows are several; a prompt goes by tiles of bf16, and so may the passes of many texts.
#pragma once
#include "eight.h"
#include "line.h"
#include "nibbles.h"
#include "tile.h"
#include "words.h"

constexpr int LAG = 2;     // k-blocks between unpacking and multiplying, which go on side by side
constexpr int RING = 4;    // unpacked k-blocks that are kept, where a column block is wanted once

inline __m512 upper(__m512i words) { return _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 16)); }  // of every 32-bit lane

// What the sixteen codes of a form stand for.
template <class Form> INLINED inline __m512 numbers() {
    if (Form::CURVED) return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_load_si128((const __m128i*)CURVE_VALUES)));
    return _mm512_sub_ps(_mm512_set_ps(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0), _mm512_set1_ps(Form::CENTER));
}

// A step has 11 bits and a code at most 8, those of super-blocks 17 and 6: their product is exact, so one rounding or two make
// no difference.
template <class Form> struct Unpacked {
    static constexpr int CODES = Form::CODES;
    static long scale_bytes(int blocks) { return Form::scale_bytes(blocks); }
    static void unpack(bf16* to, const uint8_t* codes, const uint8_t* scales, int k) {
        codes += long(k) * CODES;
        __m512 step[Form::GROUPS], least[Form::GROUPS];
        UNROLLED for (int g = 0; g < Form::GROUPS; g++) step[g] = Form::step(scales, k, g), least[g] = Form::least(scales, k, g);
        each<DEPTH / 2>([&](auto p) INLINED {
            constexpr int GROUP = p * Form::GROUPS / (DEPTH / 2);
            const auto value = [&](__m512 x) INLINED {
                return Form::HAS_LEAST ? _mm512_fmadd_ps(x, step[GROUP], least[GROUP]) : _mm512_mul_ps(x, step[GROUP]);
            };
            if constexpr (Form::BITS == 4) {  // only 4 bits of an index count
                const __m512i line = _mm512_loadu_si512(codes + p / 4 * LINE);
                const auto number = [&](int at) INLINED { return _mm512_permutexvar_ps(_mm512_srli_epi32(line, at), numbers<Form>()); };
                narrow_pairs(to + p * 32, value(number(p % 4 * 4)), value(number(p % 4 * 4 + 16)));
            } else {
                const __m512i words = Form::template word<p>(codes);
                const auto number = [&](__m512i high) INLINED { return _mm512_sub_ps(upper(high), _mm512_set1_ps(Form::CENTER)); };
                narrow_pairs(to + p * 32, value(number(_mm512_slli_epi32(words, 16))), value(number(words)));
            }
        });
    }
};
struct Eights {  // fours of a column, one upon another, into twice two
    static constexpr int CODES = TILE;
    static long scale_bytes(int blocks) { return blocks * 64L; }
    static void unpack(bf16* to, const uint8_t* codes, const uint8_t* scales, int k) {
        const __m512 scale = _mm512_loadu_ps(scales + k * 64L);
        codes += long(k) * CODES;
        for (int g = 0; g < DEPTH / 4; g++, codes += 64) {
            const __m512i fours = _mm512_xor_si512(_mm512_loadu_si512(codes), _mm512_set1_epi8(-128));
            const auto value = [&](int up) INLINED {
                return _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(fours, up), 24)), scale);
            };
            narrow_pairs(to + g * 64, value(24), value(16));
            narrow_pairs(to + g * 64 + 32, value(8), value(0));
        }
    }
};
// f(form) for the form of a format that is unpacked.
template <class F> inline void by_unpacked(int format, F f) {
    if (format == EIGHT) return f(Eights());
    by_form(format, [&](auto form) { f(Unpacked<decltype(form)>()); });
}

// Unpack a tile, and ask memory for the same tile of the column block that will be wanted next.
template <class Form> void unpack(const Weight& w, int block, int next, int k, bf16* to) {
    const int blocks = w.depth / DEPTH;
    const long codes = long(blocks) * Form::CODES, scales = Form::scale_bytes(blocks);
    for (int line = 0; line < Form::CODES; line += 64) _mm_prefetch((const char*)w.codes + next * codes + k * Form::CODES + line, _MM_HINT_T1);
    _mm_prefetch((const char*)w.scales + next * scales + k * scales / blocks, _MM_HINT_T1);
    Form::unpack(to, w.codes + block * codes, w.scales + block * scales, k);
}
using Unpack = void (*)(const Weight&, int, int, int, bf16*);
inline Unpack unpack_of(int format) {
    Unpack found = nullptr;
    by_unpacked(format, [&](auto form) { found = unpack<decltype(form)>; });
    return found;
}

// Where a thread works: unpacked tiles of up to four column blocks, and their sums.
struct alignas(64) Room {
    float sums[4][ROWS][COLUMNS];
    Line<bf16> unpacked[4];
    Rounded rounded;
    ByteRows words;
    ByteRoom bytes;
    bool rounds = true;  // whether rows are rounded where a weight allows it
    int tiles = GRID8;   // formats below this one go by tiles of bf16
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
    const Unpack unpack = unpack_of(w.format);
    Tiles<R, N>::clear();
    for (int k = 0; k < depth + LAG; k++) {
        for (int n = 0; n < N && k < depth; n++) unpack(w, blocks[n], blocks[N + n], k, room.unpacked[n].data + k % ring * TILE);
        if (k < LAG) continue;
        for (int n = 0; n < N; n++) b[n] = room.unpacked[n].data + (k - LAG) % ring * TILE;
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
constexpr int MOST_TILES = GRID8;
#else
constexpr int MOST_TILES = CURVED4_SUPER + 1;
#endif
inline bool by_tiles(int format, const Room& room) { return format < GRID8 || format < std::min(room.tiles, MOST_TILES); }
inline bool by_bytes(int rows) { return BYTE_TILES && rows >= BYTE_ROWS; }

// Bring rows to the form that products with `w` want; done once, before products with any of its columns.
inline void prepare(const bf16* a, long lda, int rows, const Weight& w, Room& room) {
    bool words = false;
    for (const Weight* part = &w; part; part = part->more) {
        if (part->format == EIGHT && room.rounds) room.rounded.take(a, lda, rows, w.depth);
        words = words || !by_tiles(part->format, room);
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
    for (int n = 0; n < wide && w.format != BF16; n++) room.unpacked[n].reserve(size_t(ring) * TILE);
    for (int j = begin; j < end; j += wide) {
        int blocks[8];  // these and the next; the last may come twice
        const bf16* b[4];
        for (int n = 0; n < 2 * wide; n++) blocks[n] = block(j + n < end ? j + n : end - 1);
        for (int n = 0; n < wide; n++) {
            b[n] = w.format == BF16 ? (const bf16*)w.codes + long(blocks[n]) * (w.depth / DEPTH) * TILE : room.unpacked[n].data;
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
        if (by_tiles(part.format, room)) {
            if (BYTE_TILES && byte_shape) begin_tiles(rows);
            return product_by_tiles(a, lda, rows, part, from, upto, which, room, to);
        }
        if constexpr (BYTE_TILES)
            if (by_bytes(rows)) return product_of_bytes(room.words, rows, part, from, upto, room.bytes, which, to);
        product_of_words(room.words, rows, part, from, upto, which, to);
    });
}
