// How weights lie in memory; tiles.py and load/quantised.py write these, product.h and words.h read them.
//
// weight [columns, depth] by blocks of 16 columns; in a block, k-block after k-block of 32; in a k-block, 16 rows of 32
// lanes: lane 2 c + i of row p is column c at k = 2 p + i, as products of pairs want it.
//   BF16:    lanes as bf16
//   GRID8:   lanes as int8; scales [16] float32:                              w = scale * code
//   GRID4:   lane j in the low half of byte j, lane 16 + j in the high half; scales [2][16] half precision:
//                                                                             w = step * code + least
//   EIGHT:   see eight.h
//   NIBBLES: as GRID4, but 4 lines of 32 words of 16 bits: bits 4 m .. 4 m + 3 of word 2 c + i of line q are column c at
//            k = 2 (4 q + m) + i, so that a shift and a mask widen 32 codes
//   SUPER4:  codes as NIBBLES; eight k-blocks share scales, [16] half precision d and dmin, then for each of the eight [16]
//            bytes s and m: w = (d * s) * code - dmin * m; GGUF's Q4_K
//   SUPER8:  codes as GRID8; eight k-blocks share scales, [16] half precision d, then for every 16 k [16] int8 s:
//            w = (d * s) * code; GGUF's Q6_K and others without a least value
// Where bf16 is multiplied (product.h), w is rounded to bf16; elsewhere (words.h) it is not.
#pragma once
#include <cstdint>

enum Format : int32_t { BF16 = 0, GRID8 = 1, GRID4 = 2, EIGHT = 3, NIBBLES = 4, SUPER4 = 5, SUPER8 = 6 };

struct Weight {
    int32_t format, columns, depth;  // columns of all parts together
    int32_t own;                     // columns of this part
    const uint8_t* codes;
    const uint8_t* scales;
    const Weight* more;  // the next part, in another format; null = none
};

constexpr int ROWS = 16, COLUMNS = 16, DEPTH = 32;  // of a tile product
constexpr int TILE = DEPTH * COLUMNS;               // weights of a tile: [DEPTH / 2][COLUMNS][2]
