"""The claims of the source's section V, each with its number, ours, and a verdict computed from the runs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import pandas as pd

from fedenergy import metrics
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.report.words import number, spread
from simulations.mechanisms.runs import (
    CENTRAL,
    CENTRAL_GAUSS,
    LOCAL_DP,
    NEGOTIATED,
    ONE,
    SAME,
    SAME_GAUSS,
    UNBOUNDED,
    WEIGHTED,
    Result,
)
from simulations.mechanisms.settings import APPLIANCE, FEATURE_LAG, MODERATE, TABLE_3, Quoted
from simulations.pages import Claim, judged, percent

NO_NUMBER = "no number given"
METHOD = {"HXAI (same ε)": (SAME,), "HXAI (neg. ε)": (NEGOTIATED, WEIGHTED), "Central DP": (CENTRAL, UNBOUNDED)}
GOOD, NEAR, LOW_EPSILON = 0.9, 0.02, 2.0
BRIEF = {"UCI ": "", "Appliances (ten-minute)": "Appliances 10 min", "Appliances (hourly)": "Appliances 1 h",
         "Household Power": "Household", "Bike Sharing": "Bike"}
KINDS = {FEATURE_LAG: "features", APPLIANCE: "channels"}


def claims_of(results: Sequence[Result], table: pd.DataFrame) -> list[Claim]:
    """Every claim. results: the settings; table: runs.over_seeds of all of them."""
    parts: tuple[Callable[[Sequence[Result], pd.DataFrame], Iterator[Claim]], ...] = (
        _table_3, _order, _curves, _robust, _trajectories, _own)
    return [claim for part in parts for claim in part(results, table)]


def at(table: pd.DataFrame, words: str, coordinates: str, mechanism: str) -> pd.DataFrame:
    """One curve, index epsilon."""
    rows = table[(table["set"] == words) & (table["coordinates"] == coordinates) & (table["mechanism"] == mechanism)]
    return rows.set_index("epsilon").sort_index()


def wins(first: pd.DataFrame, second: pd.DataFrame, score: str) -> tuple[int, int]:
    """(at how many epsilons the first curve is clearly better, of how many); lower is better for MAE and displacement.

    Clearly: the difference of the means over seeds exceeds twice its standard error, so that curves which differ by chance
    (at small epsilon all scores do) win about as often as they should.

    >>> one, two = (pd.DataFrame({"cosine": mean, "cosine_sd": 0.1, "n": 5}, index=[0.1, 20.0])
    ...             for mean in ([0.5, 0.9], [0.4, 0.6]))
    >>> wins(one, two, "cosine")     # standard error .063: .1 is not clear, .3 is
    (1, 2)
    """
    both = first.index.intersection(second.index)
    first, second = first.loc[both], second.loc[both]
    difference = (first[score] - second[score]) * (-1 if score in ("mae", "displacement") else 1)
    return int((difference > 2 * _error(first, second, score)).sum()), len(both)


def _error(first: pd.DataFrame, second: pd.DataFrame, score: str) -> np.ndarray:
    """Standard errors of the differences of two columns of means; 0 with one seed."""
    squares = [frame[f"{score}_sd"].fillna(0).to_numpy() ** 2 / frame["n"].to_numpy() for frame in (first, second)]
    return np.sqrt(squares[0] + squares[1])


def homes_needed(result: Result, utility: float, epsilon: float, local: bool) -> float:
    """How many homes like these the closed form asks for E[U] = utility: the zone grows as N, its noise as sqrt(N) or 1."""
    noises = result.homes if local else 1
    even = metrics.eps0(Laplace(result.setting.clip).sensitivity(), result.truth.size, noises,
                        float(np.linalg.norm(result.truth)))
    ratio = even / (epsilon * math.sqrt(1 / utility**2 - 1))
    return result.homes * (ratio**2 if local else ratio)


def brief(words: str) -> str:
    """A set's name, short.

    >>> brief("UCI Appliances (ten-minute)")
    'Appliances 10 min'
    """
    for long, short in BRIEF.items():
        words = words.replace(long, short)
    return words


def reached_from(line: pd.DataFrame, utility: float) -> float | None:
    """The epsilon from which the mean cosine is at least `utility`, interpolated in log epsilon; None: not on the grid.

    >>> round(reached_from(pd.DataFrame({"cosine": [0.0, 0.4, 0.8]}, index=[0.1, 1.0, 10.0]), 0.6), 3)     # half way
    3.162
    """
    below = np.flatnonzero(line["cosine"].to_numpy() < utility)
    first = int(below[-1]) + 1 if below.size else 0
    if first == len(line) or first == 0:
        return None if first else float(line.index[0])
    (low, high), grid = line["cosine"].iloc[first - 1:first + 1], np.log(line.index[first - 1:first + 1].to_numpy())
    return float(np.exp(grid[0] + (grid[1] - grid[0]) * (utility - low) / (high - low)))


def _words(results: Sequence[Result], dataset: str | None = None) -> list[str]:
    return list(dict.fromkeys(r.setting.words for r in results if dataset in (None, r.setting.dataset)))


def _table_3(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    for row in TABLE_3:
        central = row.method == "Central DP"
        texts, tests = [], []
        for words in _words(results, row.dataset):
            for mechanism in METHOD[row.method]:
                lines = {kind: at(table, words, kind, mechanism) for kind in (FEATURE_LAG, APPLIANCE)}
                found = {kind: _best(row, line) for kind, line in lines.items() if len(line)}
                texts.append(f"{brief(words)}, {mechanism}: " + ", ".join(
                    f"{KINDS[kind]} {text}" for kind, (text, *_) in found.items()))
                tests.append(any(utility and (central or rank) for _, utility, rank in found.values()))
        yield Claim("Table III", f"{row.dataset}, {row.method}: utility {row.utility}, rank {row.rank}, MAE {row.mae}.",
                    f"{row.utility} / {row.rank} / {row.mae}; ε, N, Δ not given", "; ".join(texts), judged(*tests),
                    ("the curve reaches the source's utility on the grid; the order at equal ε is judged below" if central
                     else f"at some ε 1 − cosine is at most twice the source's, at some ε Spearman within {NEAR}; in either "
                     "kind of coordinates (of two channels: rank 1 or −1)"))


def _best(row: Quoted, line: pd.DataFrame) -> tuple[str, bool, bool]:
    need = reached_from(line, row.utility)
    most = float(line["cosine"].max())
    return (f"{most:.4f} / {number(line['spearman'].max())} at best, {row.utility} "
            + ("at no ε" if need is None else f"from ε {number(need)}"),
            1 - most <= 2 * (1 - row.utility), bool(line["spearman"].max() >= row.rank - NEAR))


def _order(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    for central, words, own in ((CENTRAL, "Central DP-SHAP is worse than HXAI (same ε) on all sets.", False),
                                (UNBOUNDED, "Central DP-SHAP is worse where its sensitivity is N Δ (unbounded).", True)):
        texts, tests = [], []
        for name in _words(results):
            first, second = at(table, name, FEATURE_LAG, SAME), at(table, name, FEATURE_LAG, central)
            won, of = wins(first, second, "mae")
            cos, _ = wins(first, second, "cosine")
            texts.append(f"{brief(name)}: smaller MAE at {won} of {of} ε, larger cosine at {cos}")
            tests += [won == of, 2 * cos > of]
        yield Claim("Table III, Figure 2", words, "cosine .9999 against .65 (Appliances)", "; ".join(texts),
                    judged(*tests), "HXAI's MAE clearly smaller at every ε, its cosine clearly larger at most of them",
                    own=own)
    ratios, texts, largest = [], [], 0.0
    for result in results:
        if result.setting.coordinates == FEATURE_LAG and result.setting.dataset == "UCI Appliances":
            for mechanism in (CENTRAL, UNBOUNDED):
                other = at(table, result.setting.words, FEATURE_LAG, mechanism)["mae"]
                ratio = float((other / at(table, result.setting.words, FEATURE_LAG, SAME)["mae"]).median())
                ratios.append(ratio)
                texts.append(f"{brief(result.setting.words)}, {mechanism}: {number(ratio)}")
            closed = metrics.expected_abs_sum_of_laplace(result.homes)
            largest = result.homes / closed
            texts.append(f"closed form at N = {result.homes}: {number(1 / closed)} and {number(largest)}")
    if ratios:
        goal = 29.45 / 0.25
        yield Claim("Table III", "Central DP's MAE is 118 times HXAI's (Appliances).", "29.45 / .25 = 117.8",
                    "; ".join(texts) + f"; a ratio of {goal:.0f} needs N Δ and about {4 * goal**2 / math.pi:,.0f} homes",
                    judged(*(abs(math.log(ratio / goal)) < math.log(2) for ratio in ratios)),
                    "median ratio over ε within a factor of 2")


def _curves(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    names, texts, tests = _words(results), [], []
    for name in names:
        if name == "UCI Household Power":
            continue
        for mechanism in (SAME, NEGOTIATED):
            line = at(table, name, FEATURE_LAG, mechanism)["cosine"]
            texts.append(f"{brief(name)}, {mechanism}: {number(line.iloc[0])} to {number(line.iloc[-1])}")
            tests.append(bool(line.iloc[-1] >= GOOD))
    yield Claim("Figure 2", "On Appliances and Bike both forms of HXAI approach the oracle as ε grows.", NO_NUMBER,
                "; ".join(texts), judged(*tests), f"mean cosine at the largest ε at least {GOOD}")
    for words, dataset, negotiated, low in (
            ("Appliances and Bike: uniform is better than negotiated in every metric.", None, NEGOTIATED, False),
            ("The same against the source's own negotiated form (split by true |S_k|; leaks).", None, WEIGHTED, False),
            ("Household: negotiated is better in cosine and rank for ε ≤ 2.", "UCI Household Power", NEGOTIATED, True),
            ("The same with the source's own negotiated form (split by true |S_k|; leaks).", "UCI Household Power", WEIGHTED,
             True)):
        texts, tests = [], []
        for name in _words(results, dataset):
            if dataset is None and name == "UCI Household Power":
                continue
            first, second = (at(table, name, FEATURE_LAG, mechanism) for mechanism in (SAME, negotiated))
            first, second = (first[first.index <= LOW_EPSILON], second) if low else (first, second)
            if second.empty:
                continue
            for score in ("cosine", "spearman") if low else ("cosine", "spearman", "mae"):
                won, of = wins(second, first, score) if low else wins(first, second, score)
                texts.append(f"{brief(name)}, {score}: at {won} of {of} ε")
                tests.append(2 * won > of)
        if texts:
            yield Claim("Figure 2", words, NO_NUMBER, "; ".join(texts), judged(*tests),
                        "clearly better (beyond two standard errors) at more than half of the ε, in every metric")


def _robust(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    names = _words(results)
    local = {name: at(table, name, FEATURE_LAG, LOCAL_DP).loc[MODERATE] for name in names}
    yield Claim("Figure 3", "At ε ≈ 1.05 local DP flips signs and its ranks are unstable.", NO_NUMBER,
                "; ".join(f"{brief(name)}: signs kept {number(row['sign'])}, Spearman "
                          f"{spread(row['spearman'], row['spearman_sd'])}" for name, row in local.items()),
                judged(*(row["sign"] < GOOD for row in local.values()),
                       *(row["spearman"] < GOOD for row in local.values())),
                f"signs kept below {GOOD} and Spearman below {GOOD} (one home against its own truth)")
    zonal = {name: at(table, name, FEATURE_LAG, SAME).loc[MODERATE] for name in names}
    one = {name: at(table, name, FEATURE_LAG, ONE).loc[MODERATE] for name in names}
    yield Claim("Figure 3", "Zonal HXAI still shows the dominant feature.", NO_NUMBER,
                "; ".join(f"{brief(name)}: first in {percent(zonal[name]['dominant'], 0)} of seeds (one noise "
                          f"{percent(one[name]['dominant'], 0)}), "
                          f"signs {number(zonal[name]['sign'])}" for name in names),
                judged(*(row["dominant"] >= GOOD for row in zonal.values())),
                f"the truth's largest |S_k| is largest under noise in at least {percent(GOOD, 0)} of seeds, on every set")


def _trajectories(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    texts, tests = [], []
    for name in _words(results):
        if name == "UCI Bike Sharing":
            continue
        fixed, other, weighted = (at(table, name, FEATURE_LAG, m) for m in (SAME, NEGOTIATED, WEIGHTED))
        won, of = wins(other, fixed, "displacement")
        texts.append(f"{brief(name)}: clearly closer at {won} of {of} ε; at ε {MODERATE:.2f} "
                     f"{number(other.loc[MODERATE, 'displacement'])} against {number(fixed.loc[MODERATE, 'displacement'])} "
                     f"ranks, the source's form {number(weighted.loc[MODERATE, 'displacement'])}")
        tests.append(2 * won > of)
    yield Claim("Figure 4", "Rank trajectories of negotiated ε are tighter than those of fixed ε.", NO_NUMBER,
                "; ".join(texts), judged(*tests), "mean distance of the Top-10 ranks from the diagonal clearly smaller "
                "(beyond two standard errors) at more than half of the ε; public form")
    texts, tests = [], []
    for name in _words(results, "UCI Appliances"):
        central, unbounded, other = (at(table, name, FEATURE_LAG, m) for m in (CENTRAL, UNBOUNDED, NEGOTIATED))
        won, of = wins(other, central, "displacement")
        versus, _ = wins(other, unbounded, "displacement")
        texts.append(f"{brief(name)}: clearly closer than central at {won} of {of} ε, than unbounded at {versus}; at the "
                     f"largest ε {number(other['displacement'].iloc[-1])} against "
                     f"{number(central['displacement'].iloc[-1])} and {number(unbounded['displacement'].iloc[-1])} ranks")
        tests.append(2 * won > of)
    yield Claim("Figure 5", "Central DP-SHAP's Top-10 ranks cross; those of HXAI (negotiated) stay near the diagonal.",
                NO_NUMBER, "; ".join(texts), judged(*tests), "mean distance from the diagonal clearly smaller than "
                "central's at more than half of the ε")
    texts, tests = [], []
    for name in _words(results):
        line = at(table, name, FEATURE_LAG, SAME)
        before, after = line.iloc[:-1], line.iloc[1:]
        falls = -np.diff(line["cosine"])
        clear = int((falls > 2 * _error(before, after, "cosine")).sum())
        texts.append(f"{brief(name)}: {clear} clear falls of {int((falls > 0).sum())} in {len(falls)} steps")
        tests.append(clear == 0)
    yield Claim("Theory", "E[U] never falls as ε grows.", "a proof", "; ".join(texts), judged(*tests),
                "HXAI (same ε): no step of the mean cosine falls by more than twice its standard error")


def _own(results: Sequence[Result], table: pd.DataFrame) -> Iterator[Claim]:
    texts, tests = [], []
    for name in _words(results):
        laplace, gauss = ((at(table, name, FEATURE_LAG, m)["mae"] / at(table, name, FEATURE_LAG, c)["mae"]).median()
                          for m, c in ((SAME, CENTRAL), (SAME_GAUSS, CENTRAL_GAUSS)))
        both = at(table, name, FEATURE_LAG, SAME_GAUSS)["mae"] / at(table, name, FEATURE_LAG, SAME)["mae"]
        texts.append(f"{brief(name)}: local / central MAE {number(laplace)} with Laplace, {number(gauss)} with Gaussian; "
                     f"Gaussian / Laplace {number(both.median())}")
        tests.append(bool((laplace > 1) == (gauss > 1)))
    yield Claim("Footnote", "A Gaussian mechanism mainly changes the calibration of the noise.", NO_NUMBER,
                "; ".join(texts), judged(*tests), "the order of local and central noise stays (medians over ε)")
    texts, tests = [], []
    for result in results:
        if result.setting.coordinates != FEATURE_LAG:
            continue
        name = result.setting.words
        ratio = (at(table, name, FEATURE_LAG, SAME)["mae"] / at(table, name, FEATURE_LAG, ONE)["mae"]).median()
        texts.append(f"{brief(name)}: {number(ratio)} times smaller MAE (closed form "
                     f"{number(metrics.expected_abs_sum_of_laplace(result.homes))}), cosine at ε {MODERATE:.2f} "
                     f"{number(at(table, name, FEATURE_LAG, ONE)['cosine'][MODERATE])} against "
                     f"{number(at(table, name, FEATURE_LAG, SAME)['cosine'][MODERATE])}")
        tests.append(bool(ratio > 2))
    yield Claim("–", "One noise for the zone without a curator is better than noise in every home.", "not in the source",
                "; ".join(texts), judged(*tests), "MAE at least halved (median over ε), on every set", own=True)
    texts, tests = [], []
    for result in results:
        if result.setting.coordinates != FEATURE_LAG:
            continue
        local, one = (homes_needed(result, 0.9999, MODERATE, flag) for flag in (True, False))
        texts.append(f"{brief(result.setting.words)}: {local:,.0f} with noise in every home, {one:,.0f} with one noise "
                     f"(here {result.homes})")
        tests.append(local <= result.homes)
    yield Claim("Table III", f"Utility .9999 at ε {MODERATE:.2f} is within reach of such a zone.", "ε and N not given",
                "; ".join(texts), judged(*tests), "homes like these that the closed form asks for, at most those here",
                own=True)
    texts, tests = [], []
    for name in _words(results):
        line = at(table, name, FEATURE_LAG, NEGOTIATED)
        fixed = at(table, name, FEATURE_LAG, SAME)
        granted = line["granted"].iloc[-1]
        equal = float(np.interp(math.log(max(granted, 1e-9)), np.log(fixed.index), fixed["cosine"]))
        texts.append(f"{brief(name)}: mean ε granted {number(granted)} of {number(line.index[-1])} asked, cosine "
                     f"{number(line['cosine'].iloc[-1])}; the same ε for all at that mean gives {number(equal)}")
        error = line["cosine_sd"].iloc[-1] / math.sqrt(line["n"].iloc[-1])
        tests.append(bool(line["cosine"].iloc[-1] - 2 * error > equal))
    yield Claim("Figure 2", "At the mean ε that it grants, negotiation beats the same ε for all.", "not in the source",
                "; ".join(texts), judged(*tests),
                "at the largest ε asked: mean cosine less two standard errors; uniform interpolated in log ε", own=True)
