"""SecureSum: one noise for the whole zone without a party that sees a home's summary."""

from __future__ import annotations

import numpy as np

from fedenergy.federation.strategy import Answers, ZoneStrategy
from fedenergy.privacy.sum_protocol import SumProtocol

MODES = ("ideal", "protocol")


class SecureSum(ZoneStrategy):
    """Trust sum: each home adds a share of one Laplace(2C/epsilon) and a mask; only the sum is ever opened.

    mode       "ideal": a Summer that knows every mask (a process convention of the simulation) and opens only the sum
               of all homes that accepted; "protocol": pairwise masks, no such party (privacy/pairwise_masks.py)
    tau        protocol only: the share of those homes that must remain. Noise shares are 1/(tau n); below tau n
               survivors minus colluders the sum stays closed and charges stay; variance 1/tau if all survive
    colluders  protocol only: how many homes may share what they know with the aggregator; needs tau < 1
    drop_out   protocol only, a knob of the simulation: the share of homes that vanish before their answer arrives

    Unbiased for the sum of the clipped summaries of the survivors; mean absolute error b, as with a curator, where the
    fewest survive. Guarantee: epsilon per home, replace-one, against the querier, the aggregator and, in protocol
    mode, up to `colluders` homes with it, all honest but curious. Infinite divisibility of the Laplace law: Acs and
    Castelluccia 2011; masks: Bonawitz et al. 2017. Errors: ValueError for parameters that do not fit.
    """

    trust = "sum"

    def __init__(self, mode: str = "ideal", tau: float = 1.0, colluders: int = 0, drop_out: float = 0.0) -> None:
        if mode not in MODES:
            raise ValueError(f'SecureSum mode = {mode!r} is unknown: use "ideal" or "protocol"')
        protocol = SumProtocol(tau, colluders, drop_out)
        if mode == "ideal" and protocol != SumProtocol():
            raise ValueError("SecureSum tau, colluders and drop_out belong to mode = \"protocol\": the ideal mode opens "
                             "the sum of all homes or nothing")
        self.mode, self.tau, self.colluders, self.drop_out = mode, protocol.tau, colluders, protocol.drop_out

    @property
    def mechanism(self) -> str:
        """In the sealed query, hence in its id and in the cell: another tau is another question."""
        return "laplace" if self.mode == "ideal" else SumProtocol(self.tau, self.colluders, self.drop_out).mechanism

    def combine(self, answers: Answers) -> np.ndarray:
        return answers.values[0]
