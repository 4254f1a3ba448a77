"""The source's counted claims, recounted from a run's rows.

A claim is a list of cells, each true, false or not run under a view (regime, epsilon asked, sampler). The verdict is that of
the source's own view, as published with the literal sampler, or where that was not run the first that was; the other views
stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from fedenergy.report.words import number
from simulations.objectives import figures, paper
from simulations.objectives.paper import EPS, EPS_DYNAMIC, STATIC, V_DYNAMIC, V
from simulations.objectives.runs import Results
from simulations.objectives.settings import AS_PUBLISHED, LEARNED, LITERAL, NEEDS, TRUE_EPSILON, TUNED, Need
from simulations.objectives.tables import Cells, View, averaged, best_free, decrease, source_epsilon, views
from simulations.pages import FAILS, HOLDS, OPEN_QUESTION, PARTLY, Claim

if TYPE_CHECKING:
    import pandas as pd

    from simulations.objective_conditioning import Objectives

Test = Callable[[View], bool | None]
HOLDS_WHERE_RUN = "holds where run"


@dataclass(frozen=True)
class Count:
    """How many tests are true, of those run, of all."""

    true: int
    run: int
    total: int

    def __str__(self) -> str:
        return f"{self.true} of {self.run}" + ("" if self.run == self.total else f" run ({self.total - self.run} not run)")


def listed(counts: Sequence[tuple[str, str, Count]]) -> str:
    """(regime, sampler, count) rows as text; what was not run is said once where it is the same everywhere.

    >>> listed([("as published", "literal", Count(3, 3, 9)), ("as published", "clip_x0", Count(1, 3, 9))])
    'as published: literal 3 of 3, clip_x0 1 of 3 (6 of 9 cells not run)'
    """
    if not counts:
        return "not run"
    missing = {(one.total - one.run, one.total) for _, _, one in counts}
    end = "" if len(missing) > 1 or not min(missing)[0] else "({} of {} cells not run)".format(*min(missing))
    parts: dict[str, list[str]] = {}
    for regime, sampler, one in counts:
        parts.setdefault(regime, []).append(f"{sampler} {one}" if len(missing) > 1 else f"{sampler} {one.true} of {one.run}")
    return " ".join(filter(None, ["; ".join(f"{regime}: {', '.join(found)}" for regime, found in parts.items()), end]))


def count(tests: Sequence[Test], view: View) -> Count:
    found = [test(view) for test in tests]
    run = [one for one in found if one is not None]
    return Count(sum(run), len(run), len(found))


def verdict(counted: Count, exceptions: int = 0) -> str:
    """All cells but `exceptions` (0 where some were not run) true: holds; none true: does not hold; none run: not tested.

    >>> verdict(Count(59, 60, 60), 1), verdict(Count(3, 3, 60)), verdict(Count(1, 3, 3)), verdict(Count(0, 0, 9))
    ('holds', 'holds where run', 'holds in part', 'cannot be tested here')
    """
    if not counted.run:
        return OPEN_QUESTION
    if counted.true and counted.run - counted.true <= (exceptions if counted.run == counted.total else 0):
        return HOLDS if counted.run == counted.total else HOLDS_WHERE_RUN
    return PARTLY if counted.true else FAILS


def less(cells: Cells, where: tuple, low: str, high: Iterable[str], metrics: Sequence[str], epsilon: float | None,
         view: View) -> bool | None:
    """Whether `low` is below every one of `high` in every metric; None where any was not run, or at another epsilon."""
    if epsilon is not None and view.asked != epsilon:
        return None
    pairs = [(cells.get(*where, low, view, m), cells.get(*where, name, view, m)) for name in high for m in metrics]
    return None if any(x is None for pair in pairs for x in pair) else all(a < b for a, b in pairs)


def below(cells: Cells, need: Need, low: str, high: Iterable[str], metrics: Sequence[str]) -> list[Test]:
    """One test per cell of a table; a cell at another epsilon than 10 counts in the true-epsilon views only."""
    several = len(need.epsilons) > 1
    return [partial(less, cells, (dataset, pattern, rate), low, tuple(high), tuple(metrics), epsilon if several else None)
            for dataset, pattern, rate, epsilon in need.cells()]


def over_datasets(need: Need, test: Callable[[str, View], bool | None]) -> list[Test]:
    return [partial(test, dataset) for dataset in need.datasets]


def figure_claims(found: Mapping[str, Sequence[float]] | None) -> list[Claim]:
    """What the source says about its figure 2, from our curves; [] where they were not drawn."""
    if found is None:
        return []
    late = [k for k, t in enumerate(found["t"]) if t >= figures.LATE]
    early = [k for k, t in enumerate(found["t"]) if t < figures.LATE]

    def middle(name: str, at: Sequence[int]) -> float:
        return float(np.median([found[name][k] for k in at]))
    eps, v, dynamic = (middle(name, late) for name in (EPS, V, V_DYNAMIC))
    most, implied = max(found[EPS]), max(found[figures.IMPLIED])
    rule = f"medians over t ≥ {figures.LATE}"
    return [
        Claim("Figure 2", "the norm of eps grows markedly at late timesteps", "rises to the axis' 1e9",
              f"{number(middle(EPS, early))} before, {number(eps)} late", HOLDS if eps > 2 * middle(EPS, early) else FAILS,
              f"{rule}: more than twice that before"),
        Claim("Figure 2", "late, the norm of unweighted v is below that of eps", "said of the figure",
              f"v {number(v)}, eps {number(eps)}", HOLDS if v < eps else FAILS, rule),
        Claim("Figure 2", "late, v dynamic is attenuated most", "said of the figure", f"v dynamic {number(dynamic)}",
              HOLDS if dynamic < min(eps, v) else FAILS, rule),
        Claim("Figure 2", "an eps network's norm reaches the 1e9 of the source's axis", "1e9",
              f"largest {number(most)}; with the loss on the implied x0, {number(implied)}",
              HOLDS if most >= 1e8 else FAILS, "at least 1e8 at some t", own=True)]


class Recount:
    """Claims of a run, in the source's order."""

    def __init__(self, study: Objectives, results: Results, table: pd.DataFrame):
        self.study, self.results, self.table, self.cells = study, results, table, Cells(table)
        self.views = views(study)
        self.first = View(AS_PUBLISHED, paper.EPSILON, LITERAL)

    def shown(self, tests: Sequence[Test]) -> str:
        """The count under every view that ran, by regime."""
        counts = {view: one for view in self.views if (one := count(tests, view)).run}
        return listed([(view.regime_words, view.sampler, one) for view, one in counts.items()])

    def counted(self, figure: str, claim: str, source: str, tests: Sequence[Test], rule: str, exceptions: int = 0) -> Claim:
        one, rule = self._judged(tests, rule)
        return Claim(figure, claim, source, self.shown(tests), verdict(one, exceptions), rule)

    def _judged(self, tests: Sequence[Test], rule: str) -> tuple[Count, str]:
        """The count under the first view that ran, and the rule, which names it where it is not the source's own."""
        view = next((view for view in self.views if count(tests, view).run), self.first)
        return count(tests, view), rule if view == self.first else f"{rule}; judged at {view.words} (the source's: not run)"

    def claims(self) -> list[Claim]:
        """Every counted claim, then our own questions."""
        return [*self._tables(), *self._gradients(), *self._averages(), *self._own()]

    def _tables(self) -> list[Claim]:
        c, every = self.cells, ("mse", "mae")
        n = NEEDS
        return [
            self.counted("Table 1", "v dynamic is below eps in MSE, MAE and RMSE", "15 of 15",
                         below(c, n["1"], V_DYNAMIC, [EPS], ("mse", "mae", "rmse")), "15 set-pattern pairs at 50 %"),
            self.counted("Table 2", "unweighted v is below eps in MSE and MAE", "9 of 9",
                         below(c, n["2"], V, [EPS], every), "9 pairs at 50 %"),
            self.counted("Table 2", "v dynamic has the lowest MSE and MAE of five objectives", "9 of 9",
                         below(c, n["2"], V_DYNAMIC, [EPS, V, *STATIC], every), "9 pairs at 50 %"),
            self._mixed("Table 2", "a static weight is sometimes below and sometimes above unweighted v (MSE)",
                        "ETTh1, block: 49.30 and 35.68 against 29.80",
                        [t for s in STATIC for t in below(c, n["2"], s, [V], ("mse",))], "18 comparisons: both occur"),
            self.counted("Table 5", "v dynamic has the lowest MAE, averaged over patterns", "20 of 20", self._table_5(),
                         "20 set-rate pairs, all three patterns run"),
            self.counted("Table 6", "both v forms are below eps when forecasting (MSE, MAE)", "15 of 15",
                         [self._both(*t) for t in zip(below(c, n["6"], V, [EPS], every),
                                                      below(c, n["6"], V_DYNAMIC, [EPS], every))], "15 set-horizon pairs"),
            self.counted("Table 6", "v dynamic is the lowest when forecasting (MSE, MAE)", "15 of 15",
                         below(c, n["6"], V_DYNAMIC, [EPS, V], every), "15 set-horizon pairs"),
            self._by_epsilon("Table 7", "v dynamic is below PatchTST, TimesNet, iTransformer, TimeDiT (MSE, MAE)", "6 of 6",
                             below(c, n["7"], V_DYNAMIC, LEARNED.values(), every), "3 sets at ε 8 and 10, random 50 %"),
            self.counted("Table 8", "tuned eps is below eps (MAE, RMSE)", "12 of 12",
                         self._table_8(TUNED, [EPS]), "3 sets; means over rates and over horizons"),
            self.counted("Table 8", "unweighted v is below both (MAE, RMSE)", "12 of 12",
                         self._table_8(V, [EPS, TUNED]), "3 sets; means over rates and over horizons"),
            self.counted("Table 8", "tuning by validation loss chooses C = 1", "3 of 3",
                         over_datasets(n["8"], self._chose_one), "3 sets, every seed"),
            self.counted("Table C.13", "the sd of MAE over seeds is lower for v dynamic than for eps", "9 of 9",
                         below(c, n["C.13"], V_DYNAMIC, [EPS], ("mae_sd",)), "9 pairs at 50 %; at least 2 seeds"),
            self.counted("Table D.12", "v dynamic has the lowest MSE of eps, v, v dynamic", "60 of 60",
                         below(c, n["D.12"], V_DYNAMIC, [EPS, V], ("mse",)), "60 cells"),
            self.counted("Table D.12", "v dynamic has the lowest MAE", "59 of 60 (not ETTh1, outage, 30 %)",
                         below(c, n["D.12"], V_DYNAMIC, [EPS, V], ("mae",)), "60 cells, one exception", 1),
            self.counted("Table F.14", "v dynamic is below both static weights (MSE)", "59 of 60",
                         below(c, n["F.14"], V_DYNAMIC, STATIC, ("mse",)), "60 cells, one exception", 1),
            self.counted("Table F.14", "v dynamic is below both static weights (MAE)", "56 of 60",
                         below(c, n["F.14"], V_DYNAMIC, STATIC, ("mae",)), "60 cells, four exceptions", 4),
            *(self._mixed("Table F.15", f"dynamic weights on eps improve some cells and harm others ({m.upper()})", told,
                          below(c, n["F.15"], EPS_DYNAMIC, [EPS], (m,)), "60 cells: both occur")
              for m, told in (("mse", "28 of 60 better"), ("mae", "27 of 60 better"))),
            self._by_epsilon("Table H.16", "v dynamic is below eps and v at ε 6, 8, 10 (MSE, MAE)", "27 of 27",
                             below(c, n["H.16"], V_DYNAMIC, [EPS, V], every), "27 cells; ε 6 and 8 at a true ε only, as the "
                             "source gives no σ for them"),
            self.counted("Table F.14", "mean over 12 conditions: v dynamic is below both static weights (MSE, MAE)",
                         "5 of 5", over_datasets(n["F.14"], self._mean_below), "5 sets, all 12 conditions run"),
        ]

    @staticmethod
    def _both(one: Test, two: Test) -> Test:
        def test(view: View) -> bool | None:
            found = one(view), two(view)
            return None if None in found else all(found)
        return test

    def _mixed(self, figure: str, claim: str, source: str, tests: Sequence[Test], rule: str) -> Claim:
        one, rule = self._judged(tests, rule)
        said = OPEN_QUESTION if not one.run else FAILS if one.true in (0, one.run) else HOLDS if one.run == one.total \
            else HOLDS_WHERE_RUN
        return Claim(figure, claim, source, self.shown(tests), said, rule)

    def _by_epsilon(self, figure: str, claim: str, source: str, tests: Sequence[Test], rule: str) -> Claim:
        """A claim over several epsilons: as published gives 10 only; the true-epsilon views are added up by sampler."""
        parts = []
        for sampler in self.study.samplers:
            found = [count(tests, view) for view in self.views if view.regime == TRUE_EPSILON and view.sampler == sampler]
            if (run := sum(one.run for one in found)):
                parts.append(("true ε", sampler, Count(sum(one.true for one in found), run, len(tests))))
        published = count(tests, self.first)
        judged = next((one for _, name, one in parts if name == LITERAL), published)
        first = [("as published", LITERAL, published)] if published.run else []
        return Claim(figure, claim, source, listed(first + parts), verdict(judged),
                     f"{rule}; judged at the true ε, literal sampler")

    def _table_5(self) -> list[Test]:
        def test(dataset: str, rate: float, view: View) -> bool | None:
            mae = {m: averaged(self.cells, dataset, [(p, rate) for p in paper.PATTERNS], m, view, "mae")
                   for m in (EPS, V, V_DYNAMIC)}
            return None if None in mae.values() else mae[V_DYNAMIC] < min(mae[EPS], mae[V])
        return [partial(test, dataset, rate) for dataset in paper.DATASETS for rate in paper.RATES]

    def _table_8(self, low: str, high: Sequence[str]) -> list[Test]:
        groups = [*([(p, rate) for rate in paper.RATES] for p in paper.PATTERNS), [("suffix", h) for h in (24, 48, 72)]]

        def test(dataset: str, conditions: list, view: View) -> bool | None:
            values = {(m, name): averaged(self.cells, dataset, conditions, name, view, m)
                      for name in (low, *high) for m in ("mae", "rmse")}
            if None in values.values():
                return None
            return all(values[(m, low)] < values[(m, name)] for name in high for m in ("mae", "rmse"))
        return [partial(test, dataset, group) for dataset in NEEDS["8"].datasets for group in groups]

    def _chose_one(self, dataset: str, view: View) -> bool | None:
        costs = self.results.costs
        if "checkpoint" not in costs or view.sampler != self.study.samplers[0]:
            return None
        here = costs[(costs["dataset"] == dataset) & (costs["method"] == TUNED) & (costs["regime"] == view.regime)
                     & (costs["asked"] == view.asked)]
        return bool((here["clip"] == 1.0).all()) if len(here) else None

    def _mean_below(self, dataset: str, view: View) -> bool | None:
        need = NEEDS["F.14"]
        found = {(m, name): averaged(self.cells, dataset, need.conditions, name, view, m)
                 for name in need.methods for m in ("mse", "mae")}
        if None in found.values():
            return None
        return all(found[(m, V_DYNAMIC)] < found[(m, name)] for name in STATIC for m in ("mse", "mae"))

    def _averages(self) -> list[Claim]:
        need, found = NEEDS["3"], []

        def drop(before: str, after: str, metric: str, dataset: str, view: View) -> float | None:
            return decrease(*(averaged(self.cells, dataset, need.conditions, m, view, metric) for m in (before, after)))

        def within(before: str, after: str, metric: str, dataset: str, view: View) -> bool | None:
            value = drop(before, after, metric, dataset, view)
            low, high = paper.TABLE_3_RANGES[(before, after)][metric]
            return None if value is None else low <= value <= high

        def sign(dataset: str, view: View) -> bool | None:
            values = [drop(EPS, EPS_DYNAMIC, m, dataset, view) for m in ("mse", "mae")]
            return None if None in values else all((ours > 0) == (told > 0)
                                                   for ours, told in zip(values, paper.TABLE_3[dataset]))
        found.append(self.counted("Table 3", "dynamic weights on eps: better on ETTh1, Electricity, Household, "
                                  "worse on ETTm1, Appliances", "+3.34, −6.88, +0.57, +12.04, −19.12 % MSE", 
                                  over_datasets(need, sign), "sign of both decreases, 12 conditions"))
        for (before, after), ranges in paper.TABLE_3_RANGES.items():
            for metric, (low, high) in ranges.items():
                found.append(self.counted(
                    "Table 3", f"{before} → {after} lowers mean {metric.upper()}", f"{low:g} to {high:g} %",
                    over_datasets(need, partial(within, before, after, metric)), "decrease within the source's range"))
        return found

    def _gradients(self) -> list[Claim]:
        norms, found = self.results.norms, []

        def at(dataset: str, method: str, name: str) -> float | None:
            if norms.empty:
                return None
            here = norms[(norms["dataset"] == dataset) & (norms["method"] == method) & (norms["regime"] == AS_PUBLISHED)]
            return float(here[name].mean()) if len(here) else None

        def tests(check: Callable[[str], bool | None]) -> list[Test]:
            return [lambda view, d=dataset: check(d) for dataset in NEEDS["2"].datasets]

        def several(dataset: str, wanted: Sequence[tuple[str, str]], holds: Callable[..., bool]) -> bool | None:
            values = [at(dataset, *one) for one in wanted]
            return None if None in values else bool(holds(*values))

        rows = (("p95 and p99 of the norms: eps > v > v dynamic", "ETTh1 p99: 38.9 > 13.8 > 12.7",
                 [(m, p) for p in ("p95", "p99") for m in (EPS, V, V_DYNAMIC)],
                 lambda a, b, c, d, e, f: a > b > c and d > e > f, "3 sets"),
                ("eps and unweighted v are clipped always", "1.000", [(EPS, "clipped"), (V, "clipped")],
                 lambda a, b: min(a, b) >= 0.9995, "3 sets, fraction rounds to 1.000"),
                ("v dynamic lowers the clip fraction, which stays above 91 %", "0.944, 0.948, 0.917",
                 [(V, "clipped"), (V_DYNAMIC, "clipped")], lambda a, b: 0.91 < b < a, "3 sets"))
        for claim, told, wanted, holds, rule in rows:
            checks = tests(partial(several, wanted=wanted, holds=holds))
            one = count(checks, self.first)
            shown = "; ".join(f"{d}: {', '.join(f'{m} {n} {v:.3g}' for m, n in wanted if (v := at(d, m, n)) is not None)}"
                              for d in NEEDS["2"].datasets if at(d, V, "mean") is not None) or "not run"
            found.append(Claim("Table 4", claim, told, shown, verdict(one), f"{rule}; as published, last 20 % of the steps"))
        found.append(self._attenuation())
        return found

    def _attenuation(self) -> Claim:
        rows, told = self.results.attenuations, "0.8–1.1 % and 98.5–99.1 %"
        claim = "attenuation of v dynamic: about 1 % at t 0–99, about 99 % at t 900–999"
        if rows.empty:
            return Claim("Table I.17", claim, told, "not run", OPEN_QUESTION, "ratio of medians by bin")
        low, high = (100 * rows[rows["low"] == at]["ratio_of_medians"] for at in (0, 900))
        exact = 100 * rows[rows["low"] == 900]["median"]
        good = bool(low.between(0.5, 1.5).all() and high.between(98, 100).all())
        return Claim("Table I.17", claim, told, f"{low.min():.2f} to {low.max():.2f} % and {high.min():.2f} to "
                     f"{high.max():.2f} % (median of the draws' own: {exact.mean():.2f} %)", HOLDS if good else FAILS,
                     "ratio of medians: 0.5–1.5 % and 98–100 % in every run")

    def _own(self) -> list[Claim]:
        costs, found = self.results.costs, []
        published = costs[costs["regime"] == AS_PUBLISHED] if len(costs) else costs
        if len(published):
            worst = published[published["method"] != TUNED].groupby("dataset", sort=False).first()
            cost = {name: source_epsilon(q) for name, q in worst["q"].items()}
            told = [f"{name}: {number(cost[row.Index], 4)} (this run's {row.steps:,} steps at σ {row.sigma:g}: "
                    f"{number(row.epsilon, 4)})" for row in worst.itertuples() for name in [row.Index]]
            kept = [value <= paper.EPSILON for value in cost.values()]
            found.append(Claim("Privacy", "σ 1.5 and 100,000 steps cost ε 10 at δ 1e-5", "10", "; ".join(told),
                               HOLDS if all(kept) else PARTLY if any(kept) else FAILS,
                               "PLD of Poisson batches of this run's windows", own=True))
        best = best_free(self.table)

        def free(dataset: str, pattern: str, rate: float, view: View, method: str = V_DYNAMIC) -> bool | None:
            ours, base = self.cells.get(dataset, pattern, rate, method, view, "mse"), best.get((dataset, pattern, rate))
            return None if ours is None or base is None else bool(ours < base)
        places = [tuple(key) for key in best.index]
        if places:
            for method in [m for m in (V_DYNAMIC, "x0 over linear") if m in self.study.methods]:
                tests = [lambda view, p=place, m=method: free(*p, view, m) for place in places]
                found.append(Claim("Baselines", f"{method} is below the best free baseline (MSE)", "not compared",
                                   self.shown(tests), verdict(count(tests, self.first)), "every cell of this run", own=True))
            if {EPS, V_DYNAMIC} <= set(self.study.methods):
                found.append(self._sampler(places))
        return found

    def _sampler(self, places: list[tuple]) -> Claim:
        """Is the ranking eps >> v dynamic the objective's, or the sampler's?"""
        parts, factors = [], {}
        for view in [v for v in self.views if v.regime == AS_PUBLISHED]:
            pairs = [(self.cells.get(*p, EPS, view, "mse"), self.cells.get(*p, V_DYNAMIC, view, "mse")) for p in places]
            ratios = [a / b for a, b in pairs if a is not None and b is not None]
            if ratios:
                factors[view.sampler] = sorted(ratios)[len(ratios) // 2]
                parts.append(f"{view.sampler}: median MSE of eps / v dynamic {number(factors[view.sampler])}")
        other = [value for name, value in factors.items() if name != LITERAL]
        said = OPEN_QUESTION if LITERAL not in factors or not other else (
            HOLDS if min(other) > 0.5 * factors[LITERAL] else FAILS)
        return Claim("Sampler", "the gap between eps and v dynamic is the objective's, not the sampler's",
                     "one sampler only", "; ".join(parts) or "not run", said,
                     "as published: with x0 clipped, or a later start, more than half of the factor stays", own=True)
