"""A known zone, and releases of it drawn from the exact mechanism."""

from __future__ import annotations

import numpy as np
from flwr.app import Message, RecordDict
from flwr.serverapp.strategy import Strategy

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.privacy.epsilon import micro
from fedenergy.privacy.mechanisms import Laplace, SimulationNoise

CLIP = 50.0
LAPLACE = Laplace(CLIP)


def zone(homes: int = 50) -> np.ndarray:
    """(homes, 7) clipped summaries: one mix of appliances, l1 norms evenly from .4 C to C. ||S_zone||_2 = 15.5 C."""
    mix = np.array([0.30, 0.22, 0.17, 0.12, 0.09, 0.06, 0.04])
    return LAPLACE.grid.decode(LAPLACE.grid.encode(CLIP * np.linspace(0.4, 1.0, homes)[:, None] * mix))


def draws(summaries: np.ndarray, epsilons: np.ndarray, times: int, seed: int = 0) -> np.ndarray:
    """(times, n, d) releases: every home adds its own discrete Laplace noise."""
    n, d = summaries.shape
    noise = [LAPLACE.noise(SimulationNoise(seed).source(f"home-{home}", "q"), micro(float(epsilon)), times * d)
             for home, epsilon in enumerate(epsilons)]
    noise = np.stack(noise).reshape(n, times, d).transpose(1, 0, 2)
    return summaries + LAPLACE.grid.decode(noise)


def one_noise(total: np.ndarray, epsilon: float, times: int, seed: int = 0) -> np.ndarray:
    """(times, d) zone answers of trust sum or curator."""
    noise = LAPLACE.noise(SimulationNoise(seed).source("*zone", "q"), micro(epsilon), times * total.size)
    return total + LAPLACE.grid.decode(noise).reshape(times, -1)


def replies(values: np.ndarray, epsilons: np.ndarray) -> list[Message]:
    """Answers as TrustGrid hands them to a strategy of trust local."""
    flower.assume_identity()
    found = []
    for home, (row, epsilon) in enumerate(zip(values, epsilons)):
        asked = flower.instruction(RecordDict(), flower.node_id(home), "train", "1")
        fields = {"household": f"home-{home:03d}", "query_id": "0" * 32, "epsilon_micro": micro(float(epsilon))}
        found.append(flower.reply(asked, records.answer_records(row, fields)))
    return found


def aggregated(strategy: Strategy, messages: list[Message]) -> np.ndarray:
    """What a strategy makes of the answers, (d,). It gets copies, as from TrustGrid: Flower's own consume them."""
    messages = [Message(metadata=message.metadata, content=RecordDict(
        {name: record.copy() for name, record in message.content.items()})) for message in messages]
    with flower.quiet_flower():
        arrays, _ = strategy.aggregate_train(1, messages)
    return arrays[records.SUMMARY].numpy()


def unbiased(sample: np.ndarray, expected: np.ndarray) -> bool:
    """Whether (times, d) draws have that mean: |z| < 4 on every coordinate."""
    return bool((np.abs(sample.mean(axis=0) - expected) < 4 * sample.std(axis=0) / np.sqrt(len(sample))).all())
