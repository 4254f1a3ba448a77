"""What holds of the source's claims, and of questions that it leaves open: every verdict is computed from the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedenergy.imputation.limits import LEVELS
from simulations.adaln.measure import MAGNITUDES
from simulations.adaln.runs import Results
from simulations.adaln.settings import (
    ABLATION,
    NONE,
    P99,
    PLAIN,
    PUBLISHED,
    RMSE_FORECAST,
    TRUE,
    bound_of,
    noise_words,
    parse,
)
from simulations.pages import OPEN_QUESTION, Claim, judged

if TYPE_CHECKING:
    from simulations.adaln_zero import AdaLNZero

CELL = ["dataset", "objective", "regime", "asked", "clip"]
SIMILAR, NOTHING = 0.05, 1.02     # clip fractions that count as similar; RMSE ratio that counts as no loss
COMPARED = ("Results", "Gradients", "Ablation", "True ε", "Combination")     # with and without limits
NOT_RUN = "not run"
LOWER, HIGHER = 0.99, 1.01        # ratios that count as lower and as higher: by one per cent


# The source's claims, as named below: those that no cell of a study tests read "not run" on its page.
SOURCE = (
    ("Results", "At σ 0.05 the limits lower the forecasting error on a household's meter.", "RMSE 0.567 → 0.423"),
    ("Results", "The limits lower the error consistently: imputation and forecasting, every σ.", "no counts printed"),
    ("Privacy", "Training at σ 0.03 to 0.2 carries rigorous privacy guarantees.", "no ε printed"),
    ("Gradients", "At σ 0.2 the limits shorten the tail of the conditioning path's gradients.", "p99 ~64.5 → ~54.8"),
    ("Gradients", "The tail of gradients gets shorter on the conditioning path and hardly elsewhere.",
     "shown as distributions"),
    ("Gradients", "With limits the share of clipped records stays similar.", "p_clip similar, no numbers"),
    ("Gradients", "With limits clipping becomes less severe.", "η rises, no numbers"),
    ("Ablation", "Limits on c and on the modulation together do better than either alone.",
     ", ".join(f"{name} {value:.2f}" for name, value in ABLATION.items())),
    ("Ablation", "Limits on the modulation alone help, on c alone harm.", "the same"),
    ("Ablation", "A soft limit (tanh) does better than a hard clamp", "no numbers"),
    ("Expressivity", "Without privacy, medium limits lose nothing.", "kept"),
    ("Bound", "No record's ‖g_cond‖ exceeds the bound that the limits imply.", "proved, not printed"))


def main_limits(study: AdaLNZero) -> str | None:
    """The limits that stand for the source's method: soft, on both, "medium" where the study has it."""
    whole = [text for text in study.limits if text != NONE and parse(text)[1:] == ("both", True)]
    return "medium" if "medium" in whole else whole[0] if whole else None


def pairs(frame: pd.DataFrame, keys: list[str], value: str, one: str, other: str) -> pd.DataFrame:
    """(one, other, ratio, words) of a value by cell, means over seeds, where both were run."""
    if frame.empty or value not in frame:
        return pd.DataFrame(columns=[*keys, "one", "other", "ratio"])
    by = {name: frame[frame["limits"] == text].groupby(keys)[value].mean()
          for name, text in (("one", one), ("other", other))}
    found = pd.DataFrame(by).dropna().reset_index()
    return found.assign(ratio=found["other"] / found["one"])


def change(row: Any, digits: int = 3) -> str:
    """"household σ 0.05: 0.567 → 0.423 (−25 %)"."""
    where = [row.dataset, "" if row.objective == "eps" else row.objective, noise_words(row.regime, row.asked),
             "" if row.clip == 1 else f"C {row.clip:g}", getattr(row, "task", "")]
    percent = f"{100 * (row.ratio - 1):+.0f} %".replace("-", "−")
    return f"{' '.join(filter(None, where))}: {row.one:.{digits}g} → {row.other:.{digits}g} ({percent})"


def several(frame: pd.DataFrame, digits: int = 3) -> str:
    """At most four cells in words, the rest counted."""
    text = [change(row, digits) for row in frame.head(4).itertuples()]
    return "; ".join(text) + (f"; and {len(frame) - 4} more" if len(frame) > 4 else "")


def count(frame: pd.DataFrame, below: float = LOWER) -> str:
    """"3 of 4 cells"."""
    return f"{int((frame['ratio'] <= below).sum())} of {len(frame)}"


def claims_of(study: AdaLNZero, found: Results) -> list[Claim]:
    """All that this study's cells can judge."""
    main = main_limits(study)
    made: list[Claim] = []
    if main and NONE in study.limits:
        made += _errors(found, main)
        made += _gradients(found, main)
    made += _ablation(found)
    made += _hard(study, found)
    made += [*_expressive(found), *_own(found, main)]
    reached = _reached(found, main, noisy=True)
    if reached and not any(reached.values()):
        made = [replace(c, verdict=OPEN_QUESTION, rule=f"{c.rule}; but no cell with noise reaches a limit in this run")
                if c.figure in COMPARED else c for c in made]
    return made + [Claim(figure, claim, source, NOT_RUN, OPEN_QUESTION, "no cell of this study tests it")
                   for figure, claim, source in SOURCE if not any(c.claim.startswith(claim.rstrip(".")) for c in made)]


def _reached(found: Results, main: str | None, noisy: bool = False) -> dict[str, int]:
    """How many cells without limits (noisy: and with noise) have magnitudes beyond the limits of the method, by kind; {}
    where none can tell."""
    free = found.sizes[found.sizes["limits"] == NONE] if len(found.sizes) else found.sizes
    free = free[free["regime"] != PLAIN] if noisy and len(free) else free
    if not main or free.empty:
        return {}
    over = dict.fromkeys(MAGNITUDES, 0)
    for row in free.to_dict("records"):
        limits = bound_of(main, found.reference[(row["regime"], row["asked"], row["clip"], row["objective"])])
        over = {name: n + (row[name] > getattr(limits, name)) for name, n in over.items()}
    return over


def _errors(found: Results, main: str) -> Iterator[Claim]:
    table = pairs(found.rows, [*CELL, "task"], "rmse", NONE, main)
    published = table[table["regime"] == PUBLISHED]
    exact = published[(published["asked"] == 0.05) & (published["task"] == "forecasting")]
    source = f"RMSE {RMSE_FORECAST[0]} → {RMSE_FORECAST[1]} (−{100 * (1 - RMSE_FORECAST[1] / RMSE_FORECAST[0]):.0f} %)"
    if len(exact):
        yield Claim("Results", "At σ 0.05 the limits lower the forecasting error on a household's meter.", source,
                    several(exact), judged(*(exact["ratio"] <= LOWER)),
                    f"RMSE with limits ({main}) below vanilla's by 1 % or more, each set")
    if len(published):
        yield Claim("Results", "The limits lower the error consistently: imputation and forecasting, every σ.",
                    "no counts printed", f"{count(published)} cells lower; median ratio {published['ratio'].median():.3f}",
                    judged(*(published["ratio"] <= LOWER)), "RMSE with limits below vanilla's by 1 % or more, every cell")
        costs = found.costs[found.costs["regime"] == PUBLISHED]["epsilon"]
        yield Claim("Privacy", "Training at σ 0.03 to 0.2 carries rigorous privacy guarantees.", "no ε printed",
                    f"ε {costs.min():.3g} to {costs.max():.3g} per window", judged(bool((costs <= 10).all())),
                    "computed ε (PLD) at most 10")


def _gradients(found: Results, main: str) -> Iterator[Claim]:
    if found.gradients.empty:
        return
    part = {name: found.gradients[found.gradients["part"] == name] for name in ("total", "conditioning", "rest")}
    tail = pairs(part["conditioning"], CELL, "p99", NONE, main)
    exact = tail[(tail["regime"] == PUBLISHED) & (tail["asked"] == 0.2)]
    if len(exact):
        yield Claim("Gradients", "At σ 0.2 the limits shorten the tail of the conditioning path's gradients.",
                    f"p99 of ‖g_cond‖ ~{P99[0]} → ~{P99[1]} (−{100 * (1 - P99[1] / P99[0]):.0f} %)", several(exact),
                    judged(*(exact["ratio"] <= LOWER)), "p99 of the last 20 % of steps below vanilla's by 1 % or more, "
                    "each set and C")
    rest = pairs(part["rest"], CELL, "p99", NONE, main)
    if len(tail):
        shorter = tail["ratio"].median() <= LOWER
        less = abs(rest["ratio"].median() - 1) < abs(tail["ratio"].median() - 1)
        yield Claim("Gradients", "The tail of gradients gets shorter on the conditioning path and hardly elsewhere.",
                    "shown as distributions", f"p99 ratio {tail['ratio'].median():.3f} on g_cond, "
                    f"{rest['ratio'].median():.3f} on the rest (medians of {len(tail)} cells)",
                    judged(shorter, shorter and less), "median p99 of g_cond falls by 1 % or more, the rest changes less")
    clipped, eta = (pairs(part["total"], CELL, name, NONE, main) for name in ("clipped", "eta"))
    if len(clipped):
        gap = (clipped["other"] - clipped["one"]).abs()
        yield Claim("Gradients", "With limits the share of clipped records stays similar.", "p_clip similar, no numbers",
                    f"largest change {gap.max():.3f} over {len(gap)} cells", judged(*(gap <= SIMILAR)),
                    f"change of at most {SIMILAR} in every cell")
        yield Claim("Gradients", "With limits clipping becomes less severe.", "η rises, no numbers",
                    f"mean η higher in {int((eta['ratio'] >= HIGHER).sum())} of {len(eta)} cells; {several(eta)}",
                    judged(*(eta["ratio"] >= HIGHER)), "η = E[min(1, C / ‖g‖)] above vanilla's by 1 % or more, every cell")


def _scope_means(found: Results) -> tuple[dict[str, float], int]:
    """Mean RMSE by scope of the soft limits, over the cells where all four were run, and how many those are."""
    rows = found.rows[~found.rows["regime"].isin(["free", "unprotected", PLAIN])]
    scope = [(NONE if text == NONE else parse(text)[1]) if text == NONE or parse(text)[2] else "" for text in rows["limits"]]
    wide = rows.assign(scope=scope).pivot_table(index=[*CELL, "task", "seed"], columns="scope", values="rmse")
    if not set(ABLATION) <= set(wide):
        return {}, 0
    wide = wide[list(ABLATION)].dropna()
    return wide.mean().to_dict(), len(wide)


def _ablation(found: Results) -> Iterator[Claim]:
    means, cells = _scope_means(found)
    if not cells:
        return
    ours = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
    source = ", ".join(f"{name} {value:.2f}" for name, value in ABLATION.items())
    rule = f"mean RMSE over {cells} cells, apart by 1 % or more"
    yield Claim("Ablation", "Limits on c and on the modulation together do better than either alone.", source, ours,
                judged(means["both"] <= LOWER * means["c only"], means["both"] <= LOWER * means["modulation only"]), rule)
    yield Claim("Ablation", "Limits on the modulation alone help, on c alone harm.", source, ours,
                judged(means["modulation only"] <= LOWER * means[NONE], means["c only"] >= HIGHER * means[NONE]), rule)


def _hard(study: AdaLNZero, found: Results) -> Iterator[Claim]:
    for text in study.limits:
        soft = text.removesuffix(", hard")
        if soft != text and soft in study.limits:
            table = pairs(found.rows, [*CELL, "task"], "rmse", text, soft)
            if len(table):
                yield Claim("Ablation", f"A soft limit (tanh) does better than a hard clamp ({soft}).", "no numbers",
                            f"{count(table)} cells lower with tanh; {several(table)}", judged(*(table["ratio"] <= LOWER)),
                            "RMSE with tanh below the clamp's by 1 % or more, every cell")


def _expressive(found: Results) -> Iterator[Claim]:
    plain = found.rows[found.rows["regime"] == PLAIN]
    for level in LEVELS:
        table = pairs(plain, [*CELL, "task"], "rmse", NONE, level)
        if len(table):
            source = "kept" if level == "medium" else "not said"
            yield Claim("Expressivity", f"Without privacy, {level} limits lose nothing.", source, several(table),
                        judged(*(table["ratio"] <= NOTHING)), f"RMSE at most {NOTHING} of vanilla's, every set and task",
                        own=level != "medium")


def _own(found: Results, main: str | None) -> Iterator[Claim]:
    if over := _reached(found, main):
        yield Claim("Limits", f"The limits ({main}) act: without them the magnitudes go beyond.", "assumed",
                    f"cells without limits, of {int((found.sizes['limits'] == NONE).sum())}, that go beyond: "
                    + ", ".join(f"{name} {n}" for name, n in over.items()),
                    judged(*(n > 0 for n in over.values())), "magnitudes at the final models, each kind in some cell",
                    own=True)
    finite = found.sizes[np.isfinite(found.sizes["bound"])] if len(found.sizes) else found.sizes
    if len(finite):
        slack = finite["largest"] / finite["bound_met"]
        yield Claim("Bound", "No record's ‖g_cond‖ exceeds the bound that the limits imply.", "proved, not printed",
                    f"largest {finite['largest'].max():.3g}; smallest bound {finite['bound'].min():.1e}, with the spread of "
                    f"tokens as met {finite['bound_met'].min():.1e}: {-np.log10(slack.max()):.0f} orders above",
                    judged(bool((finite["largest"] <= finite["bound_met"]).all())),
                    "every probed record of every bounded cell", own=True)
    if main:
        table = pairs(found.rows[found.rows["regime"] == TRUE] if len(found.rows) else found.rows, [*CELL, "task"], "rmse",
                      NONE, main)
        if len(table):
            yield Claim("True ε", "The limits still help where the noise keeps what ε says.", "not tested",
                        f"{count(table)} cells lower; {several(table)}", judged(*(table["ratio"] <= LOWER)),
                        "RMSE with limits below vanilla's by 1 % or more, every cell", own=True)
    yield from _combined(found, main)
    yield from _against_free(found)


def _combined(found: Results, main: str | None) -> Iterator[Claim]:
    rows = found.rows[~found.rows["regime"].isin(["free", "unprotected"])]
    objectives = list(dict.fromkeys(rows["objective"]))
    if not main or len(objectives) < 2:
        return
    wide = rows.pivot_table(index=["dataset", "regime", "asked", "clip", "task"], columns=["objective", "limits"],
                            values="rmse")
    for other in objectives[1:]:
        names = [(objectives[0], NONE), (objectives[0], main), (other, NONE), (other, main)]
        if set(names) <= set(wide):
            means = [float(wide[name].mean()) for name in names]
            yield Claim("Combination", f"With the objective {other}, the limits add to what it gains.",
                        "a drop-in, not tested",
                        ", ".join(f"{o}{'' if text == NONE else ' with limits'} {value:.3f}"
                                  for (o, text), value in zip(names, means)),
                        judged(means[3] <= LOWER * means[1], means[3] <= LOWER * means[2]),
                        f"mean RMSE over {len(wide)} cells: both together below each alone by 1 % or more", own=True)


def _against_free(found: Results) -> Iterator[Claim]:
    free = found.rows[found.rows["regime"] == "free"].groupby(["dataset", "task"])["rmse"].min()
    private = found.rows[found.rows["regime"].isin([PUBLISHED, TRUE])]
    if private.empty or free.empty:
        return
    best = private.groupby(["dataset", "task"])["rmse"].min()
    pairs_of = pd.DataFrame({"free": free, "best": best}).dropna().reset_index()
    ours = "; ".join(f"{row.dataset} {row.task}: {row.best:.3f} against {row.free:.3f}" for row in pairs_of.itertuples())
    yield Claim("Use", "The best cell with noise does better than the best filling that costs nothing.", "not compared",
                ours, judged(*(pairs_of["best"] < pairs_of["free"])), "lowest RMSE, each set and task", own=True)
