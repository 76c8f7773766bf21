// Weights on a grid (formats.h), by k-block: scales as floats, a pair of codes of every column as words of 16 bits, and
// one column written out. GROUPS: scales that a k-block has.
#pragma once
#include <type_traits>
#include <utility>

#include "formats.h"
#include "vec.h"

// f(0), f(1), .. f(N - 1), each known when compiling.
template <int N, class F> INLINED inline void each(F f) {
    auto all = [&]<int... i>(std::integer_sequence<int, i...>) INLINED { (f(std::integral_constant<int, i>()), ...); };
    all(std::make_integer_sequence<int, N>());
}
// Down by BITS, up where these are negative.
template <int BITS> inline Words moved(Words x) {
    if constexpr (BITS > 0) return down<BITS>(x);
    if constexpr (BITS < 0) return up<-BITS>(x);
    return x;
}
// A line with the bits of a pair of k, WIDTH each, brought to bit AT; what lies above and below them stays.
template <int WIDTH, int AT, int PAIR> inline Words brought(const uint8_t* lines) {
    constexpr int PER = 16 / WIDTH;  // pairs in a line
    return moved<PAIR % PER * WIDTH - AT>(load_words((const int16_t*)lines + PAIR / PER * 32));
}
// The low BITS, the highest WIDTH of which were brought there: of the last pair in a line nothing lies above them.
template <int BITS, int WIDTH, int PAIR> inline Words trimmed(Words x) {
    constexpr int PER = 16 / WIDTH;
    return PAIR % PER == PER - 1 ? x : masked(x, (1 << BITS) - 1);
}

constexpr int LINE = 64;  // bytes
template <int BITS> struct Codes {
    static constexpr int BYTES = TILE * BITS / 8;
    static constexpr int LOW = BITS < 4 ? 2 : 4, HIGH = BITS - LOW;  // widths of the lines that it is put together from
    template <int PAIR> static Words word(const uint8_t* codes) {
        const Words low = brought<LOW, 0, PAIR>(codes);
        if constexpr (HIGH == 0) return trimmed<BITS, LOW, PAIR>(low);
        else return trimmed<BITS, HIGH, PAIR>(blended(low, brought<HIGH, LOW, PAIR>(codes + LOW * LINE), (1 << LOW) - 1));
    }
};

constexpr int CURVE = -1;  // in the place of a center
alignas(16) constexpr int8_t CURVE_VALUES[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Codes are widened as they lie, from 0 on: whoever multiplies them takes CENTER off the sum, which is exact as well.
template <int BITS_, int CENTER_> struct Numbers {
    static constexpr int CODES = Codes<BITS_>::BYTES, BITS = BITS_, CENTER = CENTER_ > 0 ? CENTER_ : 0;
    static constexpr bool CURVED = CENTER_ == CURVE;
    template <int PAIR> static Words word(const uint8_t* codes) {
        const Words code = Codes<BITS>::template word<PAIR>(codes);
        if constexpr (CURVED) return looked_up(code, CURVE_VALUES);
        else return code;
    }
};
template <int BITS, int CENTER, bool LEAST> struct Flat : Numbers<BITS, CENTER> {
    static constexpr int GROUPS = 1, KINDS = LEAST ? 2 : 1;
    static constexpr bool HAS_LEAST = LEAST;
    static long scale_bytes(int blocks) { return blocks * 32L * KINDS; }
    static Floats step(const uint8_t* scales, int k, int) { return halves(scales + k * 32 * KINDS); }
    static Floats least(const uint8_t* scales, int k, int) {  // without one the last block would be read beyond its end
        if constexpr (!LEAST) return all(0.0f);
        else return halves(scales + k * 32 * KINDS + 32);
    }
};
// Two halves of bytes as floats.
struct Twins {
    Floats low, high;
    explicit Twins(Floats byte) : high(round(sub(mul(byte, all(0.0625f)), all(0.46875f)))) { low = fnma(high, all(16.0f), byte); }
};
enum Fine { PLAIN, SIGNED, MINIMA, TWINS };  // bytes of a group: s; s with a sign; s and m; s and m in one
template <int BITS, int CENTER, int GROUPS_, Fine FINE> struct Super : Numbers<BITS, CENTER> {
    static constexpr int GROUPS = GROUPS_, FIELDS = FINE == MINIMA ? 2 : 1;
    static constexpr bool HAS_LEAST = FINE == MINIMA || FINE == TWINS;
    static constexpr int HEAD = HAS_LEAST ? 64 : 32, SIZE = HEAD + 8 * GROUPS * FIELDS * 16;
    static long scale_bytes(int blocks) { return blocks / 8 * long(SIZE); }
    static const uint8_t* group_at(const uint8_t* super, int k, int group) { return super + HEAD + (k % 8 * GROUPS + group) * FIELDS * 16; }
    static Floats step(const uint8_t* scales, int k, int group) {
        const uint8_t *super = scales + k / 8 * SIZE, *at = group_at(super, k, group);
        return mul(halves(super), FINE == SIGNED ? signed_bytes(at) : FINE == TWINS ? Twins(bytes(at)).low : bytes(at));
    }
    static Floats least(const uint8_t* scales, int k, int group) {
        if constexpr (!HAS_LEAST) return all(0.0f);
        const uint8_t *super = scales + k / 8 * SIZE, *at = group_at(super, k, group);
        return sub(all(0.0f), mul(halves(super + 32), FINE == TWINS ? Twins(bytes(at)).high : bytes(at + 16)));
    }
};
struct Grid8 {
    static constexpr int CODES = TILE, GROUPS = 1, BITS = 8, CENTER = 0;
    static constexpr bool HAS_LEAST = false, CURVED = false;
    static long scale_bytes(int blocks) { return blocks * 64L; }
    static Floats step(const uint8_t* scales, int k, int) { return load((const float*)(scales + k * 64)); }
    static Floats least(const uint8_t*, int, int) { return all(0.0f); }
    template <int PAIR> static Words word(const uint8_t* codes) { return words_of_bytes(codes + PAIR * 32); }
};

// f(form) for the form of a format that words.h multiplies; nothing for others.
template <class F> inline void by_form(int format, F f) {
    switch (format) {
    case GRID8: return f(Grid8());
    case NIBBLES: return f(Flat<4, 0, true>());
    case CENTERED4: return f(Flat<4, 8, false>());
    case CENTERED5: return f(Flat<5, 16, false>());
    case FLAT5: return f(Flat<5, 0, true>());
    case CURVED4: return f(Flat<4, CURVE, false>());
    case SUPER2: return f(Super<2, 0, 2, TWINS>());
    case SUPER3: return f(Super<3, 4, 2, SIGNED>());
    case SUPER4: return f(Super<4, 0, 1, MINIMA>());
    case SUPER5: return f(Super<5, 0, 1, MINIMA>());
    case SUPER6: return f(Super<6, 32, 2, SIGNED>());
    case CURVED4_SUPER: return f(Super<4, CURVE, 1, SIGNED>());
    }
}

// Column c of the 16 columns whose codes and scales these are, in bf16.
template <class Form> void write_column(const uint8_t* codes, const uint8_t* scales, int c, int blocks, bf16* to) {
    alignas(64) float step[2][16], least[2][16], out[16];
    alignas(64) int16_t word[4][32];
    for (int k = 0; k < blocks; k++, codes += Form::CODES)
        each<4>([&](auto q) {
            constexpr int GROUP = Form::GROUPS == 1 ? 0 : q / 2;
            each<4>([&](auto m) { keep_words(word[m], Form::template word<4 * q + m>(codes)); });
            store(step[GROUP], Form::step(scales, k, GROUP)), store(least[GROUP], Form::least(scales, k, GROUP));
            for (int i = 0; i < 8; i++) {
                const int code = word[i / 2][2 * c + i % 2] - Form::CENTER;
                out[q % 2 * 8 + i] = step[GROUP][c] * code + (Form::HAS_LEAST ? least[GROUP][c] : 0.0f);
            }
            if (q % 2) narrow16(to + k * DEPTH + q / 2 * 16, load(out));
        });
}
// Row `column` of a weight [columns, depth]: what a token's embedding is where the table is quantised.
inline void write_row(const Weight& w, long column, bf16* to) {
    const int blocks = w.depth / DEPTH;
    const long block = column / COLUMNS;
    const int c = column % COLUMNS;
    by_form(w.format, [&](auto form) {
        using Form = decltype(form);
        write_column<Form>(w.codes + block * blocks * Form::CODES, w.scales + block * Form::scale_bytes(blocks), c, blocks, to);
    });
}
