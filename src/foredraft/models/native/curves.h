// The exponential and what is made of it, for sixteen numbers at once.
#pragma once
#include "vec.h"

// exp(x) for -87 <= x <= 87, by 2^n times a polynomial in the rest; relative error about 2e-7.
inline Floats exp16(Floats x) {
    x = min(max(x, all(-87.0f)), all(87.0f));
    const Floats n = round(mul(x, all(1.44269504f)));
    Floats r = fnma(n, all(0.693359375f), x);
    r = fnma(n, all(-2.12194440e-4f), r);
    Floats y = all(1.3888889e-3f);
    for (float c : {8.3333333e-3f, 4.1666667e-2f, 1.6666667e-1f, 0.5f, 1.0f, 1.0f}) y = fma(y, r, all(c));
    return times_power(y, n);
}

// x / (1 + exp(-x))
inline Floats silu16(Floats x) { return mul(x, reciprocal(add(all(1.0f), exp16(sub(all(0.0f), x))))); }
