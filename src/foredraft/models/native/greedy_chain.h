// Greedy chains of a block drafter in one call: level after level the likeliest token, by the words, then with copies.
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct GreedyChain {
    int32_t length, texts;
    Pass* words;             // from states to the likeliest word
    Correction* correction;  // of the first level
    Copying* copying;        // of the root; null = no copies
    const float* level;      // [length] what copying adds at each level
    const float* followed;   // [length, 2] what a pointer's score gains by a token that it has not foreseen, or has
    float* scores;           // [texts, pointers], those of `copying`
    int64_t* tokens;         // [length, texts]
};

// Pointers that foresaw the tokens of the level before, and those that did not.
static void follow(const GreedyChain& c, const int64_t* drafted, int level) {
    const Copying& own = *c.copying;
    for (int t = 0; t < c.texts; t++)
        for (int m = 0; m < own.pointers; m++)
            c.scores[t * own.pointers + m] +=
                c.followed[2 * level + (own.token[t * own.text_stride + m * own.pointer_stride] == drafted[t])];
}

// Whether every token was to be found.
extern "C" int fd_greedy_chain(const GreedyChain* given) {
    const GreedyChain& c = *given;
    const bf16* first = c.words->stream.data;  // the states of a level take the place of those two levels above
    bf16* states[2] = {const_cast<bf16*>(first), c.correction->state};
    for (int level = 0; level < c.length; level++) {
        int64_t* tokens = c.tokens + level * c.texts;
        if (level) {
            Correction& next = *c.correction;
            next.token.row = tokens - c.texts;
            next.above.data = states[(level - 1) % 2], next.state = states[level % 2];
            if (!fd_correct(&next)) return 0;
            next.share += 2 * next.inner, next.row += next.hidden;
            if (c.copying) follow(c, tokens - c.texts, level), c.copying->token++;
        }
        c.words->stream.data = states[level % 2];
        if (!fd_layers(c.words)) return 0;
        if (c.copying) {
            c.copying->level = c.level[level];
            fd_copy(c.copying);
        }
        std::memcpy(tokens, c.words->tail->places, c.texts * sizeof(int64_t));
    }
    return 1;
}
