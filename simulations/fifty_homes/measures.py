"""What section VI asks of the run: SHAP distributions, the negotiation, two query classes, leakage up to refusal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import fedenergy as fe
from fedenergy import metrics
from fedenergy.box.box import Answer, Box, answer_many
from fedenergy.box.ledger import Ledger
from fedenergy.box.negotiation import NeedAccuracy, Negotiated, negotiate, promised_utility
from fedenergy.box.policies import ZONE, epsilon_zero, expected_utility
from fedenergy.box.policy import Case, Public
from fedenergy.box.query import SealedQuery
from fedenergy.box.world import World
from fedenergy.config import Config, Engine
from fedenergy.explain.model import contributions, fit
from fedenergy.explain.task import RoundWindow
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import play_plan
from fedenergy.households.household import MINUTES_PER_DAY
from fedenergy.households.population import Population
from fedenergy.privacy.epsilon import MICRO, micro
from fedenergy.privacy.mechanisms import Laplace, SimulationNoise, discrete_laplace
from fedenergy.privacy.noise_free import NoiseFree
from fedenergy.privacy.trust import LOCAL, SUM
from fedenergy.report.report import Report
from fedenergy.windows import lagged, round_windows

START, GOAL = 0.16, 6.73                # the source's Figure 9; GOAL is its L_max too
U_SPECIFIC, U_GENERAL = 0.83, 0.67      # its Figure 11
GENERAL_ASK = 0.6                       # of the walk to L_max; a specific query asks RATIO times as much
DRAWS = 2_000
WEEKS = ("2013-01-07", "2013-04-22", "2013-07-15", "2013-10-14")


def budget_of(utility: float, eps0: float) -> float:
    """The epsilon whose expected cosine is `utility`: eps0 U / sqrt(1 - U^2).

    >>> round(budget_of(0.83, 1.0) / budget_of(0.67, 1.0), 2)      # the ratio that the source's 83 % and 67 % imply
    1.65
    """
    return eps0 * utility / math.sqrt(1 - utility**2)


RATIO = budget_of(U_SPECIFIC, 1.0) / budget_of(U_GENERAL, 1.0)


@dataclass(frozen=True)
class PeakShape:
    """A general query as a task: the mean day of a home's use, 24 bins of kWh.

    clip   C: l1 bound of one home's mean day, kWh; about twice Ofgem's typical 3,300 kWh a year / 365
    The first day is left out, so that it reads the rows that Explain explains with a lag of a day.
    """

    clip: float = 20.0

    kinds = ("peak_hour",)
    unit = "kWh"

    def coordinate_names(self, population: Population) -> tuple[str, ...]:
        return tuple(f"{hour:02d}:00" for hour in range(24))

    def windows(self, population: Population, rounds: int, repeat: str) -> Sequence[RoundWindow]:
        per_day = MINUTES_PER_DAY // population.step_minutes
        day = int(np.datetime64(population.start, "D").astype(int))
        return [RoundWindow((w.first_row, w.last_row), (day + w.block_from, day + w.block_to))
                for w in round_windows(population.steps, per_day, per_day, rounds, repeat)]

    def identity(self) -> Mapping[str, Any]:
        return {"use": "simulations.fifty_homes.measures:PeakShape", "clip": self.clip}

    def answer_many(self, boxes: Sequence[Box], queries: Sequence[SealedQuery], *, seed: int,
                    parties: int = 0) -> list[Answer]:
        return answer_many(boxes, queries, self._summaries, seed=seed, parties=parties)

    def _summaries(self, boxes: Sequence[Box], queries: Sequence[SealedQuery]) -> list[tuple[NoiseFree, str]]:
        return [(NoiseFree(mean_day(box.load(), query.rows)), "") for box, query in zip(boxes, queries, strict=True)]


def mean_day(household: fe.Household, rows: tuple[int, int]) -> np.ndarray:
    """(24,) kWh per clock hour of the mean day; a missing step counts as 0."""
    total = np.nan_to_num(household.total[slice(*rows)])
    first = int((household.start - household.start.astype("M8[D]")) / np.timedelta64(1, "m"))
    hour = (first + np.arange(*rows) * household.step_minutes) // 60 % 24
    return np.bincount(hour, total, minlength=24) / (total.size * household.step_minutes / MINUTES_PER_DAY)


def measured(report: Report) -> pd.DataFrame:
    """Means over seeds: index (strategy, epsilon), one column per score."""
    return report.metrics.pivot_table(index=["strategy", "epsilon"], columns="metric", values="value").sort_index()


def half_signal(clip: float, homes: int, truth: np.ndarray, trust: str = LOCAL) -> float:
    """eps0: the epsilon at which the zone's noise and signal are equal, from the true sum (inside view)."""
    norm = max(float(np.linalg.norm(truth)), 1e-12)
    return metrics.eps0(Laplace(clip).sensitivity(), truth.size, homes if trust == LOCAL else 1, norm)


def redrawn_cosine(truth: np.ndarray, clip: float, homes: int, epsilon: float, draws: int = DRAWS,
                   trust: str = LOCAL) -> tuple[float, float, float]:
    """(mean, low, high) of the zone's cosine over exact noise drawn `draws` times, with a 99 % interval.

    The boxes' runs give one value a seed; this gives their mean precisely, from the same mechanism.
    """
    mechanism, noises = Laplace(clip), homes if trust == LOCAL else 1
    source = SimulationNoise(0).source("*zone", f"redraw {trust} {epsilon}")
    noise = discrete_laplace(source, mechanism.scale(micro(epsilon)), draws * noises * truth.size)
    zones = truth + mechanism.grid.decode(noise.reshape(draws, noises, truth.size).sum(axis=1))
    mean, _, low, high = metrics.mean_interval([metrics.cosine(zone, truth) for zone in zones], 0.99)
    return mean, low, high


def shap_values(population: Population, task: fe.Explain) -> np.ndarray:
    """phi (homes, rows, d) in kWh, summed over the lags of a channel. Inside view: never leaves a box."""
    (window,) = task.windows(population, 1, "next_window")
    found = []
    for home in range(len(population)):
        design = lagged(population.load(home), task.lags, slice(*window.rows))
        phi = contributions(fit(design.X, design.y, task.trees, task.depth, task.bins, task.learning_rate))
        found.append(np.stack([phi[:, design.feature_channel == k].sum(axis=1)
                               for k in range(len(population.channels))], axis=1))
    return np.stack(found)


def spreads(phi: np.ndarray, channels: Sequence[str]) -> pd.DataFrame:
    """Per appliance over all homes and steps of phi (homes, rows, d): sd, percentiles, width, balance.

    width    from the 5th to the 95th percentile
    balance  of the pushes down and up, the smaller mean size over the larger: 1 where they weigh the same
    """
    flat = phi.reshape(-1, phi.shape[-1])
    low, high = np.percentile(flat, [5, 95], axis=0)
    sizes = np.array([[part.mean() if (part := abs(column[column * sign > 1e-6])).size else np.nan
                       for column in flat.T] for sign in (1, -1)])
    return pd.DataFrame({"appliance": list(channels), "sd (kWh)": flat.std(axis=0), "5 % (kWh)": low,
                         "95 % (kWh)": high, "width (kWh)": high - low,
                         "balance": sizes.min(axis=0) / sizes.max(axis=0)})


def clipped_sum(population: Population, task: fe.Explain) -> np.ndarray:
    """(d,) the zone's sum of clipped summaries, recomputed off the grid (inside view)."""
    (window,) = task.windows(population, 1, "next_window")
    values = [task.explainer.summary(population.load(home), slice(*window.rows)).values
              for home in range(len(population))]
    return sum(value * min(1.0, task.clip / max(float(np.abs(value).sum()), 1e-12)) for value in values)


def by_week(config: Config, task: fe.Explain) -> pd.DataFrame:
    """The same homes in other weeks: whose SHAP values are widest, and what the two budgets give by the closed form."""
    rows = []
    for start in WEEKS:
        homes = replace(config.population, args={**config.population.args, "start": start}).build()
        truth, table = clipped_sum(homes, task), spreads(shap_values(homes, task), homes.channels)
        widest = table.sort_values("sd (kWh)")["appliance"].iloc[-1]
        row = {"week from": start, "widest SHAP (sd)": widest, "largest zone sum": homes.channels[np.argmax(truth)],
               "zone norm (kWh²)": float(np.linalg.norm(truth))}
        for trust, words in ((LOCAL, "noise per home"), (SUM, "one noise")):
            eps0 = half_signal(task.clip, len(homes), truth, trust)
            row |= {f"cosine at {e:g}, {words}": metrics.expected_cosine(e, eps0) for e in (START, GOAL)}
        rows.append(row)
    return pd.DataFrame(rows)


def negotiation(world: World, query: fe.Query, strict: int = 0, rounds: int = 12) -> Negotiated:
    """The source's negotiation with the library's: homes that would offer START, an operator that needs what GOAL gives.

    strict  how many homes never move from START
    Every other home has the price lambda at which START is its optimum, and searches up to GOAL (BoundedSearch). The
    operator states the utility that the public model promises at GOAL and tells after each round what is lacking.
    """
    homes = len(world.population)
    public = Public(N=homes, d=len(world.coordinates), clip=world.task.clip)
    eps0 = epsilon_zero(public, ZONE)
    price = eps0**2 / (eps0**2 + START**2) ** 1.5  # the derivative of U at START
    search = fe.BoundedSearch(price=price, ell=GOAL - START, utility=ZONE, rounds=rounds)
    players = {}
    for index in range(homes):
        agreement = Box(world, index).agreement
        case = Case(query, agreement, Decimal(0), Decimal(agreement.cap_micro).scaleb(-6), public)
        players[agreement.household] = (fe.Strict(START) if index < strict else search, case)
    operator = NeedAccuracy(need=expected_utility(GOAL, eps0), tolerance=0.0005)
    return negotiate(players, operator, rounds)


def rounds_table(found: Negotiated) -> pd.DataFrame:
    """One row per round: the range of offers, and what the operator said is lacking of the utility that it needs."""
    rows = []
    for number, turn in enumerate(found.transcript, 1):
        offers = [bid.epsilon_micro / MICRO for bid in turn.bids if bid.epsilon_micro]
        lack = turn.response.feedback
        rows.append({"round": number, "offers": len(offers), "least ε": min(offers),
                     "median ε": float(np.median(offers)), "most ε": max(offers),
                     "lacking utility": math.nan if lack is None else lack,
                     "ended": "yes" if turn.response.done else "no"})
    return pd.DataFrame(rows)


def cautious_homes(world: World, query: fe.Query) -> pd.DataFrame:
    """What the public model promises when none, one, half or all of the homes stay at START."""
    homes, d = len(world.population), len(world.coordinates)
    rows = []
    for strict in dict.fromkeys((0, 1, homes // 2, homes)):
        grants = list(negotiation(world, query, strict).granted_micro.values())
        zone = {trust: Public(homes, d, world.task.clip, trust=trust) for trust in (LOCAL, SUM)}
        promised = {words: promised_utility(grants, query.epsilon_micro, zone[trust])
                    for trust, words in ((LOCAL, "noise per home"), (SUM, "one noise"))}
        rows.append({"homes that stay at .16": strict, "mean ε granted": float(np.mean(grants)) / MICRO,
                     **{f"promised utility, {words}": value for words, value in promised.items()}})
    return pd.DataFrame(rows)


def walk_to_refusal(config: Config, shape: PeakShape, folder: Path) -> pd.DataFrame:
    """Fresh general and specific queries in turn on one ledger until L_max refuses, then what is still possible.

    Through the real boxes under secure noise, where the cap counts all queries of a home together, whatever their kind.
    Columns: ask, question, ε asked, answers, refusals, ε spent (of every home, from the ledger).
    """
    population, task, terms = config.population.build(), config.task.build(), config.agreement_spec.build()
    ledger, rows, history = folder / "ledger", [], []

    def ask(words: str, kind: str, epsilon: float, fresh: int) -> bool:
        query = replace(config.query.build(), kind=kind, epsilon=epsilon, rounds=1, fresh=fresh)
        run = folder / f"ask-{len(rows) + 1:02d}"
        plan = plan_from_objects(population, shape if kind == "peak_hour" else task, query,
                                 ["strategies.zonal_sum:ZonalSum"], agreement=terms, oracle=False, noise="secure",
                                 engine=Engine(workers=0), name=run.name, folder=run, ledger=ledger)
        table = measured(Report(play_plan(plan))).iloc[0]
        with Ledger(ledger) as book:
            spent = {book.spent(name) for name in population.ids}
        if len(spent) > 1:
            raise RuntimeError(f"homes spent {sorted(spent)} micro-epsilon on the same questions")
        rows.append({"ask": len(rows) + 1, "question": words, "kind": kind, "ε asked": query.epsilon,
                     "answers": int(table["answers"]), "refusals": int(table["refusals"]),
                     "ε spent": spent.pop() / MICRO})
        history.append((kind, epsilon, fresh))
        return bool(table["answers"])

    costs = {"peak_hour": GENERAL_ASK, "appliances": round(GENERAL_ASK * RATIO, 2)}
    words = {"peak_hour": "general: peak shape", "appliances": "specific: appliances"}
    for number in range(200):
        kind = ("peak_hour", "appliances")[number % 2]
        if not ask(words[kind], kind, costs[kind], number):
            break
    left = round(terms.cap - rows[-1]["ε spent"], 6)
    if left > 0:
        ask("specific, for all that is left", "appliances", left, 1_000)
    ask("specific, one thousandth more", "appliances", 0.001, 1_001)
    ask("the first question again", *history[0])
    return pd.DataFrame(rows)
