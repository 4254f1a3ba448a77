"""How constants of what is released of homes by name were set, away from every test window that it is judged on.

    python -m simulations.imputing.homes_constants --data DIR [--seeds 2]

London's validation windows, between 70 % and 80 % of each home's record, half of them missing; MSE over that of dp_gp at the
same epsilon. DISTANCE (fedenergy.imputation.homes) and HOMES_SHARE (fedenergy.imputation.default) are varied one at a time.
SPLIT, COARSE and WITHIN were set by hand on the same windows: at epsilon 10 one clip of radius 2.5 instead of two lost .4
to .6 points, shares of rho for the profiles from .35 to .6 differed by .3.
"""

from __future__ import annotations

import argparse
from itertools import product

import pandas as pd

from fedenergy import imputation as imp
from fedenergy.imputation import default, dp_gp, homes, joint
from fedenergy.imputation.guided import Guided
from simulations.imputing.constants import DELTA, changed, london_parts
from simulations.imputing.data import HALF_HOUR

DISTANCES, SHARES = (0.0, 0.03, 0.1, 0.3), (0.3, 0.4, 0.6)
EPSILONS = (2.0, 10.0)
HIDING = (imp.points(0.5), imp.blocks(0.5), imp.outage(0.5))


def homes_cells(train: imp.Windows, valid: imp.Windows, seeds: int, limits: tuple[float, float] = HALF_HOUR,
                epsilons: tuple[float, ...] = EPSILONS) -> pd.DataFrame:
    """A row per epsilon, seed, setting and pattern: the MSE of homes' law over that of dp_gp alone."""
    rows = []
    settings = [(default.HOMES_SHARE, d) for d in DISTANCES] + [(s, homes.DISTANCE) for s in SHARES]
    masks = {m.kind: m.observed(len(valid), valid.length) for m in HIDING}
    for epsilon, seed in product(epsilons, range(seeds)):
        alone = dp_gp.fit(train, epsilon, DELTA, low=limits[0], cap=limits[1], seed=seed)
        yardstick = {name: imp.errors(alone.points(valid.values, seen, valid.time_of_day)[0], valid.values, seen)["mse"]
                     for name, seen in masks.items()}
        for share, distance in dict.fromkeys(settings):
            base = default.towards_simulated(dp_gp.fit(train, epsilon * share, DELTA, low=limits[0], cap=limits[1],
                                                       seed=seed), valid.steps_per_day)
            with changed(homes, "DISTANCE", distance):
                known = homes.release(train, base, joint.rest(epsilon, base.privacy.rho, DELTA), seed=seed)
            for name, seen in masks.items():
                found = Guided(base, known).guide(valid.values, seen, valid.time_of_day, valid.homes).filling
                rows.append((epsilon, seed, share, distance, name,
                             imp.errors(found, valid.values, seen)["mse"] / yardstick[name]))
    return pd.DataFrame(rows, columns=["epsilon", "seed", "share", "distance", "pattern", "mse"])


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", default="", help="data folder that holds London's homes")
    parser.add_argument("--seeds", type=int, default=1)
    given = parser.parse_args(argv)
    cells = homes_cells(*london_parts(given.data, 1000), given.seeds)
    print(cells.pivot_table(index=["share", "distance"], columns=["epsilon", "pattern"], values="mse")
          .to_string(float_format="%.4f"))


if __name__ == "__main__":
    main()
