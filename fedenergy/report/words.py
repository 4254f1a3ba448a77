"""Numbers, names and units as text: one form for the terminal, the figures and the page."""

from __future__ import annotations

import math
from collections.abc import Iterable

ABSENT = "–"

METRICS = {  # name: (heading, has the unit of values, which way is better)
    "mae": ("MAE", True, "lower"),
    "rmse": ("RMSE", True, "lower"),
    "spearman": ("Spearman", False, "higher"),
    "cosine": ("cosine", False, "higher"),
    "top1": ("top-1", False, "higher"),
    "sign": ("sign", False, "higher"),
    "mae_total": ("MAE, total", True, "lower"),
    "rmse_total": ("RMSE, total", True, "lower"),
    "spearman_total": ("Spearman, total", False, "higher"),
    "cosine_total": ("cosine, total", False, "higher"),
    "top1_total": ("top-1, total", False, "higher"),
    "sign_total": ("sign, total", False, "higher"),
    "mae_less": ("MAE, by granting less", True, "lower"),
    "clipped_share": ("clipped share", False, "lower"),
    "train_loss": ("training loss", False, "lower"),
    "mae_worst_tenth": ("MAE, worst tenth of homes", True, "lower"),
    "mae_no_change": ("MAE, no change", True, "lower"),
    "rmse_no_change": ("RMSE, no change", True, "lower"),
    "answers": ("answers", False, "higher"),
    "refusals": ("refusals", False, "lower"),
    "failures": ("failures", False, "lower"),
    "epsilon_spent_mean": ("ε spent, mean", False, "lower"),
    "epsilon_spent_max": ("ε spent, max", False, "lower"),
}

TRUST = {
    "local": "one noise per home",
    "sum": "one noise for the zone",
    "curator": "one noise drawn by the Curator",
    "open": "no noise",
}


def number(value: object, digits: int = 3) -> str:
    """A number with `digits` significant digits, the absent sign for NaN and None.

    >>> [number(x) for x in (0.12345, 1234.5, 50, 0.00001234, float("nan"), float("inf"))]
    ['0.123', '1,234', '50', '1.23e-05', '–', '∞']
    """
    if value is None or isinstance(value, str | bool):
        return ABSENT if value in (None, "") else str(value)
    x = float(value)  # type: ignore[arg-type]
    if math.isnan(x):
        return ABSENT
    if math.isinf(x):
        return "∞" if x > 0 else "−∞"
    size = abs(x)
    if x == 0 or (x == int(x) and size < 1e6):
        return minus(f"{int(x):,}")
    if size >= 1e6 or size < 1e-3:
        return minus(f"{x:.{digits - 1}e}")
    return minus(f"{x:,.{max(0, digits - 1 - math.floor(math.log10(size)))}f}")


def minus(text: str) -> str:
    """A leading hyphen as a true minus sign."""
    return "−" + text[1:] if text.startswith("-") else text


def spread(mean: float, sd: float) -> str:
    """mean ± sd, the mean no finer than two digits of the sd; the mean alone where there is no sd (one seed).

    >>> spread(0.0341, 0.19), spread(1053.2, 201.0), spread(831.04, 8.3), spread(48.0, 0.0), spread(0.5, float("nan"))
    ('0.03 ± 0.19', '1,053 ± 201', '831.0 ± 8.3', '48 ± 0', '0.500')
    """
    if not (math.isfinite(mean) and math.isfinite(sd)) or sd == 0:
        return number(mean) + (" ± 0" if sd == 0 else "")
    places = max(0, 1 - math.floor(math.log10(sd)))
    if mean:
        places = min(places, max(0, 3 - math.floor(math.log10(abs(mean)))))  # four digits of the mean are enough
    if places > 6 or abs(mean) >= 1e6:
        return f"{number(mean)} ± {number(sd, 2)}"
    text = minus(f"{mean:,.{places}f}") if round(mean, places) else f"{0:.{places}f}"
    return f"{text} ± {sd:,.{places}f}" if round(sd, places) else f"{text} ± {number(sd, 2)}"


def epsilon_text(epsilon: object, trust: str = "") -> str:
    """The epsilon asked; ∞ for plain answers, whatever was asked.

    >>> epsilon_text(0.1, "sum"), epsilon_text(1.0, "open"), epsilon_text(1.05361)
    ('0.1', '∞', '1.05361')
    """
    if trust == "open":
        return "∞"
    if epsilon is None or isinstance(epsilon, str):
        return ABSENT if epsilon in (None, "") else str(epsilon)
    return f"{float(epsilon):g}" if math.isfinite(float(epsilon)) else number(epsilon)  # type: ignore[arg-type]


def heading(metric: str, values_unit: str = "") -> str:
    """A metric's column heading, with the unit where it has one."""
    title, has_unit, _ = METRICS.get(metric, (metric, False, "lower"))
    return f"{title} ({unit_text(values_unit)})" if has_unit and values_unit else title


def unit_text(unit: str) -> str:
    """kWh^2 as kWh²."""
    return unit.replace("^2", "²").replace("^3", "³")


def lower_is_better(metric: str) -> bool:
    return METRICS.get(metric, (metric, False, "lower"))[2] == "lower"


def labels(strategies: Iterable[str]) -> dict[str, str]:
    """Short names: what follows the colon, unless two strategies share it.

    >>> labels(["strategies.zonal_sum:ZonalSum", "mine:Sum", "yours:Sum"])
    {'strategies.zonal_sum:ZonalSum': 'ZonalSum', 'mine:Sum': 'mine:Sum', 'yours:Sum': 'yours:Sum'}
    """
    names = list(dict.fromkeys(strategies))
    short = {name: _after_colon(name) or name for name in names}
    ends = list(short.values())
    return {name: end if ends.count(end) == 1 else name for name, end in short.items()}


def _after_colon(name: str) -> str:
    """Name(arguments) of "module:Name(arguments)"; a colon among the arguments is theirs."""
    head, bracket, arguments = name.partition("(")
    return head.rsplit(":", 1)[-1] + bracket + arguments


def duration(seconds: object) -> str:
    """Seconds in words: 45 s, 3 min 20 s, 2 h 05 min."""
    if not isinstance(seconds, int | float) or not math.isfinite(seconds):
        return ABSENT
    whole = round(seconds)
    if whole < 60:
        return f"{number(seconds, 2)} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def listing(items: Iterable[object]) -> str:
    """a, b and c."""
    texts = [str(item) for item in items]
    return texts[0] if len(texts) == 1 else f"{', '.join(texts[:-1])} and {texts[-1]}" if texts else ""
