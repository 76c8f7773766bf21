// What Python hands over for a pass; structs.py declares the same.
#pragma once
#include "forms.h"

enum Enter : int32_t { NORMED = 0, BARE = 1, PAIRED = 2, SKIPPED = 3 };  // Layer, EagleLayer, Eagle3Layer, no attention

struct Layer {
    int32_t enter, has_mlp;
    const bf16 *attn_norm, *token_norm, *mlp_norm, *q_norm, *k_norm, *qkv_bias;
    Weight qkv, out, gate_up, down;
};
struct Span {  // the new rows of one slot
    int32_t slot, begin, count, length, first;  // rows begin .. begin + count; committed and scratch rows before them
    int32_t none;
    const int32_t* parent;  // of every scratch row of the slot, -1 = committed text; null = a chain
};
struct Source {  // rows of bf16 numbers: those of a table or of a quantised weight that `row` names, or one after another
    const bf16* data;
    const int64_t* row;
    int64_t stride, count;
    const Weight* weight;  // null = a table
    bool inside(int r) const { return !row || (row[r] >= 0 && row[r] < count); }
    const bf16* at(int r, bf16* room) const {  // room for a row that has to be written out
        if (!weight) return data + (row ? row[r] : r) * stride;
        write_row(*weight, row[r], room);
        return room;
    }
};
struct Tail {  // what comes behind the last layer
    const bf16* norm;
    const bf16* words_bias;
    Weight turn, words;  // without columns: left out
    bf16* features;      // [rows, hidden]
    float* logits;       // [rows, words.columns]
    const int32_t* row;  // those rows that are wanted, one behind another; null = all
    int32_t rows;        // how many these are
    int32_t top;         // how many of the likeliest words to look for; 0 = none
    float least;
    int32_t none;
    const int64_t* ids;  // of the words
    float* values;       // [rows, top] log-probabilities, none below `least`
    int64_t* places;     // [rows, top] ids
};
struct Pass {
    int32_t rows, hidden, heads, kv_heads, dim, inner, first_layer, last_layer, slots, capacity, spans, threads;
    float eps;
    int32_t stores_only;  // whether nothing leaves the last layer but the keys and values that it stores
    int32_t tiles, none;  // formats below this one go by tiles of bf16, where there are such (formats.h)
    const Layer* layers;
    const Tail* tail;     // null = none
    Source stream, token;  // what enters the first layer; the tokens beside it where that is PAIRED
    bf16* output;          // [rows, hidden]
    bf16* const* taps;  // by layer: where to put the stream that enters it, or null
    const int64_t* position;
    const bf16* rotations;  // [positions][2][dim]: cosines, and sines whose first half is negated
    bf16* store;            // [layers][2][slots][kv_heads][capacity][dim]
    const Span* span;

    // Keys (0) or values (1) of a slot's first head; those of the next one lie `capacity` rows further on.
    bf16* stored(int layer, int which, int slot) const {
        return store + ((long(layer) * 2 + which) * slots + slot) * kv_heads * capacity * dim;
    }
};
