"""A made-up but realistic run folder: a zone of 50 homes whose strategies really add Laplace noise."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

CHANNELS = ["heating", "fridge", "fan", "oven", "washing_machine", "dryer", "cooler"]
LOCAL, SECURE, CENTRAL = (
    "strategies.zonal_sum:ZonalSum",
    "strategies.secure_sum:SecureSum",
    "strategies.central_laplace:CentralLaplace",
)
TRUST = {LOCAL: "local", SECURE: "sum", CENTRAL: "curator"}
HOMES, CLIP, CAP = 50, 50.0, 6.73
ENVELOPES = {
    "local": ("Release", "anyone"),
    "sum": ("Share", "nobody singly; the Summer reveals the sum"),
    "curator": ("Deposit", "the Curator"),
    "open": ("Plain", "anyone"),
}


def write_run(
    folder: Path,
    strategies: dict[str, str] = TRUST,
    epsilons: tuple[float, ...] = (0.1, 0.5, 1.0),
    seeds: tuple[int, ...] = (0, 1, 2),
    rounds: int = 2,
    oracle: bool = True,
    counts: tuple[int, ...] = (HOMES,),
    config: str | None = None,
) -> Path:
    """Write a finished run: strategies {name: trust} x epsilons x seeds x counts (several vary population.count)."""
    folder.mkdir(parents=True)
    rows, cells, zones, spent, expected = [], [], [], [], []
    for count in counts:
        truth = np.array([16.0, 7.5, 2.1, -1.4, 5.2, 3.3, 0.6]) * count / 2.5
        total = truth * 1.18
        for epsilon in epsilons:
            scale = 2 * CLIP / epsilon
            for strategy, trust in strategies.items():
                n = count if trust == "local" else 1
                if trust != "open":
                    expected.append(
                        {
                            "strategy": strategy,
                            "epsilon": epsilon,
                            "n": count,
                            "mae": mean_error(scale, n),
                            "cosine": float((1 + (scale * np.sqrt(2 * 7 * n) / np.linalg.norm(truth)) ** 2) ** -0.5),
                        }
                    )
                for seed in seeds:
                    cell = f"{count:04d}{int(1000 * epsilon):06d}{trust:_<8}{seed:02d}".encode().hex()[:32]
                    if not any(known["cell"] == cell for known in cells):
                        cells.append(
                            {
                                "cell": cell,
                                "trust": trust,
                                "mechanism": "laplace",
                                "policy": "Fixed",
                                "epsilon": epsilon,
                                "seed": seed,
                                "query.epsilon": epsilon,
                            }
                            | ({"population.count": count} if len(counts) > 1 else {})
                        )
                        spent += [
                            {
                                "household": f"home-{i:03d}",
                                "cell": cell,
                                "trust": trust,
                                "cap": CAP,
                                "epsilon_spent": min(
                                    CAP, round(epsilon * rounds * (0.6 + 0.4 * min(1, 1.6 * i / count)), 3)
                                ),
                            }
                            for i in range(count)
                        ]
                    rng = np.random.default_rng([seed, count, int(1000 * epsilon), len(strategy)])
                    for round_ in range(1, rounds + 1):
                        released = truth + (trust != "open") * rng.laplace(0, scale, (n, 7)).sum(axis=0)
                        values = {
                            "answers": count - 2,
                            "refusals": 2,
                            "epsilon_spent_mean": 0.9 * epsilon * round_,
                            "epsilon_spent_max": epsilon * round_,
                        }
                        if oracle:
                            values |= scores(truth, released) | {
                                f"{k}_total": v for k, v in scores(total, released).items() if k != "sign"
                            }
                            values["clipped_share"] = 0.12
                            zones.append(
                                {
                                    "cell": cell,
                                    "strategy": strategy,
                                    "trust": trust,
                                    "epsilon": epsilon,
                                    "seed": seed,
                                    "round": round_,
                                    "true_clipped": truth.tolist(),
                                    "true_total": total.tolist(),
                                    "released": released.tolist(),
                                }
                            )
                        rows += [
                            {
                                "run": "zone-explanations-3f2a",
                                "cell": cell,
                                "population": "simulated",
                                "strategy": strategy,
                                "policy": "Fixed",
                                "trust": trust,
                                "epsilon": epsilon,
                                "delta": 0.0,
                                "seed": seed,
                                "round": round_,
                                "metric": metric,
                                "value": float(value),
                            }
                            for metric, value in values.items()
                        ]
    pd.DataFrame(rows).to_csv(folder / "metrics.csv", index=False, lineterminator="\n")
    pd.DataFrame(cells).to_csv(folder / "cells.csv", index=False, lineterminator="\n")
    hours = np.arange(24)
    shapes = {
        name: 0.05 + 0.3 * (k + 1) / 7 * np.exp(-(((hours - 7 - 2 * k) % 24 - 3) ** 2) / (6 + k))
        for k, name in enumerate(CHANNELS)
    }
    summary: dict[str, Any] = {
        "name": "zone-explanations",
        "title": "Zone explanations: one noise or fifty",
        "started": "2026-01-15T09:30:00Z",
        "seconds": 204.0,
        "population": {
            "name": "simulated",
            "count": max(counts),
            "unit": "household",
            "channels": CHANNELS,
            "step_minutes": 60,
            "steps": 744,
            "source": "fedenergy:simulate_households, seed 1",
        },
        "task": {"use": "fedenergy:Explain", "lags": [1, 24, 168], "clip": CLIP},
        "query": {"kind": "appliances", "epsilon": epsilons[-1], "rounds": rounds, "repeat": "next_window"},
        "coordinates": CHANNELS,
        "unit_of_values": "kWh^2",
        "relation": "replace-one",
        "noise": "simulation",
        "stamp": "seeded noise: not private",
        "oracle": oracle,
        "agreement": {"cap": CAP, "trust": sorted(set(strategies.values()))},
        "who_sees_what": [
            {
                "trust": trust,
                "envelope": ENVELOPES[trust][0],
                "count": HOMES * rounds * len(seeds) * len(epsilons),
                "seen_by": ENVELOPES[trust][1],
                "epsilon_vs_querier": "inf" if trust == "open" else max(epsilons) * rounds,
                "epsilon_vs_operator": "inf" if trust in ("curator", "open") else max(epsilons) * rounds,
                "epsilon_granted": "" if trust == "open" else "0.5 to 1",
                "unit": "household",
                "relation": "replace-one",
                "stamp": "seeded noise: not private",
            }
            for trust in dict.fromkeys(strategies.values())
        ],
        "spent": spent,
        "spent_most": {"epsilon_spent": max(epsilons) * rounds, "cap": CAP},
        "refusals": [
            {"reason": "the cap leaves too little for this query", "code": "cap", "count": 27},
            {"reason": "agreement expired", "code": "expired", "count": 18},
            {"reason": "purpose not in the agreement", "code": "purpose", "count": 9},
        ],
        "zones": zones,
        "inside_view": {
            "household": "home-007",
            "hours": hours.tolist(),
            "readings": {k: v.tolist() for k, v in shapes.items()},
            "shap": {k: (0.4 * (v - v.mean())).tolist() for k, v in shapes.items()},
        }
        if oracle
        else None,
        "quality": [
            {"household": f"home-{i:03d}", "missing": i % 7, "outage_zero": int(i % 11 == 0), "short": 0}
            for i in range(HOMES)
        ],
        "expected": expected,
        "notes": [
            "Summer and Curator ran in this process.",
            "Home 31 has no heating meter: its coordinate is 0 and is noised all the same.",
        ],
    }
    (folder / "summary.json").write_text(json.dumps(summary))
    (folder / "config.resolved.toml").write_text(
        config
        or 'name = "zone-explanations"\nseeds = [0, 1, 2]\noracle = true\n\n[task]\n'
        'use = "fedenergy:Explain"\nclip = 50.0\n\n[vary]\n"query.epsilon" = [0.1, 0.5, 1.0]\n'
    )
    (folder / "versions.json").write_text(
        json.dumps({"fedenergy": "0.1.0", "python": "3.11.7", "flwr": "1.42.0", "numpy": np.__version__})
    )
    return folder


def edit(folder: Path, **changes: Any) -> None:
    """Change keys of summary.json; None drops the key."""
    path = folder / "summary.json"
    summary = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in summary.items() if value is not None}))


def mean_error(scale: float, n: int) -> float:
    """E|sum of n Laplace(b)| by its asymptotic form; exact (b) for one."""
    return scale if n == 1 else float(2 * scale * np.sqrt(n / np.pi))


def scores(truth: np.ndarray, released: np.ndarray) -> dict[str, float]:
    gap = released - truth
    ranks = np.corrcoef(truth.argsort().argsort(), released.argsort().argsort())[0, 1]
    return {
        "mae": np.abs(gap).mean(),
        "rmse": np.sqrt((gap**2).mean()),
        "spearman": ranks,
        "cosine": truth @ released / np.linalg.norm(truth) / np.linalg.norm(released),
        "top1": float(truth.argmax() == released.argmax()),
        "sign": float((np.sign(truth) == np.sign(released)).mean()),
    }
