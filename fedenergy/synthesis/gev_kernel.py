"""The GEV likelihood's top by damped Newton steps, compiled: one row at a time, with exact first and second derivatives.

theta = (shape c in scipy's sign, location, log scale). With z = (x - location) / scale, w = 1 - c z, t = -log(w) / c, the
log density is -log scale - (1 - c) t - exp(-t).
"""

from __future__ import annotations

import math

import numpy as np

from fedenergy.compiled import compiled

SHAPE_BOUND = 0.5
_TINY = 1e-6     # nearer to Gumbel the differences below cancel


@compiled
def _value(theta, x):
    c, location, per_scale, per_shape = theta[0], theta[1], math.exp(-theta[2]), 1 / theta[0]
    total = -x.size * theta[2]
    for value in x:
        w = 1 - c * (value - location) * per_scale
        if w <= 0:
            return -np.inf
        t = -math.log(w) * per_shape
        if t < -30:
            return -np.inf
        total -= (1 - c) * t + math.exp(-t)
    return total


@compiled
def _derivatives(theta, x, gradient, hessian):
    """Sums over x of the log density's first (3,) and second (3, 3) derivatives."""
    c, location, per_scale, per_shape = theta[0], theta[1], math.exp(-theta[2]), 1 / theta[0]
    gradient[:] = 0
    hessian[:] = 0
    for value in x:
        z = (value - location) * per_scale
        w = 1 - c * z
        t = -math.log(w) * per_shape
        e = math.exp(-t)
        slope = (1 - c) - e
        t_z = 1 / w
        t_c = (z * t_z - t) * per_shape
        t_zc = z * t_z * t_z
        t_cc = (z * z * t_z * t_z - 2 * t_c) * per_shape
        by_z = -slope * t_z
        by_zz = -e * t_z * t_z - slope * c * t_z * t_z
        by_cz = t_z - e * t_z * t_c - slope * t_zc
        gradient[0] += t - slope * t_c
        gradient[1] -= by_z * per_scale
        gradient[2] -= by_z * z + 1
        hessian[0, 0] += 2 * t_c - e * t_c * t_c - slope * t_cc
        hessian[0, 1] -= by_cz * per_scale
        hessian[0, 2] -= by_cz * z
        hessian[1, 1] += by_zz * per_scale * per_scale
        hessian[1, 2] += (by_zz * z + by_z) * per_scale
        hessian[2, 2] += (by_zz * z + by_z) * z
    hessian[1, 0], hessian[2, 0], hessian[2, 1] = hessian[0, 1], hessian[0, 2], hessian[1, 2]


@compiled
def _step(gradient, hessian, damping, n, move):
    """Solve (damped -hessian) move = gradient by Cholesky; False where the matrix is not positive definite."""
    factor = np.empty((3, 3))
    for i in range(3):
        for j in range(i + 1):
            total = -hessian[i, j] + (damping * n if i == j else 0.0)
            for k in range(j):
                total -= factor[i, k] * factor[j, k]
            if i == j:
                if total <= 1e-12 * n:
                    return False
                factor[i, i] = math.sqrt(total)
            else:
                factor[i, j] = total / factor[j, j]
    for i in range(3):
        total = gradient[i]
        for k in range(i):
            total -= factor[i, k] * move[k]
        move[i] = total / factor[i, i]
    for i in range(2, -1, -1):
        total = move[i]
        for k in range(i + 1, 3):
            total -= factor[k, i] * move[k]
        move[i] = total / factor[i, i]
    return True


@compiled
def climb(theta, x, most=60):
    """Move every row of theta (N, 3) uphill in the likelihood of that row of x (N, n), in place; |c| <= SHAPE_BOUND.

    Where the shape rests on its bound, location and scale still move.
    """
    gradient, hessian, move = np.empty(3), np.empty((3, 3)), np.empty(3)
    for row in range(theta.shape[0]):
        at = theta[row].copy()
        trial = at.copy()
        if abs(at[0]) < _TINY:
            at[0] = _TINY
        best = _value(at, x[row])
        damping = 1e-4
        for _ in range(most):
            _derivatives(at, x[row], gradient, hessian)
            if abs(at[0]) >= SHAPE_BOUND and gradient[0] * at[0] > 0:
                gradient[0] = 0
                hessian[0, 1:] = 0
                hessian[1:, 0] = 0
                hessian[0, 0] = -x.shape[1]
            gain = -1.0
            while damping < 1e8:
                if _step(gradient, hessian, damping, x.shape[1], move):
                    for k in range(3):
                        trial[k] = at[k] + min(max(move[k], -0.7), 0.7)
                    trial[0] = min(max(trial[0], -SHAPE_BOUND), SHAPE_BOUND)
                    if abs(trial[0]) < _TINY:
                        trial[0] = _TINY
                    reached = _value(trial, x[row])
                    if reached > best:
                        gain = reached - best
                        break
                damping = max(damping * 8, 1e-4)
            if gain < 0:
                break
            at[:] = trial
            best = reached
            damping = damping / 16
            if gain < 1e-3:  # the steps are quadratic by then: what is left is its square
                break
        theta[row] = at
