"""The averaging attacker: the same question again and again, with and without ledger and cap.

    python -m simulations.repeated_queries [configs/repeated_queries.toml] [--quick] [--out DIR]

Four arms, the attacker's mean absolute error per coordinate of one home's clipped summary after n questions:
no ledger, no cap     every answer has new noise: it falls as 1 / sqrt(n), b 2n C(2n, n) / 4^n / n in closed form
the same question     the ledger gives the stored answer, free: averaging gains nothing
fresh questions       each is charged; the error falls until the cap refuses, then no more
one question          asks for the whole cap at once: the least error that the cap allows in one answer
The ledger's arms go through the real boxes (runs of fedenergy); the first calls the same mechanism without a ledger.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from fedenergy import metrics
from fedenergy.box.ledger import Ledger
from fedenergy.config import Config, Engine, load
from fedenergy.federation.plan import plan_from_objects
from fedenergy.federation.study import place, play_plan
from fedenergy.privacy.epsilon import MICRO
from fedenergy.privacy.mechanisms import Laplace, SimulationNoise
from fedenergy.report.axes import TEXT
from fedenergy.report.gallery import Plate
from fedenergy.report.svg import INK, MUTED, PALETTE
from simulations import pages
from simulations.pages import axes, legend, plain_ticks

CONFIG = "configs/repeated_queries.toml"
MOST, ATTACKERS = 1_000, 20  # questions of an attacker whom nothing limits; how many such attackers
NO_LEDGER, SAME, FRESH, WHOLE = "no ledger, no cap", "the same question", "fresh questions", "one question for the cap"


@dataclass(frozen=True)
class Study:
    """folder, page; curves: rows arm, questions, answered, error, closed form, epsilon spent; claims: "what holds"."""

    folder: Path
    page: Path
    curves: pd.DataFrame
    claims: pd.DataFrame


def closed_form(scale: float, questions: int) -> float:
    """E|mean of n Laplace(b)| = b 2 C(2n, n) / 4^n, near 2 b / sqrt(pi n).

    >>> closed_form(1.0, 1), round(closed_form(1.0, 100) * 10, 3)
    (1.0, 1.127)
    """
    return scale * metrics.expected_abs_sum_of_laplace(questions) / questions


def error_of_means(answers: np.ndarray, truth: np.ndarray) -> np.ndarray:
    """(n,) mean |average of the first k answers - truth| over homes and coordinates; answers (n, homes, d)."""
    counts = np.arange(1, len(answers) + 1)[:, None, None]
    return np.abs(np.cumsum(answers, axis=0) / counts - truth).mean(axis=(1, 2))


def without_ledger(truth: np.ndarray, clip: float, epsilon_micro: int, questions: int) -> np.ndarray:
    """(n, homes * ATTACKERS, d) answers of the mechanism alone: a new noise for every question, and nobody counts.

    Several independent attackers on each home, so that the mean error is near its expectation.
    """
    mechanism, noise, (homes, d) = Laplace(clip), SimulationNoise(0), truth.shape
    shape = (questions, ATTACKERS, d)
    drawn = [mechanism.noise(noise.source(f"home-{home}", "no ledger"), epsilon_micro, questions * ATTACKERS * d)
             for home in range(homes)]
    return np.concatenate([summary + mechanism.grid.decode(z.reshape(shape)) for summary, z in zip(truth, drawn)], axis=1)


class Asker:
    """Asks the boxes of one population on one ledger, one run per question, and keeps what it learns."""

    def __init__(self, config: Config, folder: Path) -> None:
        self.config, self.folder = config, folder
        self.population, self.task = config.population.build(), config.task.build()
        self.terms = config.agreement_spec.build()
        self.ids = list(self.population.ids)

    def ask(self, name: str, *, epsilon: float, fresh: int = 0, rounds: int = 1, ledger: str) -> tuple[np.ndarray, float]:
        """((answers, homes, d) releases, epsilon that the dearest home has spent on this ledger). No answer: (0, ...)."""
        query = replace(self.config.query.build(), epsilon=epsilon, fresh=fresh, rounds=rounds, repeat="same_window")
        run, book = self.folder / name, self.folder / ledger
        play_plan(plan_from_objects(self.population, self.task, query, ["strategies.zonal_sum:ZonalSum"],
                                    agreement=self.terms, oracle=False, engine=Engine(workers=0), name=name,
                                    folder=run, ledger=book))
        table = pq.read_table(run / "releases.parquet").to_pandas()
        with Ledger(book) as opened:
            spent = max(opened.spent_many([(home, None) for home in self.ids]).values()) / MICRO
        if table.empty:
            return np.zeros((0, len(self.ids), len(self.task.coordinate_names(self.population)))), spent
        names = list(dict.fromkeys(table["coordinate"]))
        wide = table.pivot_table(index=["round", "household"], columns="coordinate", values="value")[names]
        return wide.to_numpy().reshape(-1, len(self.ids), len(names)), spent

    def truth(self) -> np.ndarray:
        """(homes, d) clipped summaries: what the attacker is after (inside view, recomputed off the grid)."""
        (window,) = self.task.windows(self.population, 1, "same_window")
        grid = Laplace(self.task.clip).grid
        return np.stack([grid.decode(grid.encode(self.task.explainer.summary(self.population.load(home),
                                                                            slice(*window.rows)).values))
                         for home in range(len(self.ids))])


def attack(config: Config, folder: Path, most: int = MOST) -> pd.DataFrame:
    """The four arms. Columns: arm, questions, answered, error (kWh²), closed form, epsilon spent."""
    asker = Asker(config, folder)
    truth, query, cap = asker.truth(), config.query.build(), asker.terms.cap
    scale = Laplace(asker.task.clip).scale_units(query.epsilon_micro)
    steps = np.unique(np.geomspace(1, most, 25).round().astype(int))
    rows = []

    free = error_of_means(without_ledger(truth, asker.task.clip, query.epsilon_micro, most),
                          np.repeat(truth, ATTACKERS, axis=0))
    rows += [[NO_LEDGER, n, n, free[n - 1], closed_form(scale, n), n * query.epsilon] for n in steps.tolist()]

    same, spent = asker.ask("same", epsilon=query.epsilon, rounds=query.rounds, ledger="ledger-same")
    if len(same) != query.rounds or (same != same[0]).any():
        raise RuntimeError("the ledger gave different answers to the same question")
    kept = error_of_means(same[:1], truth)[0]
    rows += [[SAME, n, 1, kept, closed_form(scale, 1), spent] for n in steps.tolist()]

    answers: list[np.ndarray] = []
    for number in range(most):
        found, spent = asker.ask(f"fresh-{number + 1:03d}", epsilon=query.epsilon, fresh=number, ledger="ledger-fresh")
        if not len(found):
            break
        answers += list(found)
    fresh = error_of_means(np.stack(answers), truth)
    for n in sorted({*steps.tolist(), *range(1, len(fresh) + 2)}):
        done = min(n, len(fresh))
        rows.append([FRESH, n, done, fresh[done - 1], closed_form(scale, done), min(done * query.epsilon, spent)])

    whole, spent = asker.ask("whole", epsilon=cap, ledger="ledger-whole")
    least = Laplace(asker.task.clip).scale_units(round(cap * MICRO))
    rows += [[WHOLE, n, 1, error_of_means(whole, truth)[0], closed_form(least, 1), spent] for n in steps.tolist()]
    return pd.DataFrame(rows, columns=["arm", "questions", "answered", "error (kWh²)", "closed form (kWh²)", "ε spent"])


def claims_of(curves: pd.DataFrame, cap: float, epsilon: float) -> list[pages.Claim]:
    """What the source says of repeated queries, and what the arms yield."""
    arms = {name: group.set_index("questions") for name, group in curves.groupby("arm")}
    error = {name: group["error (kWh²)"] for name, group in arms.items()}
    n = int(error[NO_LEDGER].index.max())
    gain = error[NO_LEDGER][1] / error[NO_LEDGER][n]
    off = float((arms[NO_LEDGER]["error (kWh²)"] / arms[NO_LEDGER]["closed form (kWh²)"] - 1).abs().max())
    answered, spent = int(arms[FRESH]["answered"].max()), float(arms[FRESH]["ε spent"].max())
    floor = error[FRESH][error[FRESH].index.max()]
    return [
        pages.Claim("threat model", "Repeated queries accumulate leakage.", "no number given",
                    f"without ledger and cap the error after {n:,} questions is {gain:.1f} times smaller (closed form "
                    f"{1 / closed_form(1.0, n):.1f}); at most {off:.1%} from the closed form on the way",
                    pages.judged(gain > 0.8 * n**0.5), "at least .8 sqrt(n) times smaller"),
        pages.Claim("section III", "The same query again tells nothing new.", "not said", "one stored answer, byte for "
                    f"byte: {error[SAME][n]:.1f} kWh² after 1 and after {n:,} questions; ε spent {epsilon:g}",
                    pages.judged(error[SAME].nunique() == 1, bool((arms[SAME]["ε spent"] == epsilon).all())),
                    "error and charge do not depend on n", own=True),
        pages.Claim("section III", "At L_max the box refuses, so the leakage is bounded.", f"L_max = {cap:g}",
                    f"{answered} fresh questions at ε {epsilon:g} answered ({spent:g} of {cap:g} spent), then refused; the "
                    f"error stays at {floor:.1f} kWh², without a cap it would be {error[NO_LEDGER][n]:.1f}",
                    pages.judged(answered == int(cap / epsilon + 1e-9), spent <= cap + 1e-9),
                    "as many answers as the cap holds, never more spent"),
        pages.Claim("section III", "Splitting the cap into many questions does not help the attacker.", "not said",
                    f"{answered} averaged questions: {floor:.1f} kWh²; one for the whole cap: {error[WHOLE][1]:.1f}",
                    pages.judged(floor > error[WHOLE][1]), "error of the average above that of the one", own=True)]


def figure(curves: pd.DataFrame):
    """Error against the number of questions, an arm per line, closed forms dashed."""
    drawn, (ax,) = axes(height=3.5)
    handles = []
    for place_, (arm, marker) in enumerate(((NO_LEDGER, "o"), (SAME, "s"), (FRESH, "D"), (WHOLE, ""))):
        rows, colour = curves[curves["arm"] == arm], PALETTE[(1, 0, 2, 3)[place_]]
        ax.plot(rows["questions"], rows["error (kWh²)"], color=colour, marker=marker or None, markersize=3.5,
                linewidth=1.5)
        ax.plot(rows["questions"], rows["closed form (kWh²)"], color=colour, linestyle=(0, (4, 2)), linewidth=1)
        handles.append(Line2D([], [], color=colour, marker=marker or None, markersize=4, label=arm))
    rows = curves[curves["arm"] == FRESH]
    stop = rows["answered"].max()
    ax.axvline(stop, color=INK, linewidth=1, linestyle=(0, (1, 2)))
    ax.annotate("the cap\nrefuses", (stop, 0.02), xycoords=("data", "axes fraction"), xytext=(4, 0),
                textcoords="offset points", fontsize=TEXT - 1, color=INK)
    handles.append(Line2D([], [], color=MUTED, linestyle=(0, (4, 2)), label="closed form"))
    ax.set(xscale="log", yscale="log")
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_minor_locator(NullLocator())
    ax.xaxis.set_major_locator(FixedLocator([1, 3, 10, 30, 100, 300, 1000]))
    low, high = (curves["error (kWh²)"].agg(name) for name in ("min", "max"))
    ax.yaxis.set_major_locator(FixedLocator([v for v in (1, 2, 5, 10, 20, 50, 100, 200, 500) if low / 2 < v < high * 2]))
    plain_ticks(ax.xaxis, ax.yaxis)
    ax.set_xlabel("questions asked")
    ax.set_ylabel("attacker's error (kWh²)")
    legend(drawn, ax, 3, handles)
    return drawn


def main(config: Config | None = None) -> Study:
    """Attack, write study.html, figures/ and curves.csv; the config's ledger is not touched. Raises RunFailed."""
    config = load(CONFIG) if config is None else config
    folder = place(config)[0]
    folder.mkdir(parents=True, exist_ok=True)
    most = 100 if len(config.population.build()) <= 5 else MOST
    curves = attack(config, folder / "attack", most)
    query, terms = config.query.build(), config.agreement_spec.build()
    claims = claims_of(curves, terms.cap, query.epsilon)
    curves.to_csv(folder / "curves.csv", index=False, float_format="%.6g", lineterminator="\n")
    pages.claims_frame(claims).to_csv(folder / "what_holds.csv", index=False, lineterminator="\n")
    shown = curves[curves["questions"].isin({1, 3, 10, 13, 14, 100, 1_000})]
    plate = Plate("repeated_queries", "attack", "The averaging attacker's error",
                  "Mean over homes and coordinates of one home's answer. Dashed: closed forms.",
                  "Error against the number of questions for four arms.", figure(curves))
    page = pages.write_page(
        folder / "study.html", title=config.title or config.name, plates=[plate],
        meta=f"{folder.name} · {len(config.population.build())} homes · ε {query.epsilon:g} a question, cap {terms.cap:g}",
        stamp=SimulationNoise(0).stamp.capitalize(), short=[f"{c.claim} {c.verdict}: {c.ours}." for c in claims],
        parts=[pages.Part("attack", "The attack", pages.frame_table(shown, "Error by number of questions.")),
               pages.Part("holds", "What holds", pages.claims_table(claims, "What the source says, and our questions."))])
    return Study(folder, page, curves, pages.claims_frame(claims))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--quick", action="store_true", help="toy size")
    parser.add_argument("--out", help="folder for runs")
    options = parser.parse_args()
    done = main(load(options.config, quick=options.quick, out=options.out))
    print(done.curves.to_string(index=False, float_format=lambda value: f"{value:.4g}"))
    for row in done.claims.itertuples():
        print(f"{row.verdict:22} {row.claim}\n{'':22} ours: {row.ours}")
    print(done.page)
