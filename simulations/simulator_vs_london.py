"""How the simulated homes differ from a hundred real ones (Low Carbon London, 2013, half-hourly, GMT).

    python -m simulations.simulator_vs_london --data DIR --out DIR [--quick]

Writes comparison.csv (one row per measure: real, simulated, difference, verdict), excluded.csv, curves.csv and
simulator_vs_london.png/.svg. Differences are computed and named. The simulator holds no data, but its powers and
habits were scaled by hand until these same homes' aggregates were near: this is a fit, not a test on unseen homes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pandas as pd

from fedenergy.households.simulate import simulate_households
from fedenergy.ids import stream

SLOTS, YEAR = 48, 365
STEPS = SLOTS * YEAR
MAX_GAPS, MAX_ZEROS = 100, 0.99
DEFAULTS = {"data": "../shared/data", "out": "runs/simulator-vs-london", "homes": 100, "seed": 1, "quick": False}
REAL, SIMULATED = "#22313f", "#d1495b"
WINTER, SUMMER = (1, 2, 12), (6, 7, 8)


@dataclass(frozen=True)
class Comparison:
    """What main found.

    table     one row per measure: measure, unit, real, real_low, real_high, simulated, difference, ratio, verdict
    excluded  real homes left out or kept with a flag: household, missing, zero_share, left_out, reason
    files     what was written
    """

    table: pd.DataFrame
    excluded: pd.DataFrame
    files: tuple[Path, ...]


def london(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """(17520, homes) kWh per half hour of 2013 in GMT, gaps NaN, and the table of homes left out or flagged."""
    long = pd.read_csv(data / "lcl_london" / "lcl_2013_100households_long.csv.xz", parse_dates=["tstp"])
    wide = long.pivot_table(index="tstp", columns="LCLid", values="energy_kwh_hh")
    wide = wide.reindex(pd.date_range("2013-01-01", periods=STEPS, freq="30min"))
    missing, zeros = wide.isna().sum(), (wide == 0).sum() / wide.notna().sum()
    left_out = (missing > MAX_GAPS) | (zeros > MAX_ZEROS)
    reason = np.where(missing > MAX_GAPS, f"more than {MAX_GAPS} half hours missing",
                      np.where(zeros > MAX_ZEROS, f"more than {MAX_ZEROS:.0%} zeros", "many zeros: kept, flagged"))
    flags = pd.DataFrame({"household": wide.columns, "missing": missing.to_numpy(), "zero_share": zeros.to_numpy(),
                          "left_out": left_out.to_numpy(), "reason": reason})
    return wide.loc[:, ~left_out], flags[left_out.to_numpy() | (zeros > 0.5).to_numpy()].reset_index(drop=True)


def simulated(homes: int, seed: int) -> pd.DataFrame:
    """(17520, homes) kWh per half hour of the same year."""
    population = simulate_households(homes, STEPS, seed, step_minutes=30, start="2013-01-01")
    index = pd.date_range("2013-01-01", periods=STEPS, freq="30min")
    return pd.DataFrame({population.ids[i]: population.load(i).total for i in range(homes)}, index=index)


def autocorrelation(values: np.ndarray, lags: int) -> np.ndarray:
    """(lags + 1, homes) autocorrelation of each column; gaps count as the column's mean."""
    centred = np.nan_to_num(values - np.nanmean(values, axis=0))
    size = 1 << (2 * len(centred) - 1).bit_length()
    power = np.abs(np.fft.rfft(centred, size, axis=0)) ** 2
    covariance = np.fft.irfft(power, size, axis=0)[:lags + 1]
    return covariance / covariance[0]


def curves(wide: pd.DataFrame) -> dict[str, np.ndarray]:
    """Zone curves in W per home: four of a day (48,), one of a week (336,); and monthly kWh a day (12,)."""
    zone = wide.mean(axis=1).to_numpy().reshape(YEAR, SLOTS) * 2000
    days = pd.date_range("2013-01-01", periods=YEAR)
    weekend = days.day_of_week >= 5
    found = {f"{season} {kind}": zone[days.month.isin(months) & chosen].mean(axis=0)
             for season, months in (("winter", WINTER), ("summer", SUMMER))
             for kind, chosen in (("weekday", ~weekend), ("weekend", weekend))}
    found["week"] = np.concatenate([zone[days.day_of_week == day].mean(axis=0) for day in range(7)])
    found["month"] = np.array([zone[days.month == month].mean() * 0.024 for month in range(1, 13)])
    return found


def measures(wide: pd.DataFrame) -> dict[str, tuple[str, Any]]:
    """measure -> (unit, value): values per home (homes,), summarised by their median later, or a number of the zone."""
    values, zone = wide.to_numpy(), curves(wide)
    daily = np.where(np.isnan(values.reshape(YEAR, SLOTS, -1)).sum(axis=1) > 2, np.nan,
                     np.nansum(values.reshape(YEAR, SLOTS, -1), axis=1))  # (365, homes)
    month = pd.date_range("2013-01-01", periods=YEAR).month
    winter, summer = (np.nanmean(daily[month.isin(months)], axis=0) for months in (WINTER, SUMMER))
    by_month = [np.ma.masked_invalid(values[np.repeat(month == m, SLOTS)]) for m in range(1, 13)]
    acf = autocorrelation(values, 7 * SLOTS)
    hourly = autocorrelation(values.reshape(STEPS // 2, 2, -1).sum(axis=1), 168)
    weekday, july = zone["winter weekday"], zone["summer weekday"]
    weekend = zone["winter weekend"] + zone["summer weekend"]
    return {
        "daily use, mean of homes": ("kWh", np.nanmean(daily)),
        "daily use, median home": ("kWh", np.nanmean(daily, axis=0)),
        **{f"daily use, {q}th percentile of home-days": ("kWh", np.nanpercentile(daily, q))
           for q in (5, 25, 50, 75, 95)},
        "spread between homes (sd / mean)": ("", np.nanmean(daily, axis=0).std() / np.nanmean(daily)),
        "spread between days (sd / mean)": ("", np.nanstd(daily, axis=0) / np.nanmean(daily, axis=0)),
        "load factor, half-hourly, by month": ("", np.mean([m.mean(axis=0) / m.max(axis=0) for m in by_month], axis=0)),
        "load factor of the zone": ("", np.nanmean(values) / np.nanmax(np.nanmean(values, axis=1))),
        "ACF at half an hour": ("", acf[1]),
        "ACF at 24 h": ("", acf[SLOTS]),
        "ACF at 168 h": ("", acf[7 * SLOTS]),
        "ACF at 24 h, hourly sums": ("", hourly[24]),
        "ACF at 168 h, hourly sums": ("", hourly[168]),
        "zero half hours, share of all": ("", np.nanmean(np.where(np.isnan(values), np.nan, values == 0))),
        "lowest load (5th percentile)": ("W", np.nanpercentile(values, 5, axis=0) * 2000),
        "winter / summer, zone": ("", np.nanmean(winter) / np.nanmean(summer)),
        "winter / summer, median home": ("", winter / summer),
        "weekend / weekday, zone": ("", weekend.sum() / (weekday + july).sum()),
        "winter weekday: night, 02-05 h": ("W", weekday[4:10].mean()),
        "winter weekday: morning peak, 06-10 h": ("W", weekday[12:20].max()),
        "winter weekday: midday, 11-15 h": ("W", weekday[22:30].mean()),
        "winter weekday: evening peak": ("W", weekday[32:46].max()),
        "winter weekday: time of the evening peak": ("h", 16 + weekday[32:46].argmax() / 2),
        "summer weekday: evening peak": ("W", july[32:46].max()),
    }


def verdict(real: float, low: float, high: float, other: float, measure: str) -> str:
    """In words, from the numbers: inside the real homes' own sampling interval, or by how much it is off."""
    if low <= other <= high:
        return "within the interval of the real homes"
    if other == real:
        return "equal"
    if measure.startswith("ACF") or "time of" in measure or real == 0:
        gap = other - real
        return f"{'higher' if gap > 0 else 'lower'} by {abs(gap):.2f}"
    gap = other / real - 1
    size = "close" if abs(gap) <= 0.1 else "off" if abs(gap) <= 0.3 else "far off"
    return f"{size}: {abs(gap):.0%} {'higher' if gap > 0 else 'lower'}"


def compare(real: pd.DataFrame, fake: pd.DataFrame, resamples: int, seed: int) -> pd.DataFrame:
    """One row per measure. real_low, real_high: 95 % bootstrap interval over the real homes, of per-home medians."""
    rows, others = [], measures(fake)
    draws = stream(seed, "bootstrap").integers(real.shape[1], size=(resamples, real.shape[1]))
    for measure, (unit, value) in measures(real).items():
        other, low, high = others[measure][1], np.nan, np.nan
        if np.ndim(value):
            low, high = np.nanpercentile(np.nanmedian(value[draws], axis=1), [2.5, 97.5])
            value, other = np.nanmedian(value), np.nanmedian(other)
        rows.append({"measure": measure, "unit": unit, "real": value, "real_low": low, "real_high": high,
                     "simulated": other, "difference": other - value, "ratio": other / value if value else np.nan,
                     "verdict": verdict(value, low, high, other, measure)})
    a, b = curves(real), curves(fake)
    for name in ("winter weekday", "winter weekend", "summer weekday", "summer weekend", "week"):
        gap = np.abs(b[name] / b[name].mean() - a[name] / a[name].mean()).mean()
        rows.append({"measure": f"shape of the {name} curve: mean gap", "unit": "of mean", "real": 0.0,
                     "simulated": gap, "difference": gap, "verdict": f"shapes differ by {gap:.0%} of the mean load"})
    return pd.DataFrame(rows)


def draw(real: pd.DataFrame, fake: pd.DataFrame, stem: Path) -> tuple[Path, ...]:
    """Six panels, PNG and SVG."""
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    style = {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "axes.grid": True,
             "grid.alpha": 0.25, "svg.hashsalt": "fedenergy", "axes.titlesize": 10, "axes.titleweight": "bold",
             "axes.titlelocation": "left"}
    a, b = curves(real), curves(fake)
    names = {"real": f"real, {real.shape[1]} London homes", "fake": f"simulated, {fake.shape[1]} homes"}
    pairs = (("real", REAL, real, a), ("fake", SIMULATED, fake, b))
    with plt.rc_context(style):
        figure, axes = plt.subplots(2, 3, figsize=(14, 7.6), layout="constrained")
        hours = np.arange(SLOTS) / 2 + 0.25
        top = 1.08 * max(curve[f"winter {day}"].max() for curve in (a, b) for day in ("weekday", "weekend"))
        for axis, season in zip(axes[0], ("winter", "summer")):
            for _, colour, _, curve in pairs:
                axis.plot(hours, curve[f"{season} weekday"], color=colour, lw=2)
                axis.plot(hours, curve[f"{season} weekend"], color=colour, lw=1.3, ls=(0, (4, 2)))
            months = "December to February" if season == "winter" else "June to August"
            axis.set(title=f"A day in {season} ({months})", xlabel="hour of day (GMT)", ylabel="mean load, W per home",
                     xlim=(0, 24), xticks=range(0, 25, 4), ylim=(0, top))
        axes[0, 0].plot([], [], color="grey", lw=2, label="weekday")
        axes[0, 0].plot([], [], color="grey", lw=1.3, ls=(0, (4, 2)), label="weekend")
        axes[0, 0].legend(frameon=False, loc="upper left")
        week = axes[0, 2]
        for _, colour, _, curve in pairs:
            week.plot(np.arange(7 * SLOTS) / SLOTS, curve["week"], color=colour, lw=1.4)
        week.set(title="A week, whole year", ylabel="mean load, W per home", xlim=(0, 7), ylim=(0, None))
        week.set_xticks(np.arange(7) + 0.5, ["Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"])
        week.tick_params(axis="x", length=0)

        spread, memory, year = axes[1]
        for _, colour, wide, curve in pairs:
            daily = wide.to_numpy().reshape(YEAR, SLOTS, -1).sum(axis=1)
            spread.plot(np.nanpercentile(daily, np.arange(1, 100)), np.arange(1, 100), color=colour, lw=2)
            spread.plot(np.sort(np.nanmean(daily, axis=0)), 100 * (np.arange(daily.shape[1]) + 0.5) / daily.shape[1],
                        color=colour, lw=1.3, ls=":")
            acf = autocorrelation(wide.to_numpy(), 7 * SLOTS)[1:]
            lag = np.arange(1, 7 * SLOTS + 1) / 2
            low, middle, high = np.nanpercentile(acf, [25, 50, 75], axis=1)
            memory.fill_between(lag, low, high, color=colour, alpha=0.15, lw=0)
            memory.plot(lag, middle, color=colour, lw=1.4)
            year.plot(range(1, 13), curve["month"], color=colour, lw=2, marker="o", ms=4)
        spread.plot([], [], color="grey", lw=2, label="all home-days")
        spread.plot([], [], color="grey", lw=1.3, ls=":", label="yearly means of homes")
        spread.legend(frameon=False, loc="lower right")
        spread.set(title="Daily use", xlabel="kWh per day", ylabel="percentile", ylim=(0, 100), xlim=(0, 40))
        memory.set(title="Autocorrelation of homes: median, middle half", xlabel="lag, hours",
                   ylabel="autocorrelation", xlim=(0, 168), xticks=range(0, 169, 24))
        year.set(title="Through the year", ylabel="kWh per day and home", ylim=(0, None))
        year.set_xticks(range(1, 13), list("JFMAMJJASOND"))
        handles = [plt.Line2D([], [], color=colour, lw=3, label=names[key]) for key, colour, _, _ in pairs]
        figure.legend(handles=handles, loc="outside upper center", ncols=2, frameon=False, fontsize=11)
        files = (stem.with_suffix(".png"), stem.with_suffix(".svg"))
        figure.savefig(files[0], dpi=130)
        figure.savefig(files[1], metadata={"Date": None})
        plt.close(figure)
    return files


def main(config: Mapping[str, Any] | None = None) -> Comparison:
    """Compare, write, return. config: data, out, homes, seed, quick (25 homes on each side)."""
    unknown = set(config or {}) - set(DEFAULTS)
    if unknown:
        raise ValueError(f"simulator_vs_london has no setting {min(unknown)!r} (it has: {', '.join(DEFAULTS)})")
    settings = {**DEFAULTS, **(config or {})}
    out = Path(settings["out"])
    out.mkdir(parents=True, exist_ok=True)
    real, excluded = london(Path(settings["data"]))
    homes = settings["homes"]
    if settings["quick"]:
        homes, real = min(homes, 25), real.iloc[:, :25]
    fake = simulated(homes, settings["seed"])
    table = compare(real, fake, 200 if settings["quick"] else 2000, settings["seed"])
    shapes = pd.concat([pd.DataFrame({"curve": name, "step": np.arange(len(values)), "real": values,
                                      "simulated": curves(fake)[name]}) for name, values in curves(real).items()])
    written = []
    for name, frame in (("comparison", table), ("excluded", excluded), ("curves", shapes)):
        written.append(out / f"{name}.csv")
        frame.to_csv(written[-1], index=False, float_format="%.6g", lineterminator="\n")
    return Comparison(table, excluded, (*written, *draw(real, fake, out / "simulator_vs_london")))


def _text(result: Comparison) -> str:
    shown = result.table.drop(columns=["ratio"]).to_string(
        index=False, float_format=lambda value: f"{value:.3g}", na_rep="", justify="left")
    left_out = result.excluded[result.excluded["left_out"]]
    return "\n".join([shown, "", f"Real homes left out: {len(left_out)} ({', '.join(left_out['household'])}); "
                      f"kept with a flag: {', '.join(result.excluded.loc[~result.excluded['left_out'], 'household'])}",
                      "real_low, real_high: 95 % interval of the median when the real homes are resampled.",
                      "The simulated zone has weather of its own, not London's of 2013. Its appliances were scaled to",
                      "these same homes' aggregates, so this is no test on unseen homes.",
                      *(str(path) for path in result.files)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=DEFAULTS["data"], help="folder with lcl_london/")
    parser.add_argument("--out", default=DEFAULTS["out"], help="folder for tables and figures")
    parser.add_argument("--homes", type=int, default=DEFAULTS["homes"], help="simulated homes")
    parser.add_argument("--seed", type=int, default=DEFAULTS["seed"])
    parser.add_argument("--quick", action="store_true", help="25 homes on each side")
    print(_text(main(vars(parser.parse_args()))))
