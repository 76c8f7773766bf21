// A level of a block drafter: states of nodes from those above them, their tokens, and what their level shares:
//   state = row + W silu(a) b,  (a, b) = share + N [norm(above); scale token]
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct Correction {
    int32_t rows, hidden, inner, threads, width, tiles;  // width: rows of a sequence, which lie one after another; tiles: as of a pass
    float eps, scale;
    Source above, token;
    const bf16* norm;
    Weight node, down;
    const bf16 *share, *row;           // of the first sequence, at this level
    int64_t share_stride, row_stride;  // from one sequence to the next
    bf16* state;                       // [rows, hidden]
};

struct Corrector {
    const Correction& c;
    act *read, *gated;
    Shares* shares;
    Room& room;

    template <class Block, class Emit> void multiply(const act* a, const Weight& w, int blocks, Block block, Emit emit) {
        bool prepared = false;
        shares++->take(blocks, UNIT, c.threads, [&](int begin, int end) {
            if (!std::exchange(prepared, true)) prepare(a, w.depth, c.rows, w, room);
            product(a, w.depth, c.rows, w, begin, end, block, room, emit);
        });
    }

    void run() {
        const int d = c.hidden, blocks = c.inner / COLUMNS;
        room.rounds = true, room.tiles = c.tiles;
        shares++->each_of(c.rows, c.threads, [&](int r) {
            static thread_local Line<bf16> room_for_row;
            room_for_row.reserve(d);
            ::norm(c.above.at(r, room_for_row.data), c.norm, c.eps, d, read + long(r) * 2 * d);
            const bf16* token = c.token.at(r, room_for_row.data);
            for (int i = 0; i < d; i += 16) put16(read + long(r) * 2 * d + d + i, mul(widen16(token + i), all(c.scale)));
        });
        begin_tiles(c.rows);
        alignas(64) float gates[2][3 * ROWS][COLUMNS];  // gate blocks wait here for their up blocks, as in a layer
        auto emit = [&](int row, int j, Floats sum) {
            const bf16* share = c.share + row / c.width * c.share_stride + j / 2 * 16 + (j % 2) * c.inner;
            float* gate = gates[j / 2 % 2][row % (3 * ROWS)];
            sum = as_act(add(sum, widen16(share)));
            if (j % 2 == 0) return store(gate, sum);
            put16(gated + long(row) * c.inner + j / 2 * 16, mul(as_act(silu16(load(gate))), sum));
        };
        multiply(read, c.node, 2 * blocks, [&](int j) { return j / 2 + (j % 2) * blocks; }, emit);
        auto put = [&](int row, int j, Floats sum) {
            const bf16* own = c.row + row / c.width * c.row_stride + 16 * j;
            narrow16(c.state + long(row) * d + 16 * j, add(sum, widen16(own)));
        };
        multiply(gated, c.down, d / COLUMNS, [](int j) { return j; }, put);
    }
};

// Whether every row was to be found; if not, nothing is done.
extern "C" int fd_correct(const Correction* given) {
    const Correction& c = *given;
    for (int r = 0; r < c.rows; r++)
        if (!c.above.inside(r) || !c.token.inside(r)) return 0;
    static thread_local Line<act> read, gated;
    const size_t rows = (c.rows + 2 * ROWS - 1) / (2 * ROWS) * (2 * ROWS);
    read.reserve(rows * 2 * c.hidden), gated.reserve(rows * c.inner);
    act *reads = read.data, *gates = gated.data;
    std::vector<Shares> shares(3);
    Pool::own().run(c.threads, [&] {
        Corrector{c, reads, gates, shares.data(), room}.run();
        end_tiles();
    });
    return 1;
}
