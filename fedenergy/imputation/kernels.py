"""The compiled inner loop of per-record norms: Gram matrices by symmetry, multiplied as they come and never stored."""

from __future__ import annotations

import numpy as np

from fedenergy.compiled import compiled

ANY_ORDER = {"reassoc", "contract", "nsz"}      # of additions, for vector instructions; nan and infinity keep their meaning


@compiled(fastmath=ANY_ORDER)
def _tile(a, t, s, products):
    """Inner products of rows t..t+3 with rows s..s+3 of a; past the end the last row stands in."""
    last = a.shape[0] - 1
    p0, p1, p2, p3 = a[t], a[min(t + 1, last)], a[min(t + 2, last)], a[min(t + 3, last)]
    q0, q1, q2, q3 = a[s], a[min(s + 1, last)], a[min(s + 2, last)], a[min(s + 3, last)]
    zero = np.float32(0)
    c00 = c01 = c02 = c03 = c10 = c11 = c12 = c13 = zero
    c20 = c21 = c22 = c23 = c30 = c31 = c32 = c33 = zero
    for k in range(a.shape[1]):                 # sixteen sums stay in registers
        x0, x1, x2, x3 = p0[k], p1[k], p2[k], p3[k]
        y0, y1, y2, y3 = q0[k], q1[k], q2[k], q3[k]
        c00 += x0 * y0
        c01 += x0 * y1
        c02 += x0 * y2
        c03 += x0 * y3
        c10 += x1 * y0
        c11 += x1 * y1
        c12 += x1 * y2
        c13 += x1 * y3
        c20 += x2 * y0
        c21 += x2 * y1
        c22 += x2 * y2
        c23 += x2 * y3
        c30 += x3 * y0
        c31 += x3 * y1
        c32 += x3 * y2
        c33 += x3 * y3
    products[0, 0], products[0, 1], products[0, 2], products[0, 3] = c00, c01, c02, c03
    products[1, 0], products[1, 1], products[1, 2], products[1, 3] = c10, c11, c12, c13
    products[2, 0], products[2, 1], products[2, 2], products[2, 3] = c20, c21, c22, c23
    products[3, 0], products[3, 1], products[3, 2], products[3, 3] = c30, c31, c32, c33


@compiled(fastmath=ANY_ORDER)
def gram_norms(x, g, bias, squares):
    """Write sum_ts (x_t . x_s + bias) (g_t . g_s) of every record into squares.

    x (R, N, i), g (R, N, o) float32, contiguous; squares (R,) float64. The pairs s <= t are enough; they add up in float64.
    """
    records, tokens, _ = x.shape
    inner, outer = np.empty((4, 4), np.float32), np.empty((4, 4), np.float32)
    for r in range(records):
        total = 0.0
        for t in range(0, tokens, 4):
            for s in range(0, t + 1, 4):
                _tile(x[r], t, s, inner)
                _tile(g[r], t, s, outer)
                for i in range(4):
                    for j in range(4):
                        if t + i < tokens and s + j <= t + i:
                            pair = (np.float64(inner[i, j]) + bias) * np.float64(outer[i, j])
                            total += pair if t + i == s + j else 2 * pair
        squares[r] = total
