"""ZonalGaussian: every home adds its own Gaussian noise, the zone adds up (the HXAI source's footnote)."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy


class ZonalGaussian(ZoneStrategy):
    """Trust local, discrete Gaussian noise: needs [query] delta and an [agreement] delta of at least all queries'.

    Unbiased for the sum of the summaries clipped in l2 to C. Its noise has the standard deviation sigma sqrt(n) in each
    coordinate, sigma = 2C / sqrt(2 rho): more than Laplace(2C/epsilon) for one query at the same C (2.9 times at
    epsilon 1, delta 1e-5), less where an l2 bound far below the l1 bound fits, or over many queries (rho adds up).
    Guarantee: (epsilon, delta) per home, replace-one, as charged, with rho beside it. Source: papers/hxai.zh.txt names
    Gaussian noise as the alternative; the mechanism is Canonne, Kamath and Steinke 2020 (privacy/gaussian.py).
    """

    trust = "local"
    mechanism = "gaussian"

    def combine(self, answers: Answers) -> np.ndarray:
        return answers.values.sum(axis=0)
