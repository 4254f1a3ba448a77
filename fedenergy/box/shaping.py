"""The mechanism of a release: by the name in the query or, where a policy shapes the noise, from public state.

A policy shapes it with a method `mechanism(public)` (box/policies_weighted.py). It sees the number of coordinates, the
clip and the trust mode, and no earlier answer: box and operator come to the same weights without telling each other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedenergy.box.policy import Public, policy_name
from fedenergy.box.query import IN_BLOCKS, UPDATE, SealedQuery
from fedenergy.privacy.by_name import Mechanism, mechanism
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.one_block import OneBlock
from fedenergy.privacy.shared_gaussian import SharedGaussian
from fedenergy.privacy.trust import SUM
from fedenergy.privacy.weighted import ATTRIBUTION, WEIGHTED, AttributionLaplace, WeightedLaplace

LAPLACE = "laplace"
SHAPED = {WEIGHTED: WeightedLaplace, ATTRIBUTION: AttributionLaplace}


def leaks(policy: Any) -> bool:
    """Whether a policy says of itself that it sets noise by the true answer."""
    return bool(getattr(policy, "leaks", False))


def shaped(policy: Any, name: str) -> str:
    """The name that a query carries for a mechanism: that of the policy's own one in place of plain Laplace noise."""
    if name != LAPLACE or not hasattr(policy, "mechanism"):
        return name
    return ATTRIBUTION if leaks(policy) else WEIGHTED


def release_mechanism(query: SealedQuery, policy: Any,
                      coordinates: int) -> Mechanism | OneBlock | SharedGaussian | WeightedLaplace | AttributionLaplace:
    """The mechanism of a query for homes with that policy. ValueError where the policy makes none that fits."""
    if query.mechanism == GAUSSIAN and query.kind in IN_BLOCKS:
        return OneBlock.of(query.body["task"], query.delta, coordinates)
    if query.mechanism == GAUSSIAN and query.query_class == UPDATE and query.trust == SUM:
        return SharedGaussian(query.clip, query.delta)
    kind = SHAPED.get(query.mechanism)
    if kind is None:
        return mechanism(query.mechanism, query.clip, query.delta)
    return policy_mechanism(policy, kind, Public(N=query.homes, d=coordinates, clip=query.clip, trust=query.trust))


def policy_mechanism(policy: Any, kind: type, public: Public) -> WeightedLaplace | AttributionLaplace:
    """What policy.mechanism(public) gives, checked: its type, its clip, one weight for each coordinate."""
    own = getattr(policy, "mechanism", None)
    made = own(public) if callable(own) else None
    if type(made) is not kind or made.clip != public.clip:
        raise ValueError(f"policy {policy_name(policy)} has no {kind.__name__} for a clip of {public.clip:g}")
    if kind is WeightedLaplace and len(made.weights) != public.d:
        raise ValueError(f"policy {policy_name(policy)} gives {len(made.weights)} weights for {public.d} coordinates")
    if kind is AttributionLaplace:
        made.shares(np.zeros(public.d))  # its factors have the right length
    return made


def grid_steps(query: SealedQuery, policy: Any, coordinates: int) -> float | np.ndarray:
    """What one integer of an answer is worth, units of the values: g, or (d,) w_k g under weights."""
    if query.mechanism != WEIGHTED:
        return query.grid
    return query.grid * np.array(release_mechanism(query, policy, coordinates).weights)
