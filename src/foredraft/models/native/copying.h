// Top words of a block drafter once pointers have their shares: a word has (q + sum of its exp c) / (1 + sum of all exp c),
// q being its probability among the words and c = score + <gate, feature> + level.
// decoder.cpp includes it after all that it uses; structs.py declares the same fields.
#pragma once

struct Copying {
    int32_t rows, width, hidden, pointers, top, none;  // width: rows of a text, one after another; at most MOST of the next two
    float level, nothing;
    const bf16* features;  // [rows, hidden]
    const float *gate, *scores;  // [hidden], [rows, pointers]
    const int64_t *token, *index;  // a pointer's token, -1 = none; the column of a token in the logits, -1 = none
    int64_t text_stride, pointer_stride, words;
    const float* logits;  // [rows, words]
    float* values;        // [rows, top] log-probabilities from the best on, and their tokens
    int64_t* ids;
};

struct Copier {
    const Copying& c;
    struct Word { float value; int64_t id; };

    // The probabilities that pointers add to each token, and what all of them add; 0 for a token that an earlier one names.
    float masses(int row, const int64_t* token, float* own) const {
        Floats sum = all(0.0f);
        const bf16* feature = c.features + long(row) * c.hidden;
        for (int i = 0; i < c.hidden; i += 16) sum = fma(widen16(feature + i), load(c.gate + i), sum);
        const float gate = sum_of(sum) + c.level;
        float total = 0.0f;
        for (int m = 0; m < c.pointers; m++) {
            const int64_t id = token[m * c.pointer_stride];
            own[m] = 0.0f;
            if (id < 0 || c.index[id] < 0) continue;
            const float mass = std::exp(std::min(c.scores[row * c.pointers + m] + gate, 30.0f));
            int first = 0;
            while (token[first * c.pointer_stride] != id) first++;
            own[first] += mass, total += mass;
        }
        return total;
    }

    void mix(int row) const {
        const int64_t* token = c.token + row / c.width * c.text_stride;
        float *values = c.values + row * c.top, own[MOST];
        int64_t* ids = c.ids + row * c.top;
        const float *logits = c.logits + row * c.words, total = std::log1p(masses(row, token, own));
        const float sum = logits[c.index[ids[0]]] - values[0];  // log sum exp of all words
        Word found[2 * MOST];
        int count = 0;
        for (int j = 0; j < c.top; j++) {
            bool named = false;
            for (int m = 0; m < c.pointers; m++) named |= own[m] > 0.0f && token[m * c.pointer_stride] == ids[j];
            if (!named) found[count++] = {values[j] - total, ids[j]};
        }
        for (int m = 0; m < c.pointers; m++) {
            if (own[m] <= 0.0f) continue;
            const int64_t id = token[m * c.pointer_stride];
            found[count++] = {std::log(std::exp(logits[c.index[id]] - sum) + own[m]) - total, id};
        }
        std::stable_sort(found, found + count, [](const Word& a, const Word& b) { return a.value > b.value; });
        for (int j = 0; j < c.top; j++) values[j] = found[j].value, ids[j] = found[j].id;
    }
};

extern "C" void fd_copy(const Copying* given) {
    for (int row = 0; row < given->rows; row++) Copier{*given}.mix(row);
}
