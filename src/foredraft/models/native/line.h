// Room that grows, begins at a cache line (loads that straddle two cost double), and is not cleared when it is reused.
#pragma once
#include <cstdlib>
#include <cstring>

template <class T> struct Line {
    T* data = nullptr;
    size_t size = 0;
    Line() = default;
    Line(const Line&) = delete;
    ~Line() { std::free(data); }
    void reserve(size_t count) {
        if (count <= size) return;
        std::free(data);
        const size_t bytes = (count * sizeof(T) + 63) / 64 * 64;  // whole lines: aligned_alloc may refuse others
        size = bytes / sizeof(T);
        data = static_cast<T*>(std::aligned_alloc(64, bytes));
        std::memset(data, 0, bytes);
    }
    T& operator[](size_t i) { return data[i]; }
    const T& operator[](size_t i) const { return data[i]; }
};
