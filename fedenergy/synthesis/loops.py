"""Two compiled loops: Gower distances and AR(1) paths."""

from __future__ import annotations

import numpy as np

from fedenergy.compiled import compiled


@compiled(fastmath={"reassoc", "contract"})  # sums of up to 64 terms may be added in any order, for vector instructions
def nearest_gower(fake, reference):
    """(n,) smallest sum over columns of min(1, |difference|); a reference is left as soon as it is beaten."""
    columns = fake.shape[1]
    whole = columns - columns % 64      # a loop of a fixed length, without a branch, becomes vector instructions
    result = np.empty(fake.shape[0])
    for i in range(fake.shape[0]):
        best = np.inf
        for j in range(reference.shape[0]):
            total = 0.0
            for first in range(0, whole, 64):
                part = 0.0
                for k in range(64):
                    apart = abs(fake[i, first + k] - reference[j, first + k])
                    part += apart if apart < 1.0 else 1.0
                total += part
                if total >= best:
                    break
            else:
                for k in range(whole, columns):
                    apart = abs(fake[i, k] - reference[j, k])
                    total += apart if apart < 1.0 else 1.0
            best = min(best, total)
        result[i] = best
    return result


@compiled
def autoregress(normal, memory):
    """(N, T) stationary paths of variance 1: x[0] = z[0], x[t] = rho x[t - 1] + sqrt(1 - rho^2) z[t]."""
    result = np.empty_like(normal)
    for i in range(normal.shape[0]):
        rho, spread, last = memory[i], np.sqrt(1 - memory[i] ** 2), normal[i, 0]
        result[i, 0] = last
        for t in range(1, normal.shape[1]):
            last = rho * last + spread * normal[i, t]
            result[i, t] = last
    return result
