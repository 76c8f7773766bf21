// The value tree of a block drafter for one text in one call: level after level the top tokens, by the words, then with
// copies, as deep and as wide as pays; of all nodes the best. `grow_on_host` with the steps of `BlockTops` is the reference.
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct ValueTree {
    int32_t width, depth, nodes, most;  // nodes: that may pay; most: that may be handed over
    int32_t found, pointers, points;    // words after a node, scores of a node, points of the calibration
    int32_t none;
    Pass* words;                               // from states to the top words
    Correction* correction;                    // of the first level
    Copying* copying;                          // of the root; null = no copies
    const float *level, *followed;             // as of a GreedyChain
    const float* scores;                       // [pointers] at the root
    const float *point, *slope, *offset;       // [points] log-probabilities; [2][points + 1] pieces between them, of top tokens, of others
    const double *verify, *children;           // [nodes + 1] seconds of a pass over so many, null = whatever there is pays; gains of children
    double first, further;                     // seconds of the first level, of each after it
    int64_t *token, *parent, *deep, *nth, *source, *levels;  // [most] each, of the best in the order of making; how many were read
    float *value, *given;                      // [most] probability of the path; log-probability of the token, as the drafter gave it
};

struct TreeGrower {
    struct Node { int64_t token; int parent, depth; float value, given; };
    const ValueTree& t;
    std::vector<Node> made;
    std::vector<int> front;                   // the nodes that a level is read after
    std::vector<int64_t> above, tokens, ids;  // columns of their parents in the front before; their tokens; of found words
    std::vector<float> found, scores, below;  // of words; of pointers after the front, and after the next
    int levels = 0;
    const int k;

    explicit TreeGrower(const ValueTree& tree) : t(tree), k(tree.found) {
        ids.resize(t.width * k), found.resize(t.width * k), above.resize(t.width), tokens.resize(t.width);
        if (t.copying) scores.assign(t.scores, t.scores + t.pointers);
    }

    float calibrated(float given, bool top) const {
        if (!t.points) return given;
        const int piece = int(std::lower_bound(t.point, t.point + t.points, given) - t.point) + (top ? 0 : t.points + 1);
        return t.slope[piece] * given + t.offset[piece];
    }
    // The top words of the newest states become nodes, and the best of these the next front.
    bool read(int rows) {
        Tail& tail = const_cast<Tail&>(*t.words->tail);  // passes do not change their ends; whoever orders them may
        t.words->rows = rows, tail.top = k, tail.values = found.data(), tail.places = ids.data();
        if (!fd_layers(t.words)) return false;
        if (Copying* c = t.copying) {
            c->rows = c->width = rows, c->top = k, c->level = t.level[levels];
            c->scores = scores.data(), c->values = found.data(), c->ids = ids.data();
            fd_copy(c);
        }
        const int begin = int(made.size());
        levels++;
        for (int i = 0; i < rows * k; i++) {
            const int parent = front.empty() ? -1 : front[i / k];
            const float own = calibrated(found[i], i % k == 0), value = parent < 0 ? own : made[parent].value + own;
            made.push_back({ids[i], parent, levels, value == value ? value : -__builtin_inff(), found[i]});
        }
        choose_front(begin);
        return true;
    }
    void choose_front(int begin) {
        std::vector<int> order = falling(begin);
        order.resize(std::min<size_t>(order.size(), t.width));
        std::sort(order.begin(), order.end());
        front = order;
        for (size_t i = 0; i < front.size(); i++) above[i] = (front[i] - begin) / k, tokens[i] = made[front[i]].token;
    }
    // Nodes from `begin` on, from the greatest value on; equal ones in the order of making.
    std::vector<int> falling(int begin) const {
        std::vector<int> order(made.size() - begin);
        std::iota(order.begin(), order.end(), begin);
        std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return made[a].value > made[b].value; });
        return order;
    }
    // States after the front, and what pointers are worth there.
    bool descend() {
        Correction& c = *t.correction;
        c.rows = c.width = int(front.size());
        c.above.row = above.data(), c.token.row = tokens.data();
        if (!fd_correct(&c)) return false;
        c.share += 2 * c.inner, c.row += c.hidden;
        std::swap(const_cast<bf16*&>(c.above.data), c.state);
        t.words->stream.data = c.above.data;
        if (!t.copying) return true;
        below.resize(front.size() * t.pointers);
        for (size_t i = 0; i < front.size(); i++)
            for (int m = 0; m < t.pointers; m++) {
                const bool foreseen = t.copying->token[m * t.copying->pointer_stride] == tokens[i];
                below[i * t.pointers + m] = scores[above[i] * t.pointers + m] + t.followed[2 * levels + foreseen];
            }
        std::swap(scores, below);
        t.copying->token++;
        return true;
    }
    // The highest rate of the first `least` or more of gains that fall, once so many levels have been read, and of how many.
    std::pair<double, int> best(std::vector<double> gains, int read_levels, int least) const {
        std::sort(gains.begin(), gains.end(), std::greater<double>());
        const double drafting = t.first + (read_levels - 1) * t.further;
        std::pair<double, int> top{0.0, 0};
        double hoped = 1;
        for (int n = 0; n <= std::min(t.nodes, int(gains.size())); n++) {
            if (n) hoped += gains[n - 1];
            if (const double rate = hoped / (t.verify[n] + drafting); n >= least && rate > top.first) top = {rate, n};
        }
        return top;
    }
    std::vector<double> gains() const {
        std::vector<double> found;
        for (const Node& node : made) found.push_back(std::exp(node.value));
        return found;
    }
    bool goes_on() const {
        if (!t.verify) return true;
        std::vector<double> more = gains();
        const double now = best(more, levels, 1).first;
        for (int node : front)
            for (int child = 0; child < 2; child++) more.push_back(std::exp(made[node].value) * t.children[child]);
        return best(more, levels + 1, 1).first > now;
    }
    // The best nodes in the order of making.
    int hand_over() const {
        std::vector<int> order = falling(0), place(made.size(), -1);
        const int paying = t.verify ? best(gains(), levels, 0).second : t.nodes;
        order.resize(std::min({int(order.size()), paying, t.most}));
        while (!order.empty() && !std::isfinite(made[order.back()].value)) order.pop_back();
        std::sort(order.begin(), order.end());
        for (int i = 0; i < int(order.size()); i++) {
            const Node& node = made[order[i]];
            place[order[i]] = i;
            t.token[i] = node.token, t.parent[i] = node.parent < 0 ? -1 : place[node.parent], t.source[i] = order[i];
            t.deep[i] = node.depth, t.value[i] = std::exp(node.value), t.given[i] = node.given;
            t.nth[i] = std::count(t.parent, t.parent + i, t.parent[i]);
        }
        *t.levels = levels;
        return int(order.size());
    }
};

// How many nodes there are; -1 where a token was not to be found.
extern "C" int fd_value_tree(const ValueTree* tree) {
    TreeGrower grower(*tree);
    if (!grower.read(1)) return -1;
    while (grower.levels < tree->depth && grower.goes_on())
        if (!grower.descend() || !grower.read(int(grower.front.size()))) return -1;
    return grower.hand_over();
}
