"""What artificial records give away: distances, copies, linkage, membership. Pure functions of arrays.

Distances (DCR, NNDR) are proxies and no guarantee ("The DCR Delusion", arXiv 2505.01524): a record set of verbatim real days
can have the best DCR per home. So everything is computed per day and per home, and beside the same figure for a holdout of
real homes that the generator never saw.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata

from fedenergy.ids import stream
from fedenergy.synthesis.judge_utility import drp
from fedenergy.synthesis.loops import nearest_gower

MOST_ROWS = 5_000         # day-level distances are quadratic: beyond, a seeded sample, whose size is reported
MOST_SEARCHED = 50_000    # artificial and strangers' days that the membership attack searches: a copy outside is not seen
_CHUNK = 1_024
UNITS = ("day", "home")


def rows(values: np.ndarray, unit: str, per_day: int = 24) -> np.ndarray:
    """Records as rows to compare: "day" (N D, per_day), "home" (N, T)."""
    if unit not in UNITS:
        raise ValueError(f"unit = {unit!r}; use one of {', '.join(UNITS)}")
    return values.reshape(-1, per_day) if unit == "day" else values


def sample_rows(matrix: np.ndarray, seed: int, purpose: str, most: int = MOST_ROWS) -> np.ndarray:
    """At most `most` rows, a seeded sample in order."""
    if len(matrix) <= most:
        return matrix
    return matrix[np.sort(stream(seed, f"judge.{purpose}").choice(len(matrix), most, replace=False))]


def nearest(query: np.ndarray, reference: np.ndarray, k: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """(distance, index), each (n, k): Euclidean nearest rows of reference, by blocks of matrix products.

    The k candidates' distances are recomputed from differences, so equal rows are at exactly 0.
    """
    if not 1 <= k <= len(reference):
        raise ValueError(f"{k} nearest rows of a reference of {len(reference)}: give more rows")
    take = min(k + 2, len(reference))                       # a spare for ties that rounding reorders
    centre = reference.mean(axis=0)
    q, r = query - centre, reference - centre
    square = np.square(r).sum(axis=1)
    distance, index = np.empty((len(q), k)), np.empty((len(q), k), int)
    for first in range(0, len(q), _CHUNK):
        part = q[first:first + _CHUNK]
        best_value = np.empty((len(part), 0))
        best_index = np.empty((len(part), 0), int)
        for start in range(0, len(r), 8 * _CHUNK):
            stop = min(start + 8 * _CHUNK, len(r))
            scores = square[start:stop] - 2 * (part @ r[start:stop].T)
            near = np.argpartition(scores, min(take, stop - start) - 1, axis=1)[:, :take]
            best_value = np.concatenate([best_value, np.take_along_axis(scores, near, axis=1)], axis=1)
            best_index = np.concatenate([best_index, near + start], axis=1)
        near = np.take_along_axis(best_index, np.argsort(best_value, axis=1, kind="stable")[:, :take], axis=1)
        exact = np.sqrt(np.square(query[first:first + len(part), None] - reference[near]).sum(axis=2))
        order = np.argsort(exact, axis=1, kind="stable")[:, :k]
        distance[first:first + len(part)] = np.take_along_axis(exact, order, axis=1)
        index[first:first + len(part)] = np.take_along_axis(near, order, axis=1)
    return distance, index


def dcr_nndr(fake: np.ndarray, reference: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(DCR, NNDR), each (n,): distance to the closest reference row, and its ratio to the second closest.

    NNDR is 1 where both are 0 (two equal references hide each other).
    """
    distance = nearest(fake, reference, 2)[0]
    second = distance[:, 1]
    return distance[:, 0], np.where(second > 0, distance[:, 0] / np.where(second > 0, second, 1), 1.0)


def dcr_gower(fake: np.ndarray, reference: np.ndarray) -> np.ndarray:
    """(n,) DCR as SDMetrics defines it: the mean over columns of min(1, |difference| / the reference column's range), to the
    closest reference row. A constant column (0/0 there) counts 0 where equal and 1 elsewhere.

    >>> dcr_gower(np.array([[1.0, 5.0]]), np.array([[0.0, 5.0], [2.0, 5.0]]))
    array([0.25])
    """
    span = np.ptp(reference, axis=0)
    constant = span == 0
    scale = np.where(constant, 1.0, span)
    a = np.where(constant, (fake != reference[0]) * 2.0, (fake - reference.min(axis=0)) / scale)
    b = np.where(constant, 0.0, (reference - reference.min(axis=0)) / scale)
    return nearest_gower(np.ascontiguousarray(a), np.ascontiguousarray(b)) / fake.shape[1]


def exact_copies(fake: np.ndarray, real: np.ndarray, decimals: int = 9) -> float:
    """Share of fake rows that equal a real row to that many decimals.

    >>> exact_copies(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[3.0, 4.0]]))
    0.5
    """
    known = {row.tobytes() for row in np.round(real, decimals) + 0.0}
    return float(np.mean([row.tobytes() in known for row in np.round(fake, decimals) + 0.0]))


def linkage(real: np.ndarray, fake: np.ndarray, provenance: np.ndarray, per_day: int = 24, *, seed: int = 0,
            most: int = 2_000) -> dict[str, float]:
    """An attacker knows one real day of every home and looks for the artificial day nearest to it: whose was that one?

    provenance  (N, D) real day, home * D + day, behind each artificial day: known to this test only
    Returns the share of right homes among the artificial days' makers ("home"), of right days ("day"), chance, days tried.
    """
    days = real.shape[1] // per_day
    pool, made = rows(real, "day", per_day), rows(fake, "day", per_day)
    picked = np.arange(len(pool))
    if picked.size > most:
        picked = np.sort(stream(seed, "judge.linkage").choice(picked.size, most, replace=False))
    found = provenance.ravel()[nearest(pool[picked], made)[1][:, 0]]
    return {"home": float((found // days == picked // days).mean()), "day": float((found == picked).mean()),
            "chance": 1 / len(real), "days_tried": int(picked.size)}


def auc(member: np.ndarray, other: np.ndarray) -> float:
    """Probability that a member scores above another, ties one half.

    >>> auc(np.array([2.0, 3.0]), np.array([1.0, 2.0]))
    0.875
    """
    ranks = rankdata(np.concatenate([member, other]))
    return float((ranks[:member.size].sum() - member.size * (member.size + 1) / 2) / (member.size * other.size))


def membership(members: np.ndarray, others: np.ndarray, fake: np.ndarray, reference: np.ndarray, unit: str = "day",
               per_day: int = 24, *, seed: int = 0, repeats: int = 200, most: int = MOST_ROWS) -> dict[str, Any]:
    """DOMIAS-style attack: was this record among those behind the artificial ones?

    The score of a real row is log (distance to the nearest reference row / distance to the nearest fake row): high where the
    fake density exceeds the population's. "home" compares mean days.
    members, others  real homes used and not used, at most `most` days of each; reference: further homes not used, for the
                     population's density
    Returns auc and tpr at 1 % false positives, each with a 95 % interval (bootstrap over homes), and the rows compared.
    """
    if unit not in UNITS:
        raise ValueError(f"unit = {unit!r}; use one of {', '.join(UNITS)}")

    def cut(values, purpose):
        if unit == "day":
            return sample_rows(values.reshape(-1, per_day), seed, purpose, MOST_SEARCHED)
        return values.reshape(len(values), -1, per_day).mean(axis=1)

    made, known = cut(fake, "membership.fake"), cut(reference, "membership.reference")
    scores, owners = [], []
    for values in (members, others):
        cells = values.reshape(len(values), -1, per_day)
        each = max(1, most // len(values))                  # days per home, spread over the window
        if unit == "home":
            matrix, owner = cells.mean(axis=1), np.arange(len(values))
        else:
            at = np.unique(np.linspace(0, cells.shape[1] - 1, min(each, cells.shape[1])).astype(int))
            matrix, owner = cells[:, at].reshape(-1, per_day), np.repeat(np.arange(len(values)), at.size)
        tiny = 1e-9
        scores.append(np.log((nearest(matrix, known)[0][:, 0] + tiny) / (nearest(matrix, made)[0][:, 0] + tiny)))
        owners.append(owner)
    rng = stream(seed, "judge.bootstrap")
    resampled = []
    for _ in range(repeats):
        drawn = [_resample(score, owner, rng) for score, owner in zip(scores, owners)]
        resampled.append((auc(*drawn), _found(*drawn)))
    low, high = np.quantile(resampled, [0.025, 0.975], axis=0).tolist() if resampled else ([np.nan] * 2, [np.nan] * 2)
    return {"auc": auc(*scores), "low": low[0], "high": high[0], "tpr_at_1_fpr": _found(*scores), "tpr_low": low[1],
            "tpr_high": high[1], "rows": scores[0].size + scores[1].size}


def _found(member: np.ndarray, other: np.ndarray) -> float:
    """Share of the members above the score that 1 % of the others exceed."""
    return float((member > np.quantile(other, 0.99, method="higher")).mean())


def _resample(score: np.ndarray, owner: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    homes = owner[-1] + 1
    by_home = score.reshape(homes, -1)
    return by_home[rng.integers(homes, size=homes)].ravel()


def privacy(real: np.ndarray, fake: np.ndarray, holdout: np.ndarray | None, per_day: int = 24, *,
            provenance: np.ndarray | None = None, seed: int = 0, most: int = MOST_ROWS) -> dict[str, Any]:
    """Every score of this module in one nested dict.

    holdout  (M, T) real homes that the generator never saw, at least 4: distances of the fake rows to it are the yardstick,
             one half plays the non-members and the other the population in the membership test. None: no yardstick, and
             no membership test
    """
    if holdout is not None and len(holdout) < 4:
        raise ValueError(f"a holdout of {len(holdout)} homes is too small: keep at least 4 homes away from the generator")
    found: dict[str, Any] = {}
    for unit in UNITS:
        made = sample_rows(rows(fake, unit, per_day), seed, f"{unit}.fake", most)
        pools = {"real": rows(real, unit, per_day)}
        if holdout is not None:
            pools["holdout"] = rows(holdout, unit, per_day)
        size = min(most, *map(len, pools.values()))         # equally large: more rows are nearer by chance
        entry: dict[str, Any] = {"rows": len(made), "reference_rows": size}
        for name, pool in pools.items():
            distance, ratio = dcr_nndr(made, sample_rows(pool, seed, f"{unit}.{name}", size))
            entry[name] = {"dcr": float(np.median(distance)), "dcr_mean": float(distance.mean()),
                           "dcr_q5": float(np.quantile(distance, 0.05)), "nndr": float(np.median(ratio))}
        entry["exact_copies"] = exact_copies(rows(fake, unit, per_day), pools["real"])
        if holdout is not None:
            closer = entry["holdout"]["dcr"]
            entry["dcr_share"] = entry["real"]["dcr"] / closer if closer > 0 else float("nan")
            others, reference = holdout[0::2], holdout[1::2]
            entry["membership"] = membership(real, others, fake, reference, unit, per_day, seed=seed, most=most)
        found[unit] = entry
    if provenance is not None:
        found["linkage"] = linkage(real, fake, provenance, per_day, seed=seed)
    return found


def self_test(real: np.ndarray, holdout: np.ndarray, per_day: int = 24, *, seed: int = 0) -> dict[str, float]:
    """Whether the membership test can see what it must and nothing else: days of the members themselves, shuffled, as fake
    (AUC near 1), and a third of the holdout as fake (near .5, as neither side was used)."""
    third = [holdout[k::3] for k in range(3)]
    if min(map(len, third)) < 2:
        raise ValueError(f"a holdout of {len(holdout)} homes is too small for the self-test: give at least 6")
    days = rows(real, "day", per_day)
    shuffled = days[stream(seed, "judge.self_test").permutation(len(days))].reshape(real.shape)
    return {"raw_shuffle_auc": membership(real, third[0], shuffled, third[1], per_day=per_day, seed=seed, repeats=0)["auc"],
            "holdout_auc": membership(real, third[0], third[2], third[1], per_day=per_day, seed=seed, repeats=0)["auc"]}


def top_overlap(real: np.ndarray, fake: np.ndarray, provenance: np.ndarray, start: np.datetime64, per_day: int = 24, *,
                share: float = 0.1) -> dict[str, float]:
    """Of the homes with the largest demand-response potential, the share that the artificial records still point at: a leak.

    Only where every day of a record comes from one home (no exchange of days): elsewhere "the same homes" means nothing.
    provenance  as in linkage. Returns "uDRP", "dDRP" and chance; empty after an exchange of days.
    """
    days = real.shape[1] // per_day
    owner = provenance // days
    if (owner != owner[:, :1]).any():
        return {}
    count = max(1, round(share * len(real)))
    truth, made = drp(real, start, per_day), drp(fake, start, per_day)
    found = {"chance": count / len(real)}
    for name in ("uDRP", "dDRP"):
        best = set(np.argsort(-truth[f"{name}_home"], kind="stable")[:count].tolist())
        picked = owner[np.argsort(-made[f"{name}_home"], kind="stable")[:count], 0]
        found[name] = len(best & set(picked.tolist())) / count
    return found
