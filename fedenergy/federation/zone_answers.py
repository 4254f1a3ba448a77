"""What the operator holds after a round: the zone's released vector, and the law of the noise in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from fedenergy.box.query import SealedQuery
from fedenergy.box.world import KindSpec
from fedenergy.federation.trust_grid import UNBOUNDED
from fedenergy.privacy.by_name import mechanism
from fedenergy.privacy.gaussian import GAUSSIAN
from fedenergy.privacy.noisy_max import NOISY_MAX
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import LOCAL


def noise_law(query: SealedQuery, granted_micro: Sequence[int], size: int, widest: float = 1.0) -> dict[str, Any]:
    """The law of one coordinate's noise in the sum of the answers; everything in it is public.

    granted_micro   micro-epsilon of each home in the sum; size: d; widest: the largest weight of a coordinate, whose
                    noise is then taken for every coordinate
    {"law": "laplace", "scale": b, "noises": n}: n independent Laplace(b), units of the values (exact up to the grid);
    {"law": "normal", "sd": s}: discrete Gaussian noise, or a sum of many unlike noises (central limit). For noisy max
    the larger of its two variances is taken for every coordinate.
    """
    law = mechanism(query.mechanism, query.clip, query.delta)
    local = query.trust == LOCAL
    if (protocol := SumProtocol.parse(query.mechanism)) is not None:  # at most 1 / tau noises, whoever drops out
        return {"law": "normal", "sd": law.scale_units(query.epsilon_micro) * math.sqrt(2 / protocol.tau)}
    if query.mechanism == GAUSSIAN:
        each = [law.scale_units(granted) ** 2 for granted in granted_micro] if local \
            else [law.scale_units(query.epsilon_micro) ** 2]
        return {"law": "normal", "sd": math.sqrt(math.fsum(each))}
    if query.mechanism == NOISY_MAX:
        return {"law": "normal", "sd": math.sqrt(math.fsum(max(law.variance(granted, size)) for granted in granted_micro))}
    if not local:
        times = len(granted_micro) if query.mechanism == UNBOUNDED else widest
        return {"law": "laplace", "scale": law.scale_units(query.epsilon_micro) * times, "noises": 1}
    if len(set(granted_micro)) == 1:
        return {"law": "laplace", "scale": law.scale_units(granted_micro[0]) * widest, "noises": len(granted_micro)}
    each = [law.scale_units(granted) * widest for granted in granted_micro]
    return {"law": "normal", "sd": math.sqrt(math.fsum(2 * scale**2 for scale in each))}


def zone_answer(query: SealedQuery, spec: KindSpec, released: Sequence[float], granted_micro: Sequence[int], *,
                asked: int, answers: int, plain_sum: bool, widest: float = 1.0, **known: Any) -> dict[str, Any]:
    """One row of `zone_answers` in summary.json: what report/zone.py reads. JSON values only, nothing noise-free.

    plain_sum  the strategy adds the answers up; else its noise has no closed form here and "noise" is None
    """
    noise = noise_law(query, granted_micro, len(released), widest) if plain_sum and granted_micro else None
    return {**known, "kind": query.kind, "class": query.query_class, "trust": query.trust, "mechanism": query.mechanism,
            "epsilon": query.epsilon, "delta": query.delta, "asked": asked, "answers": answers,
            "coordinates": list(spec.coordinates), "unit": spec.unit, "clip": spec.clip,
            "released": [float(value) for value in released], "noise": noise}
