"""One noise for a whole zone: how far SecureSum reaches, beside local noise, in one table.

    python -m simulations.one_noise [--quick] [--json FILE]

Two kinds of rows. "boxes": 50 simulated homes, explained, charged and answered by the real boxes over a grid, in
protocol mode with masks, drop-outs and abort. "mechanism": the same noise shares, masks and sums as pure functions on
known summaries, many draws at once; the only way to 10,000 homes here, and in the ideal mode (10,000 homes would need
10**8 key agreements). Ratios are MAE of ZonalSum over MAE of SecureSum, with 95 % bootstrap intervals.
"""

from __future__ import annotations

import argparse
import csv
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

import fedenergy as fe
from fedenergy import ids, metrics
from fedenergy.box.agreement import AgreementTerms
from fedenergy.config import Engine
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import play_plan
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.mechanisms import Laplace, SimulationNoise, discrete_laplace_many
from fedenergy.privacy.pairwise_masks import Party, Session, open_sum
from fedenergy.privacy.secure_sum import Summer, laplace_share_many, pad, seal
from fedenergy.privacy.sum_protocol import SumProtocol
from simulations.strategies_compared import PerHome
from strategies.secure_sum import SecureSum
from strategies.zonal_sum import ZonalSum

EPSILON, GENEROUS, CAUTIOUS = 1.05, 6.73, 0.16
CLIP = 50.0              # l1 bound of a home's month of attributions, kWh^2
D = 7
APPLIANCES = ["Heating", "Fridge", "Fan", "Oven", "Washing Machine", "Dryer", "Cooler"]
DROP = 0.2
RESAMPLES = 2_000
ONE = "SecureSum, protocol"
DROPPED = "SecureSum, protocol, tau .8, 20 % drop out"
STRICT = "SecureSum, protocol, tau 1, 20 % drop out"
STRATEGIES = {"ZonalSum": ZonalSum, "SecureSum, ideal": SecureSum, ONE: lambda: SecureSum("protocol"),
              DROPPED: lambda: SecureSum("protocol", tau=0.8, drop_out=DROP),
              STRICT: lambda: SecureSum("protocol", drop_out=DROP)}


@dataclass(frozen=True)
class Size:
    """How much is played. homes, seeds, steps (hours), trees: of the boxes; large: homes of the large zone;
    draws, large_draws: vectors of D numbers on the mechanism path."""

    homes: int = 50
    seeds: int = 30
    steps: int = 744
    trees: int = 100
    large: int = 10_000
    draws: int = 1_500
    large_draws: int = 250

    @staticmethod
    def quick() -> Size:
        """Fewer draws, so wide intervals, and a large zone of 1,000, which cannot reach the goal of 10,000."""
        return Size(seeds=3, trees=20, large=1_000, draws=150, large_draws=40)


@dataclass(frozen=True)
class Row:
    """One line of the table. ratio: MAE of ZonalSum over this one's, with its interval; expected: its closed form.

    answers   homes in the sum, mean over the draws in which it opened; opened: share of them; epsilon: largest charge
    cosine    mean against the clipped sum of the homes that answered, with its interval; NaN: nothing opened
    """

    case: str
    path: str
    strategy: str
    homes: int
    opened: float
    answers: float
    epsilon: float
    ratio: float
    low: float
    high: float
    expected: float
    cosine: float
    cosine_low: float
    cosine_high: float


@dataclass(frozen=True)
class Goal:
    """What was to be reached, and the figure that decides it."""

    text: str
    reached: float
    needed: float

    @property
    def met(self) -> bool:
        return bool(self.reached >= self.needed)


def ratio_interval(above: np.ndarray, below: np.ndarray, name: str) -> tuple[float, float, float]:
    """mean(above) / mean(below) of two samples of absolute errors (any shape; rows are the independent draws), and its
    95 % percentile interval over resampled rows."""
    draw = ids.stream(0, "bootstrap", name)
    means = []
    for sample in (above, below):
        rows = sample.reshape(len(sample), -1).mean(axis=1)
        means.append((rows.mean(), rows[draw.integers(0, len(rows), (RESAMPLES, len(rows)))].mean(axis=1)))
    low, high = np.quantile(means[0][1] / means[1][1], (0.025, 0.975))
    return float(means[0][0] / means[1][0]), float(low), float(high)


# boxes

def through_boxes(case: str, size: Size, epsilon: float, policy: Any, expected: dict[str, float]) -> list[Row]:
    """50 simulated homes through boxes, ledger and grid: one row per strategy."""
    homes = fe.simulate_households(size.homes, steps=size.steps, step_minutes=60, seed=1, appliances=APPLIANCES)
    with tempfile.TemporaryDirectory() as folder:
        plan = plan_from_objects(
            homes, fe.Explain(lags=[1, 24, 168], clip=CLIP, trees=size.trees), fe.Query("appliances", epsilon),
            [_named(name, make) for name, make in STRATEGIES.items()], policy=policy, seeds=tuple(range(size.seeds)),
            agreement=AgreementTerms(cap=GENEROUS), engine=Engine(workers=0), folder=Path(folder) / "run")
        with open(play_plan(plan) / "metrics.csv", newline="") as file:
            found: dict[tuple[str, str], dict[str, float]] = {}
            for row in csv.DictReader(file):
                found.setdefault((row["strategy"], row["metric"]), {})[row["seed"]] = float(row["value"])
    rows = []
    local = np.array(list(found["ZonalSum", "mae"].values()))
    for name in STRATEGIES:
        answers = np.array(list(found[name, "answers"].values()))
        spent = max(found[name, "epsilon_spent_max"].values())
        errors = np.array(list(found.get((name, "mae"), {}).values()))
        if not errors.size:
            rows.append(Row(case, "boxes", name, size.homes, 0.0, 0.0, spent, *[float("nan")] * 7))
            continue
        mean, _, low, high = metrics.mean_interval(list(found[name, "cosine"].values()))
        rows.append(Row(case, "boxes", name, size.homes, float((answers > 0).mean()), float(answers[answers > 0].mean()),
                        spent, *ratio_interval(local, errors, f"{case} {name}"), expected.get(name, float("nan")),
                        mean, low, high))
    return rows


def _named(name: str, make: Callable[[], Any]) -> Callable[[], Any]:
    def build() -> Any:
        return make()
    build.__name__ = name
    return build


# mechanism

def zone(homes: int) -> np.ndarray:
    """(homes, D) int64 known summaries on the grid: one mix of appliances, l1 norms evenly from .4 C to C."""
    mix = np.array([0.30, 0.22, 0.17, 0.12, 0.09, 0.06, 0.04])
    return Laplace(CLIP).grid.encode(CLIP * np.linspace(0.4, 1.0, homes)[:, None] * mix)


def local_errors(homes: int, draws: int, epsilon: float = EPSILON) -> np.ndarray:
    """(draws, D) errors of ZonalSum, grid steps: the sum of every home's own noise."""
    total = np.zeros(draws * D, np.int64)
    names, scale = [f"h{i}" for i in range(homes)], Laplace(CLIP).scale(micro(epsilon))
    for start in range(0, homes, 100):
        sources = [SimulationNoise(1).source(name, "local") for name in names[start:start + 100]]
        total += discrete_laplace_many(sources, [scale] * len(sources), total.size).sum(axis=0)
    return total.reshape(draws, D)


def one_noise_errors(homes: int, draws: int, protocol: SumProtocol, gone: int = 0, ideal: bool = False) -> np.ndarray:
    """(draws, D) errors of SecureSum, grid steps: shares drawn, masked, sent, opened; `gone` homes come too late.

    Every draw is a query of its own; their vectors lie side by side under one run of the protocol.
    """
    names = [f"h{i:05d}" for i in range(homes)]
    scale, size = Laplace(CLIP).scale(micro(EPSILON)), draws * D
    z = np.tile(zone(homes), draws)
    shares = np.concatenate([laplace_share_many(
        [SimulationNoise(2).source(name, protocol.mechanism) for name in names[start:start + 100]], scale,
        protocol.parties(homes), size) for start in range(0, homes, 100)])
    stay = names[:homes - gone]
    if ideal:
        keys = {name: SimulationNoise(2).pad_key(name) for name in names}
        opened = Summer("q", keys).open({name: seal(z[at], shares[at], pad(keys[name], name, "q", size))
                                         for at, name in enumerate(names)})
    else:
        session = Session("q", tuple(names), protocol)
        parties = {name: Party(session, name, SimulationNoise(2).pad_key(name)) for name in names}
        roster = {name: party.advertise() for name, party in parties.items()}
        posted = {name: party.share_keys(roster) for name, party in parties.items()}
        sent = {name: seal(z[at], shares[at], parties[name].mask(roster, posted, size))
                for at, name in enumerate(names)}
        opened = open_sum(session, roster, posted, {name: sent[name] for name in stay},
                          {name: parties[name].unmask(roster, posted, stay) for name in stay})
    return (opened - z[:len(stay)].sum(axis=0)).reshape(draws, D)


def mechanism_row(case: str, strategy: str, homes: int, stay: int, local: np.ndarray, errors: np.ndarray,
                  expected: float) -> Row:
    """One row from errors in grid steps; the cosine is that of the zone's sum with each draw's error."""
    truth = zone(homes)[:stay].sum(axis=0).astype(float)
    cosines = [metrics.cosine(truth + error, truth) for error in errors]
    mean, _, low, high = metrics.mean_interval(cosines)
    return Row(case, "mechanism", strategy, homes, 1.0, float(stay), EPSILON,
               *ratio_interval(np.abs(local), np.abs(errors), f"{case} {strategy}"), expected, mean, low, high)


def through_mechanism(size: Size) -> Iterable[Row]:
    """Rows at N homes in protocol mode, and at `large` homes in the ideal mode."""
    n, stay = size.homes, size.homes - int(DROP * size.homes)
    exact = metrics.expected_abs_sum_of_laplace
    local, case = local_errors(n, size.draws), f"N = {n}, epsilon {EPSILON}"
    yield mechanism_row(case, ONE, n, n, local, one_noise_errors(n, size.draws, SumProtocol()), exact(n))
    tolerant = SumProtocol(1 - DROP)
    yield mechanism_row(case, DROPPED, n, stay, local,
                        one_noise_errors(n, size.draws, tolerant, gone=n - stay), exact(n))
    yield mechanism_row(case, "SecureSum, protocol, tau .8, all stay", n, n, local,
                        one_noise_errors(n, size.draws, tolerant), float("nan"))
    local = local_errors(size.large, size.large_draws)
    yield mechanism_row(f"N = {size.large:,}, epsilon {EPSILON}", "SecureSum, ideal", size.large, size.large, local,
                        one_noise_errors(size.large, size.large_draws, SumProtocol(), ideal=True), exact(size.large))


# the table

def goals_of(rows: Iterable[Row], size: Size) -> list[Goal]:
    """Whether the reach that was promised is there."""
    at = {(row.case, row.path, row.strategy): row for row in rows}
    small, large = f"N = {size.homes}, epsilon {EPSILON}", f"N = {size.large:,}, epsilon {EPSILON}"
    mixed = mixed_case(size)
    return [
        Goal(f"{small}: MAE at least 7 times lower (mechanism, mean)", at[small, "mechanism", ONE].ratio, 7),
        Goal(f"{small}: MAE at least 7 times lower (mechanism, low end)", at[small, "mechanism", ONE].low, 7),
        Goal(f"{small}: MAE at least 7 times lower (boxes, mean)", at[small, "boxes", ONE].ratio, 7),
        Goal(f"{small}: cosine at least .9 (boxes, low end)", at[small, "boxes", ONE].cosine_low, 0.9),
        Goal(f"{small}: 20 % drop out, cosine at least .9 (boxes, low end)", at[small, "boxes", DROPPED].cosine_low, 0.9),
        Goal(f"{small}: 20 % drop out at tau .8, every sum opens", at[small, "boxes", DROPPED].opened, 1),
        Goal(f"{small}: 20 % drop out at tau 1, no sum opens", 1 - at[small, "boxes", STRICT].opened, 1),
        Goal(f"{large}: MAE at least 100 times lower (mechanism, low end)", at[large, "mechanism", "SecureSum, ideal"].low,
             100),
        Goal(f"{mixed}: cosine at least .98 (boxes, low end)", at[mixed, "boxes", ONE].cosine_low, 0.98),
    ]


def mixed_case(size: Size) -> str:
    return f"one home at {CAUTIOUS} among {size.homes - 1} at {GENEROUS}"


def reach(size: Size) -> tuple[list[Row], list[Goal]]:
    """All rows and goals."""
    exact = metrics.expected_abs_sum_of_laplace(size.homes)
    closed = {"ZonalSum": 1.0, "SecureSum, ideal": exact, ONE: exact, DROPPED: exact}
    rows = through_boxes(f"N = {size.homes}, epsilon {EPSILON}", size, EPSILON, fe.Fixed(), closed)
    rows += through_mechanism(size)
    cautious = fe.simulate_households(size.homes, steps=24, seed=1).ids[0]
    rows += through_boxes(mixed_case(size), replace(size, seeds=min(size.seeds, 10)), GENEROUS,
                          PerHome((cautious,), epsilon=CAUTIOUS), {})
    return rows, goals_of(rows, size)


def table(rows: Iterable[Row], goals: Iterable[Goal]) -> str:
    """The table as text."""
    lines, case = [], ""
    for row in rows:
        if row.case != case:
            case = row.case
            lines += ["", case, f"  {'':44}{'path':11}{'opened':>7}{'homes':>7}{'charge':>8}   "
                      f"{'MAE ratio [95 %]':26}{'exact':>8}   cosine [95 %]"]
        ratio = f"{row.ratio:.2f} [{row.low:.2f}, {row.high:.2f}]" if row.ratio == row.ratio else "-"
        exact = f"{row.expected:.2f}" if row.expected == row.expected else "-"
        cosine = f"{row.cosine:.3f} [{row.cosine_low:.3f}, {row.cosine_high:.3f}]" if row.cosine == row.cosine else "-"
        lines.append(f"  {row.strategy:44}{row.path:11}{row.opened:7.0%}{row.answers:7.0f}{row.epsilon:8.3f}   "
                     f"{ratio:26}{exact:>8}   {cosine}")
    lines += ["", "Goals"]
    lines += [f"  {'reached' if goal.met else 'MISSED ':8} {goal.reached:9.3f} >= {goal.needed:<5g} {goal.text}"
              for goal in goals]
    return "\n".join([*lines, "", SimulationNoise.stamp])


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(prog="python -m simulations.one_noise", description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer draws and a smaller zone: goals may be missed")
    parser.add_argument("--json", type=Path, help="write the figures to this file too")
    options = parser.parse_args(arguments)
    began, size = time.perf_counter(), Size.quick() if options.quick else Size()
    rows, goals = reach(size)
    print(table(rows, goals))
    found = {"size": asdict(size), "seconds": time.perf_counter() - began, "rows": [asdict(row) for row in rows],
             "goals": [asdict(goal) | {"met": goal.met} for goal in goals], "stamp": SimulationNoise.stamp}
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return found


if __name__ == "__main__":
    main()
