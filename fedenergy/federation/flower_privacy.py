"""What Flower's privacy wrappers of a strategy guarantee, recounted from the rounds that ran.

The wrappers clip each home's change of the model to C in l2, let the strategy inside average n of them, and add Gaussian
noise of standard deviation z C' / N to the mean, where N is the cohort that they were told and C' the clip when noise is
added: the adaptive ones have moved it by then. One home moves the mean by C / n, so a round's noise multiplier is
z (C' / C) (n / N), under add/remove with n public; replacing a home moves it twice as far. The adaptive wrappers tell the
noisy count of clipped homes too (Andrew et al. 2021, arXiv:1905.03871, Theorem 1).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from flwr.serverapp.strategy import FedAvg
from flwr.serverapp.strategy.dp_adaptive_clipping import DifferentialPrivacyAdaptiveBase
from flwr.serverapp.strategy.dp_fixed_clipping import DifferentialPrivacyFixedClippingBase

from fedenergy.box.query import UPDATE
from fedenergy.privacy.noise import noise_from

if TYPE_CHECKING:
    from fedenergy.federation.campaign import Part, State
    from fedenergy.federation.plan import Plan

MULTIPLIER, CLIP = "noise_multiplier", "clipping_norm"  # metrics of a round
DELTA = 1e-5                                            # where [query] delta is not given


class Clipped(NamedTuple):
    """A wrapper before a round is aggregated: the clip that the homes' changes meet."""

    wrapper: Any
    clip: float


def before(strategy: Any) -> Clipped | None:
    """Note a wrapper's clip; None for every other strategy, and for those around one (they change the answers)."""
    if not isinstance(strategy, DifferentialPrivacyFixedClippingBase | DifferentialPrivacyAdaptiveBase):
        return None
    return Clipped(strategy, float(strategy.clipping_norm))


def after(noted: Clipped | None, answers: int) -> dict[str, float]:
    """Metrics of a round that released a model: its noise multiplier under add/remove, and its clip."""
    if noted is None:
        return {}
    wrapper, clip = noted
    return {MULTIPLIER: multiplier(wrapper.noise_multiplier, wrapper.clipping_norm / clip, answers,
                                   wrapper.num_sampled_clients, getattr(wrapper, "clipped_count_stddev", None)), CLIP: clip}


def multiplier(z: float, moved: float, answers: int, cohort: int, count_deviation: float | None = None) -> float:
    """Of one round, under add/remove: noise over sensitivity, of the mean and, with it, of the count of clipped homes.

    z, cohort        as the wrapper holds them; moved: clip of the noise over clip of the changes
    count_deviation  of the noise on the count of `answers` homes; None: no count is told

    >>> multiplier(1.0, 1.0, 10, 10), multiplier(1.0, 1.0, 5, 10)
    (1.0, 0.5)
    """
    mean = z * moved * answers / cohort
    if count_deviation is None:
        return mean
    return composed([mean, 2 * count_deviation])


def composed(multipliers: Iterable[float]) -> float:
    """The noise multiplier of one Gaussian release that costs as much as several: 0 where one of them has no noise.

    Dong et al. 2022 (arXiv:1905.02383), Corollary 3.3, also where each depends on what the earlier ones gave.

    >>> composed([2.0] * 4)
    1.0
    """
    several = list(multipliers)
    return 0.0 if not all(several) else 1 / math.sqrt(math.fsum(one**-2 for one in several))


def epsilons(noise: float, delta: float) -> dict[str, float]:
    """Relation -> epsilon at delta of one Gaussian release with a noise multiplier (add/remove); infinite without noise."""
    from fedenergy.privacy.accounting import epsilon

    return {relation: epsilon(noise / times, 1.0, 1, delta) if noise else math.inf
            for relation, times in (("replace-one", 2), ("add/remove", 1))}


def statements(plan: Plan, states: Sequence[State]) -> list[str]:
    """One sentence for each wrapper of a run and each variation: computed from its rounds, the least private seed's."""
    found: dict[str, tuple[float, str]] = {}
    for part, state in zip(plan.parts, states, strict=True):
        for entry in part.entries:
            strategy = entry.build()
            if before(strategy) is None or part.query.query_class != UPDATE:
                continue
            rounds = [row for row in state.rows if row[2] == entry.label and row[7] == part.seed]
            values = {name: [row[10] for row in rounds if row[9] == name] for name in (MULTIPLIER, CLIP, "answers")}
            if not values[MULTIPLIER]:
                continue
            noise, key = composed(values[MULTIPLIER]), f"{entry.label}{part.keys or ''}"
            if noise <= found.get(key, (math.inf,))[0]:
                found[key] = noise, _sentence(key, strategy, part, noise, values)
    return [text for _, (_, text) in sorted(found.items())]


def planned(part: Part) -> list[str]:
    """The same before a run, for fixed clips: where every home answers in every round. Adaptive ones show as they run."""
    told = []
    for entry in part.entries:
        strategy, homes, rounds = entry.build(), len(part.world.population), part.query.rounds
        if isinstance(strategy, DifferentialPrivacyFixedClippingBase) and part.query.query_class == UPDATE:
            several = [multiplier(strategy.noise_multiplier, 1.0, homes, strategy.num_sampled_clients)] * rounds
            told.append(_sentence(entry.label, strategy, part, composed(several), {
                MULTIPLIER: several, CLIP: [strategy.clipping_norm], "answers": [homes]}))
    return told


def _sentence(name: str, strategy: Any, part: Part, noise: float, values: Mapping[str, Sequence[float]]) -> str:
    inside = type(strategy.strategy)
    told = f"{name} around {inside.__name__}: "
    if inside.aggregate_train is not FedAvg.aggregate_train:
        return (f"{told}no guarantee. How far one home can move what {inside.__name__} makes of the clipped changes is not "
                "known; it is for strategies that average, such as FedAvg and FedProx.")
    delta = part.query.delta or DELTA
    if noise == 0:
        return f"{told}no guarantee: no noise was added."
    cost = epsilons(noise, delta)
    unit = part.world.population.unit
    return (f"{told}whoever sees the {len(values[MULTIPLIER])} models of its rounds and nothing else, epsilon = "
            f"{cost['replace-one']:.3g} (replace-one; {cost['add/remove']:.3g} under add/remove) at delta = {delta:g} per "
            f"{unit}, if the noise were secret. It is not, whatever [privacy] says ({noise_from('simulation', 0).stamp}). "
            f"Counted from noise multipliers {_range(values[MULTIPLIER])}, clips {_range(values[CLIP])}, cohorts "
            f"{_range(values['answers'])}, without amplification by sampling. The zone sees every home's change, clipped or "
            "not; losses and errors are not noised.")


def _range(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    return f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}"
