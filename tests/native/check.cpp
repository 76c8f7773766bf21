// A check of the library's products and vector code that needs nothing but a compiler: for processors that are emulated
// (scripts/test-neon). Prints one line and ends with 0 if all is well. The full tests are those in Python.
#include <cstdio>
#include <random>
#include <vector>

#include "attention_fma.h"
#include "floats.h"
#include "largest.h"
#include "pool.h"

static int failures = 0;
static void expect(bool right, const char* what) {
    if (!right) std::printf("wrong: %s\n", what), failures++;
}

// w[column][k] of a weight, number by number, as formats.h tells.
static float half(const uint8_t* at, int i) {
    uint16_t bits;
    std::memcpy(&bits, at + 2 * i, 2);
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const float size = exponent ? std::ldexp(1024.0f + fraction, exponent - 25) : std::ldexp(float(fraction), -24);
    return bits >> 15 ? -size : size;
}
struct Told { int bits, center, groups, minima; };  // center -1: on the curve; minima 1: in one byte with the scale
static constexpr Told TOLD[] = {{4, 0, 0, 1}, {4, 8, 0, 0}, {5, 16, 0, 0}, {5, 0, 0, 1}, {4, -1, 0, 0}, {2, 0, 16, 1},
                                {3, 4, 16, 0}, {4, 0, 8, 2}, {5, 0, 8, 2}, {6, 32, 16, 0}, {4, -1, 8, 0}};
static double number(const Weight& w, int column, int k) {
    const int block = column / 16, c = column % 16, blocks = w.depth / 32, kb = k / 32, pair = k % 32 / 2, lane = 2 * c + k % 2;
    const long at = long(block) * blocks + kb;
    const uint8_t* scales = w.scales + at * 64;
    if (w.format == BF16) return widen(((const bf16*)w.codes)[at * 512 + pair * 32 + lane]);
    if (w.format == GRID8) return double(((const float*)scales)[c]) * int8_t(w.codes[at * 512 + pair * 32 + lane]);
    const Told told = TOLD[w.format - NIBBLES];
    const uint8_t* line = w.codes + at * 64 * told.bits;
    int code = 0, up = 0;
    for (int width = told.bits >= 4 ? 4 : 2; up < told.bits; up += width, width = told.bits - up) {  // fields, lowest first
        uint16_t word;
        std::memcpy(&word, line + pair / (16 / width) * 64 + lane * 2, 2);
        code |= (word >> pair % (16 / width) * width & ((1 << width) - 1)) << up;
        line += width * 64;
    }
    const double x = told.center < 0 ? CURVE_VALUES[code] : code - told.center;
    if (!told.groups) {
        scales = w.scales + at * (told.minima ? 64 : 32);
        return half(scales, c) * x + (told.minima ? half(scales + 32, c) : 0);
    }
    const int head = told.minima ? 64 : 32, fields = told.minima == 2 ? 2 : 1;
    scales = w.scales + (long(block) * blocks / 8 + kb / 8) * (head + told.groups * fields * 16);
    const uint8_t* fine = scales + head + k % 256 / (256 / told.groups) * fields * 16;
    const double d = half(scales, c);
    if (!told.minima) return d * int8_t(fine[c]) * x;
    const int s = told.minima == 1 ? fine[c] & 15 : fine[c], m = told.minima == 1 ? fine[c] >> 4 : fine[16 + c];
    return d * s * x - double(half(scales + 32, c)) * m;
}

static void check_products(int format) {
    constexpr int COLUMNS_ = 48, DEPTH_ = 512, MOST_ROWS = 19;
    std::mt19937 random(format);
    std::vector<uint8_t> codes(COLUMNS_ * DEPTH_ * 2), scales(COLUMNS_ * DEPTH_ * 4);
    for (auto& byte : codes) byte = random();
    for (auto& byte : scales) byte = random() % 60;  // halves and floats of modest size
    if (format == BF16)
        for (size_t i = 1; i < codes.size(); i += 2) codes[i] = (codes[i] & 128) | 62;
    std::vector<float> x(MOST_ROWS * DEPTH_);
    for (auto& value : x) value = std::normal_distribution<float>()(random);
    const Weight w{format, COLUMNS_, DEPTH_, COLUMNS_, codes.data(), scales.data(), nullptr};
    Room room;
    float together[MOST_ROWS][COLUMNS_], alone[MOST_ROWS][COLUMNS_];
    auto id = [](int j) { return j; };
    prepare(x.data(), DEPTH_, MOST_ROWS, w, room);
    product(x.data(), DEPTH_, MOST_ROWS, w, 0, COLUMNS_ / 16, id, room, [&](int r, int j, Floats s) { store(&together[r][16 * j], s); });
    for (int r = 0; r < MOST_ROWS; r++) {
        prepare(&x[r * DEPTH_], DEPTH_, 1, w, room);
        product(&x[r * DEPTH_], DEPTH_, 1, w, 0, COLUMNS_ / 16, id, room, [&](int, int j, Floats s) { store(&alone[r][16 * j], s); });
    }
    expect(!std::memcmp(together, alone, sizeof alone), "a row's numbers are its own");
    double worst = 0, most = 0;
    for (int r = 0; r < MOST_ROWS; r++)
        for (int c = 0; c < COLUMNS_; c++) {
            double sum = 0;
            for (int k = 0; k < DEPTH_; k++) sum += x[r * DEPTH_ + k] * number(w, c, k);
            worst = std::fmax(worst, std::fabs(sum - together[r][c])), most = std::fmax(most, std::fabs(sum));
        }
    expect(worst < 1e-4 * most, "a product");
    for (int c = 0; c < COLUMNS_ && by_words(format); c++) {
        bf16 row[DEPTH_];
        write_row(w, c, row);
        for (int k = 0; k < DEPTH_; k++) expect(std::fabs(widen(row[k]) - number(w, c, k)) <= 4e-3 * std::fabs(number(w, c, k)) + 1e-12, "a row");
    }
}

static void check_lanes() {
    alignas(64) float x[16], y[16];
    for (int i = 0; i < 16; i++) x[i] = (i - 7.5f) * 3.1f;
    store(y, exp16(load(x)));
    for (int i = 0; i < 16; i++) expect(std::fabs(y[i] / std::exp(x[i]) - 1) < 1e-6, "exp16");
    expect(not_at_most(load(x), all(x[9])) == 0xfc00, "not_at_most");
    store(y, select(0x8421, load(x), all(0.0f)));
    for (int i = 0; i < 16; i++) expect(y[i] == (i % 5 == 0 ? x[i] : 0.0f), "select");
    bf16 narrow[16];
    x[3] = NAN, x[4] = 1.00390625f, x[5] = 1.01171875f;  // ties go to even
    narrow16(narrow, load(x));
    expect(narrow[3] == 0x7fc0 && narrow[4] == 0x3f80 && narrow[5] == 0x3f82, "narrow16");
    std::vector<float> row(1000);
    for (int i = 0; i < 1000; i++) row[i] = float(i * 7919 % 1000);
    float values[3];
    int64_t places[3];
    largest(row.data(), 1000, 3, values, places);
    expect(values[0] == 999 && values[2] == 997 && row[places[1]] == 998, "largest");
}

// Attention of some queries over 45 places, against sums in double precision; and of each query by itself.
static void check_attention() {
    constexpr int DIM = 64, COUNT = 45, QUERIES = 11;
    std::mt19937 random(1);
    std::vector<bf16> keys(COUNT * DIM), values(COUNT * DIM);
    std::vector<float> x(QUERIES * DIM);
    for (auto* some : {&keys, &values})
        for (auto& value : *some) value = uint16_t((random() & 0x8000) | (0x3e80 + random() % 256));
    for (auto& value : x) value = std::normal_distribution<float>()(random);
    auto attend = [&](Softmax& soft, int first, int queries) {
        soft.begin(DIM, queries);
        std::memcpy(soft.query.data, &x[first * DIM], queries * DIM * sizeof(float));
        for (int at = 0; at < COUNT; at += PLACES) {
            const bf16 *key[PLACES], *value[PLACES];
            const int here = COUNT - at < PLACES ? COUNT - at : PLACES;
            for (int i = 0; i < here; i++) key[i] = &keys[(at + i) * DIM], value[i] = &values[(at + i) * DIM];
            soft.place(key, value, here);
            soft.take(0, queries, [&](int) { return here == PLACES ? ~0u : (1u << here) - 1; });
        }
    };
    static Softmax together, alone;
    attend(together, 0, QUERIES);
    for (int q = 0; q < QUERIES; q++) {
        attend(alone, q, 1);
        double weight[COUNT], sum = 0;
        for (int i = 0; i < COUNT; i++) {
            double score = 0;
            for (int c = 0; c < DIM; c++) score += double(x[q * DIM + c]) * widen(keys[i * DIM + c]);
            sum += weight[i] = std::exp(score / 8);
        }
        for (int c = 0; c < DIM; c++) {
            double right = 0;
            for (int i = 0; i < COUNT; i++) right += weight[i] / sum * widen(values[i * DIM + c]);
            const float found = together.row(q, c)[c % 16];
            expect(std::fabs(found / together.sum[q] - right) < 1e-5, "attention");
            expect(found == alone.row(0, c)[c % 16], "a query's numbers are its own");
        }
    }
}

static void check_pool() {
    std::vector<std::atomic<int>> taken(1000);
    Shares shares;
    Pool::own().run(3, [&] {
        shares.take(1000, 4, 3, [&](int begin, int end) {
            for (int i = begin; i < end; i++) taken[i]++;
        });
    });
    for (const auto& times : taken) expect(times == 1, "shares");
    for (int round = 0; round < 200; round++) {
        std::atomic<int> first{0};
        Shares one, two;
        Pool::own().run(3, [&] {
            one.each_of(6, 3, [&](int) { first++; });
            two.each_of(6, 3, [&](int) { expect(first == 6, "a work begins when the one before has ended"); });
        });
    }
}

int main() {
    for (int format = BF16; format <= CURVED4_SUPER; format++)
        if (format == BF16 || by_words(format)) check_products(format);
    check_lanes(), check_attention(), check_pool();
    std::printf("%s\n", failures ? "failed" : "products, attention, lanes and threads are right");
    return failures != 0;
}
