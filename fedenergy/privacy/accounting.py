"""What DP-SGD costs: epsilon computed from the steps that ran, never typed in.

The mechanism is the Poisson-subsampled Gaussian: each record enters a batch with probability q, records are clipped to
C, noise of standard deviation sigma * C is added to their sum. Accounting is by privacy-loss distributions (PLD,
dp-accounting, pessimistic); Opacus' Renyi accountant (RDP) stands beside it as the cross-check and the fallback.
Neighbours are "add/remove" (one record present or absent) unless a function says otherwise.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

RELATIONS = ("add/remove", "replace-one")
METHODS = ("pld", "rdp")
ORDERS = tuple([1 + x / 100 for x in range(1, 10)] + [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
               + [80, 96, 128, 192, 256, 512, 1024])
ROUGH = (1.1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)          # enough to choose a discretisation
FINEST = 1e-5                          # least discretisation interval, in units of privacy loss
MOST_POINTS = 3e6                      # grid points of a composed distribution: seconds, hundreds of MB
SHARE = 4e-3                           # an interval h costs about steps * h**2 / 12: a third of a thousandth here


@dataclass(frozen=True)
class Steps:
    """A run of equal steps of the Poisson-subsampled Gaussian.

    sigma  noise multiplier, > 0: noise standard deviation / clipping bound
    q      inclusion probability of a record, 0 < q <= 1 (expected batch / number of records; not 1 / len(loader))
    steps  >= 1, steps with an empty batch included
    Raises ValueError for anything else (Opacus' own accountants accept nonsense or hang).
    """

    sigma: float
    q: float
    steps: int

    def __post_init__(self) -> None:
        _real("sigma", self.sigma, "a finite noise multiplier above 0", lambda x: 0 < x < math.inf)
        _real("q", self.q, "an inclusion probability, 0 < q <= 1", lambda x: 0 < x <= 1)
        if isinstance(self.steps, bool) or not isinstance(self.steps, int) or self.steps < 1:
            raise ValueError(f"steps = {self.steps!r} is not a whole number of at least 1: count the steps that ran")


def check_delta(delta: float) -> None:
    """ValueError unless 0 < delta < 1."""
    _real("delta", delta, "a probability strictly between 0 and 1, such as 1e-5", lambda x: 0 < x < 1)


def _real(name: str, value: Any, rule: str, holds: Callable[[float], bool]) -> None:
    if isinstance(value, bool | str) or not holds(float(value)):
        raise ValueError(f"{name} = {value!r} is not {rule}")


def epsilon(sigma: float, q: float, steps: int, delta: float, *, method: str = "pld", relation: str = "add/remove",
            windows: int = 1) -> float:
    """Epsilon at delta of `steps` equal steps.

    method    "pld" (falls back to RDP where PLD is out of reach) or "rdp"
    relation  "add/remove" or "replace-one" (PLD only; see `to_replace_one` for the conversion)
    windows   records of one protected unit (a household's windows): each is drawn by its own coin
    Guarantee: an upper bound, finite and >= 0.

    >>> round(epsilon(1.0, 0.01, 1000, 1e-5), 2)
    1.83
    """
    return epsilon_of([Steps(sigma, q, steps)], delta, method=method, relation=relation, windows=windows)


def epsilon_of(parts: Iterable[Steps], delta: float, *, method: str = "pld", relation: str = "add/remove",
               windows: int = 1) -> float:
    """Epsilon at delta of several runs of steps, one after the other on the same records; arguments as `epsilon`."""
    parts = tuple(parts)
    check_delta(delta)
    if method not in METHODS:
        raise ValueError(f"method = {method!r} is unknown (takes: {', '.join(METHODS)})")
    if relation not in RELATIONS:
        raise ValueError(f"relation = {relation!r} is unknown (takes: {', '.join(RELATIONS)})")
    if isinstance(windows, bool) or not isinstance(windows, int) or windows < 1:
        raise ValueError(f"windows = {windows!r} is not a whole number of at least 1")
    if method == "rdp" and (relation != "add/remove" or windows > 1):
        raise ValueError("RDP is offered for one record under add/remove only: use method = \"pld\"")
    if relation == "replace-one" and windows > 1:
        raise ValueError("replace-one of a unit of several records: state add/remove and use to_replace_one")
    if not parts:
        return 0.0
    result = _rdp(parts, delta) if method == "rdp" else _pld(parts, delta, relation, windows)
    if not (math.isfinite(result) and result >= 0):
        raise ArithmeticError(f"the accountant returned epsilon = {result} for {parts} at delta = {delta}")
    return result


@lru_cache(maxsize=4096)
def _rdp(parts: tuple[Steps, ...], delta: float, orders: tuple[float, ...] = ORDERS) -> float:
    from opacus.accountants.analysis import rdp

    total = sum(rdp.compute_rdp(q=p.q, noise_multiplier=p.sigma, steps=p.steps, orders=orders) for p in parts)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")            # an extreme order is still a valid bound
        return max(0.0, float(rdp.get_privacy_spent(orders=orders, rdp=total, delta=delta)[0]))


@lru_cache(maxsize=4096)
def _pld(parts: tuple[Steps, ...], delta: float, relation: str, windows: int) -> float:
    """Any discretisation gives an upper bound; the one chosen costs about 0.1 % of epsilon (tests hold it)."""
    steps = sum(part.steps for part in parts)
    rough = max(_rdp(parts, delta, ROUGH) * windows, 0.1)
    spread = min(part.q / part.sigma for part in parts)            # standard deviation of one step's loss
    interval = min(math.sqrt(SHARE * rough / steps), spread / 5)
    interval = max(interval, rough / MOST_POINTS, FINEST)
    if windows > 1:
        interval = max(interval, 1e-3 * windows)                   # mixtures are costly to discretise
    found = float(_compose(parts, relation, windows, interval).get_epsilon_for_delta(delta))
    if math.isinf(found) and relation == "add/remove" and windows == 1:
        return _rdp(parts, delta)                                  # the PLD's truncated tail is heavier than delta
    return found


def _compose(parts: Sequence[Steps], relation: str, windows: int, interval: float) -> Any:
    from dp_accounting import NeighboringRelation
    from dp_accounting.pld import privacy_loss_distribution as pld

    neighbours = {"add/remove": NeighboringRelation.ADD_OR_REMOVE_ONE, "replace-one": NeighboringRelation.REPLACE_ONE}
    total = None
    for part in parts:
        if windows == 1:
            one = pld.from_gaussian_mechanism(part.sigma, sampling_prob=part.q, neighboring_relation=neighbours[relation],
                                              value_discretization_interval=interval)
        elif part.q == 1.0:                                        # all of them are drawn: one Gaussian, so far away
            one = pld.from_gaussian_mechanism(part.sigma / windows, value_discretization_interval=interval,
                                              neighboring_relation=neighbours["add/remove"])
        else:
            shifts, chances = _binomial(windows, part.q)
            one = pld.from_mixture_gaussian_mechanism(part.sigma, shifts, chances,
                                                      value_discretization_interval=interval)
        run = one.self_compose(part.steps)
        total = run if total is None else total.compose(run)
    return total


def _binomial(windows: int, q: float) -> tuple[list[float], list[float]]:
    """How many of a unit's windows a batch holds; negligible upper counts are charged as if they were `windows`."""
    from scipy.stats import binom

    chances = [float(binom.pmf(count, windows, q)) for count in range(windows + 1)]
    kept = [count for count in range(windows + 1) if chances[count] > 1e-30 or count == windows]
    chances = [chances[count] for count in kept]
    chances[-1] = max(0.0, 1.0 - sum(chances[:-1]))
    if chances[-1] == 0.0:
        kept, chances = kept[:-1], [c / sum(chances[:-1]) for c in chances[:-1]]
    return [float(count) for count in kept], chances


def calibrate_sigma(epsilon_wanted: float, delta: float, q: float, steps: int, *, relation: str = "add/remove",
                    tolerance: float = 1e-3) -> float:
    """The smallest noise multiplier (to the relative tolerance) whose PLD epsilon at delta is at most the one wanted.

    Guarantee: epsilon(sigma, q, steps, delta, relation=relation) <= epsilon_wanted.

    >>> 1.0 < calibrate_sigma(1.83, 1e-5, 0.01, 1000) < 1.01
    True
    """
    _real("epsilon", epsilon_wanted, "a finite epsilon above 0", lambda x: 0 < x < math.inf)
    check_delta(delta)
    Steps(1.0, q, steps)

    def cost(sigma: float) -> float:
        return epsilon(sigma, q, steps, delta, relation=relation)

    high = 1.0
    while (above := cost(high)) > epsilon_wanted:
        high *= 2.0
        if high > 1e7:
            raise ValueError(f"no noise multiplier below 1e7 gives epsilon {epsilon_wanted} at q = {q}, {steps} steps")
    low = high / 2.0
    while (below := cost(low)) <= epsilon_wanted:
        low, high, above = low / 2.0, low, below
        if high < 1e-2:
            return high
    push = 1.0                       # interpolate in logarithms, landing a little to either side of the root in turn
    while high / low > 1.0 + tolerance:
        share = math.log(below / epsilon_wanted) / math.log(below / max(above, 1e-9))
        guess = low * (high / low) ** share * (1.0 + tolerance / 3.0) ** push
        guess = min(max(guess, low * (1.0 + tolerance / 2.0)), high / (1.0 + tolerance / 2.0))
        found = cost(guess)
        if found <= epsilon_wanted:
            high, above, push = guess, found, -1.0
        else:
            low, below, push = guess, found, 1.0
    return high


def to_replace_one(epsilon_value: float, delta: float) -> tuple[float, float]:
    """(epsilon, delta) under add/remove -> what holds under replace-one: (2 eps, (1 + e^eps) delta), removal then
    addition.

    >>> to_replace_one(1.0, 1e-5)[0]
    2.0
    """
    return 2.0 * epsilon_value, _capped(1.0, epsilon_value, delta)


def group(epsilon_value: float, delta: float, k: int) -> tuple[float, float]:
    """(epsilon, delta) of one record -> what holds for k records together: (k eps, delta (e^(k eps) - 1) / (e^eps - 1)).

    Source: group privacy (Dwork and Roth 2014, Vadhan 2017). `epsilon(..., windows=k)` is tighter for DP-SGD.

    >>> group(0.5, 0.0, 4)
    (2.0, 0.0)
    """
    if k < 1:
        raise ValueError(f"k = {k} is not at least 1")
    total = 0.0
    for _ in range(k):
        total = total * math.exp(min(epsilon_value, 700.0)) + delta
        if total >= 1.0:
            return k * epsilon_value, 1.0
    return k * epsilon_value, total


def _capped(start: float, exponent: float, delta: float) -> float:
    return min(1.0, (start + math.exp(min(exponent, 700.0))) * delta)


@dataclass
class History:
    """What a training run really did: equal steps merged, every batch size kept, empty batches counted.

    batches  records drawn at each step: secret, as the amplification by sampling rests on it; None where not told
    """

    parts: list[Steps] = field(default_factory=list)
    batches: list[int] | None = field(default_factory=list)

    def add(self, sigma: float, q: float, batch: int) -> None:
        """One step ran: its noise multiplier, its inclusion probability and how many records it drew (may be 0)."""
        if self.parts and (self.parts[-1].sigma, self.parts[-1].q) == (sigma, q):
            self.parts[-1] = Steps(sigma, q, self.parts[-1].steps + 1)
        else:
            self.parts.append(Steps(sigma, q, 1))
        self.batches.append(int(batch))

    @property
    def steps(self) -> int:
        return sum(part.steps for part in self.parts)

    @property
    def empty(self) -> int | None:
        """Steps that released noise only; None where the batches are not told."""
        return None if self.batches is None else sum(batch == 0 for batch in self.batches)

    def epsilon(self, delta: float, **options: Any) -> float:
        """See `epsilon_of`; 0 before the first step."""
        return epsilon_of(self.parts, delta, **options)

    def as_json(self) -> dict[str, Any]:
        """Plain data for a checkpoint."""
        return {"parts": [[p.sigma, p.q, p.steps] for p in self.parts], "batches": self.batches and list(self.batches)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> History:
        """The inverse of `as_json`; ValueError where the batches do not match the steps."""
        told = data["batches"]
        history = cls([Steps(float(s), float(q), int(n)) for s, q, n in data["parts"]],
                      None if told is None else [int(batch) for batch in told])
        if told is None:
            return history
        if history.steps != len(history.batches) or any(batch < 0 for batch in history.batches):
            raise ValueError(f"a history of {history.steps} steps with {len(history.batches)} batches is corrupt")
        return history


@dataclass(frozen=True)
class Statement:
    """What a trained model may claim, computed from its history.

    epsilon, delta     of one record (`unit`) under `relation`, by `method`; infinite without DP-SGD
    epsilon_rdp        the cross-check
    replace_one        epsilon at the same delta under replace-one, by PLD
    household          epsilon at the same delta of all windows of one household (add/remove), `household_windows` of
                       them at most; None where the number is not known
    noise              the noise stamp: "" for noise of the operating system, else why the figure does not hold
    notes              what the figure does not cover
    """

    epsilon: float
    delta: float
    epsilon_rdp: float
    replace_one: float
    sigma: float
    q: float
    clip: float
    steps: int
    empty_batches: int | None
    unit: str = "window"
    relation: str = "add/remove"
    method: str = "pld"
    household_windows: int | None = None
    household: float | None = None
    noise: str = ""
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if math.isinf(self.epsilon):
            return "; ".join(["no privacy: trained without DP-SGD (epsilon is infinite)", *self.notes])
        empty = "" if self.empty_batches is None else f" ({self.empty_batches} empty)"
        text = [f"epsilon {self.epsilon:.4g} at delta {self.delta:g} per {self.unit} ({self.relation}, "
                f"{self.method.upper()}; RDP {self.epsilon_rdp:.4g}; replace-one {self.replace_one:.4g})",
                f"{self.steps} steps{empty}, sigma {self.sigma:g}, q {self.q:g}, clip {self.clip:g}",
                "household: its number of windows is not known" if self.household is None else
                f"household of {self.household_windows} windows: epsilon {self.household:.4g}"]
        return "; ".join([*text, *self.notes, *filter(None, [self.noise])])


def state(history: History, delta: float, clip: float, *, unit: str = "window", household_windows: int | None = None,
          noise: str = "", notes: Sequence[str] = ()) -> Statement:
    """The statement of a history; without steps, that of a model without privacy."""
    if not history.parts:
        return Statement(math.inf, delta, math.inf, math.inf, 0.0, 0.0, math.inf, 0, 0, unit=unit, notes=tuple(notes),
                         household_windows=household_windows, household=None if household_windows is None else math.inf)
    last, cost = history.parts[-1], history.epsilon(delta)
    home = None if household_windows is None else (
        cost if household_windows == 1 else history.epsilon(delta, windows=household_windows))
    return Statement(cost, delta, history.epsilon(delta, method="rdp"),
                     history.epsilon(delta, relation="replace-one"), last.sigma, last.q, clip, history.steps,
                     history.empty, unit=unit, household_windows=household_windows, household=home, noise=noise,
                     notes=tuple(notes))
