// How weights lie in memory; tiles.py and blocks.py write these, product.h and words.h read them.
//
// weight [columns, depth] by blocks of 16 columns; in a block, k-block after k-block of 32; in a k-block, 16 rows of 32
// lanes: lane 2 c + i of row p is column c at k = 2 p + i, as products of pairs want it.
//   BF16:    lanes as bf16
//   GRID8:   lanes as int8; scales [16] float32:                              w = scale * code
//   EIGHT:   see eight.h
// The rest are formats of GGUF (forms.h), their codes n bits wide and from 0 on, in lines of 32 words of 16 bits, so that a
// shift and a mask widen 32 codes: lane 2 c + i of a line belongs to column c, k = 2 p + i.
//   lines of 4 bits: bits 4 m .. of line q are p = 4 q + m   (4 lines; n = 4, 5, 6)
//   lines of 2 bits: bits 2 m .. of line h are p = 8 h + m   (2 lines; n = 2, 3, and above 4 bits where n = 6)
//   a line of 1 bit: bit p                                   (above 2 bits where n = 3, above 4 bits where n = 5)
// The number x of a code is code - center, or CURVE[code]. Scales, [16] of each for 16 columns:
//   flat, for every k-block of 32: half-precision d, and m where there is a least value:   w = d * x (+ m)
//   super, for eight k-blocks: half-precision d (and dmin), then for every group of 32 or of 16 k a byte s (and m), or both in
//   one byte (Q2_K: s the low half):                                                        w = (d * s) * x (- dmin * m)
// w of a grid is rounded to bf16 where tiles of bf16 are multiplied (product.h); elsewhere (words.h) nothing is. By which of the two
// a pass goes is one number, `tiles`: formats below it go by tiles, at least those below GRID8.
#pragma once
#include <cstdint>

enum Format : int32_t {
    BF16, EIGHT, GRID8,
    NIBBLES,                                 // flat: Q4_1
    CENTERED4, CENTERED5, FLAT5, CURVED4,    // flat: Q4_0, Q5_0, Q5_1, IQ4_NL
    SUPER2, SUPER3, SUPER4, SUPER5, SUPER6, CURVED4_SUPER  // Q2_K to Q6_K, IQ4_XS
};

struct Weight {
    int32_t format, columns, depth;  // columns of all parts together
    int32_t own;                     // columns of this part
    const uint8_t* codes;
    const uint8_t* scales;
    const Weight* more;  // the next part, in another format; null = none
};

constexpr int ROWS = 16, COLUMNS = 16, DEPTH = 32;  // of a tile product
constexpr int TILE = DEPTH * COLUMNS;               // weights of a tile: [DEPTH / 2][COLUMNS][2]
