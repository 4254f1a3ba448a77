"""Who wins, who rides free, and what does the zone still learn? Negotiation policies over one year of questions.

    python -m simulations.negotiation [configs/negotiation.toml] [--out DIR] [--quick]

Offers, budgets, payments and noise follow from public numbers and the ledger's arithmetic: no data are needed.
Utilities are expected ones, from the public model U = (1 + (eps0/eps)^2)^(-1/2), homes taken to be alike; they are not
measured on answers. A home's price lambda_i (currency per unit of epsilon) is log-normal; what a home gains in a
week is U of the zone's answer (worth 1 when exact) - lambda_i * epsilon + payment.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from fedenergy.box.admission import Authenticator, BoxKey
from fedenergy.box.agreement import AgreementTerms
from fedenergy.box.negotiation import (
    Budget,
    NeedAccuracy,
    Negotiated,
    Operator,
    Procurement,
    TakeIt,
    negotiate,
    promised_utility,
)
from fedenergy.box.policies import BoundedSearch, Fixed, Strict, private_price
from fedenergy.box.policies_paid import GHOSH_ROTH, Auction, Incentive, RiskAware, procure
from fedenergy.box.policies_public import Accuracy, ClosedForm, CounterOffer
from fedenergy.box.policies_weighted import AttributionWeighted, FeatureWeighted
from fedenergy.box.policy import COUNTER, Case, Policy, Public
from fedenergy.box.query import Query
from fedenergy.config import Config, load
from fedenergy.ids import stream
from fedenergy.privacy.weighted import AttributionLaplace
from simulations.negotiation_figures import draw

CONFIG = "configs/negotiation.toml"
DEFAULTS: Mapping[str, Any] = {
    "out": "runs/negotiation", "price": 0.5, "spread": 1.0, "money": 6.0, "need": 0.9, "turns": 8, "quick": False,
    "profile": (0.4, 0.1, 0.05, 0.12, 0.15, 0.13, 0.05)}  # public shares of the seven appliances, of our choice
GROUPS = ("careful", "middle", "relaxed")
MICRO = 1_000_000


@dataclass(frozen=True)
class Setting:
    """Everything that a year needs: N, d, clip C, cap, epsilon asked per week, weeks, prices, money."""

    homes: int
    clip: float
    cap_micro: int
    epsilon: float
    weeks: int
    seed: int
    price: float
    spread: float
    money: float
    need: float
    turns: int
    profile: tuple[float, ...]

    @property
    def names(self) -> list[str]:
        return [f"h{index:04d}" for index in range(self.homes)]

    @property
    def public(self) -> Public:
        return Public(N=self.homes, d=len(self.profile), clip=self.clip, trust="sum")

    def cost(self, name: str) -> float:
        """lambda_i."""
        return private_price(name, self.price, self.spread, self.seed)


@dataclass(frozen=True)
class Scheme:
    """A policy for each home and the operator that it meets. squares: mean of (b_k / plain b_k)^2, 1 if plain."""

    label: str
    policy: Callable[[str], Policy]
    operator: Operator
    squares: float = 1.0
    leaks: bool = False


@dataclass(frozen=True)
class Found:
    """What main found: one row per policy; per policy and week; per policy and group; the other tables; files."""

    summary: pd.DataFrame
    year: pd.DataFrame
    groups: pd.DataFrame
    tables: Mapping[str, pd.DataFrame]
    files: tuple[Path, ...]


def schemes(s: Setting) -> list[Scheme]:
    """All policies, each with the operator that it is made for."""
    paid = {"price": s.price, "spread": s.spread, "seed": s.seed}
    need, take = NeedAccuracy(s.need), TakeIt()
    weighted = FeatureWeighted(profile=s.profile, power=1 / 3)  # 1/3: least squared noise, which the cosine feels
    shares = AttributionLaplace(s.clip).shares(np.array(s.profile) * s.clip)
    return [
        Scheme("Fixed", lambda name: Fixed(), take),
        Scheme("Strict", lambda name: Strict(), take),
        Scheme("ClosedForm, own report", lambda name: ClosedForm(**paid), take),
        Scheme("ClosedForm, zone", lambda name: ClosedForm(utility="zone", **paid), take),
        Scheme("BoundedSearch, own report", lambda name: BoundedSearch(price=s.cost(name), ell=0.25), need),
        Scheme("BoundedSearch, zone", lambda name: BoundedSearch(price=s.cost(name), ell=0.25, utility="zone"), need),
        Scheme("Accuracy", lambda name: Accuracy(), need),
        Scheme("CounterOffer", lambda name: CounterOffer(min(s.epsilon, s.epsilon * s.price / s.cost(name))), take),
        Scheme("RiskAware", lambda name: RiskAware(trust=1 / (1 + s.cost(name) / s.price)), TakeIt(s.money / s.homes)),
        Scheme("Incentive", lambda name: Incentive(partial=False, **paid), Budget(s.money, s.need)),
        Scheme("Auction, fixed epsilon", lambda name: Auction(**paid), Procurement(s.money)),
        Scheme("Auction, Ghosh-Roth", lambda name: Auction(**paid), Procurement(s.money, GHOSH_ROTH)),
        Scheme("FeatureWeighted", lambda name: weighted, take,
               float(np.mean(np.square(weighted.weights_for(s.public))))),
        Scheme("AttributionWeighted (leaks)", lambda name: AttributionWeighted(), take,
               float(np.mean(1 / (shares.size * shares) ** 2)), True)]


def one_year(s: Setting, scheme: Scheme) -> tuple[list[dict], pd.DataFrame]:
    """Rows per week, and per home (cost, epsilon, paid, gain) over the year."""
    agreement = Authenticator(seed=0).issue("h0", BoxKey("h0", seed=0), AgreementTerms(cap=s.cap_micro / MICRO))
    agreements = {name: replace(agreement, household=name) for name in s.names}
    policies = {name: scheme.policy(name) for name in s.names}
    query, asked = Query("appliances", epsilon=s.epsilon), round(s.epsilon * MICRO)
    spent = dict.fromkeys(s.names, 0)
    home = pd.DataFrame({"cost": [s.cost(name) for name in s.names], "epsilon": 0.0, "paid": 0.0, "gain": 0.0},
                        index=s.names)
    rows, known = [], {}
    for week in range(1, s.weeks + 1):
        state = tuple(spent.values())
        if state not in known:  # a policy answers the same case in the same way: an idle week repeats itself
            known = {state: negotiate({name: (policies[name], _case(query, agreements[name], spent[name], s))
                                       for name in s.names}, scheme.operator, s.turns)}
        talk = known[state]
        granted, paid = talk.granted_micro, talk.payments_micro
        for name, amount in granted.items():
            spent[name] += amount
        one, local = (utility(list(granted.values()), asked, replace(s.public, trust=trust), scheme.squares)
                      for trust in ("sum", "local"))
        given = pd.Series(granted, dtype=float).reindex(s.names, fill_value=0.0) / MICRO
        money = pd.Series(paid, dtype=float).reindex(s.names, fill_value=0.0) / MICRO
        home["epsilon"] += given
        home["paid"] += money
        home["gain"] += one - home["cost"] * given + money
        rows.append({"policy": scheme.label, "week": week, "answers": len(granted), **_others(talk),
                     "turns": len(talk.transcript), "agreed": talk.agreed, "epsilon_mean": given.mean(),
                     "utility_one_noise": one, "utility_local_noise": local, **_noise(granted, asked, s, scheme),
                     "paid": money.sum()})
    return rows, home


def _case(query: Query, agreement, spent: int, s: Setting) -> Case:
    return Case(query, agreement, Decimal(spent).scaleb(-6), Decimal(s.cap_micro - spent).scaleb(-6), s.public)


def _others(talk: Negotiated) -> dict[str, int]:
    counters = sum(bid.action == COUNTER for bid in talk.bids.values())
    return {"counters": counters, "refusals": len(talk.bids) - len(talk.granted_micro) - counters}


def _noise(granted: Mapping[str, int], asked: int, s: Setting, scheme: Scheme) -> dict[str, float]:
    """Root mean square noise per coordinate of the zone's sum, kWh^2: sqrt(2 sum b_i^2), and sqrt(2) b."""
    if not granted:
        return {"noise_one": math.nan, "noise_local": math.nan}
    shape = math.sqrt(scheme.squares)
    local = math.fsum((2 * s.clip * MICRO / amount) ** 2 for amount in granted.values())
    return {"noise_one": shape * math.sqrt(2) * 2 * s.clip * MICRO / asked, "noise_local": shape * math.sqrt(2 * local)}


def utility(granted: Sequence[int], asked: int, public: Public, squares: float) -> float:
    """Expected cosine of the zone's answer, with noise whose mean square is `squares` times the plain one."""
    plain = promised_utility(granted, asked, public)
    return 1 / math.sqrt(1 + squares * (1 / plain**2 - 1)) if plain > 0 else 0.0


def summarise(s: Setting, scheme: Scheme, rows: Sequence[Mapping], home: pd.DataFrame) -> tuple[dict, list[dict]]:
    """One row of the policy, and one per price group."""
    year = pd.DataFrame(rows)
    total, mean = home["epsilon"].sum(), home["epsilon"].mean()
    row = {"policy": scheme.label, "answers_share": year["answers"].sum() / (s.homes * s.weeks),
           "counters_share": year["counters"].sum() / (s.homes * s.weeks),
           "refusals_share": year["refusals"].sum() / (s.homes * s.weeks),
           "weeks_useful": int((year["utility_one_noise"] >= 0.8).sum()),
           "utility_one_noise": year["utility_one_noise"].mean(),
           "utility_local_noise": year["utility_local_noise"].mean(),
           "noise_one": year["noise_one"].median(), "noise_local": year["noise_local"].median(),
           "turns": year["turns"].mean(), "epsilon_mean": mean, "epsilon_max": home["epsilon"].max(),
           "gives_under_half": float((home["epsilon"] < mean / 2).mean()) if mean else math.nan,
           "paid": home["paid"].sum(), "gain_mean": home["gain"].mean(),
           "losers_share": float((home["gain"] < 0).mean()), "leaks": scheme.leaks}
    order = home.sort_values("cost", ascending=False)
    groups = [{"policy": scheme.label, "group": group, "price": part["cost"].mean(), "epsilon": part["epsilon"].mean(),
               "given_share": part["epsilon"].sum() / total if total else math.nan, "paid": part["paid"].mean(),
               "gain": part["gain"].mean()}
              for group, part in ((name, order.iloc[list(at)])
                                  for name, at in zip(GROUPS, np.array_split(np.arange(s.homes), 3)))]
    return row, groups


def source_talk() -> pd.DataFrame:
    """The source's example, 50 homes with local noise: from .16 to 6.73, with our feedback rule."""
    policy = BoundedSearch(epsilon_target=3.445, ell=3.285, price=1.0, utility="zone", rounds=32)
    agreement = Authenticator(seed=0).issue("h0", BoxKey("h0", seed=0), AgreementTerms(cap=6.73))
    public = Public(N=50, d=7, clip=50.0)
    case = Case(Query("appliances", epsilon=6.73), agreement, Decimal(0), Decimal("6.73"), public)
    talk = negotiate({f"h{i}": (policy, case) for i in range(50)}, NeedAccuracy(0.98), 12)
    return pd.DataFrame([{"turn": at, "epsilon": turn.bids[0].epsilon_micro / MICRO,
                          "utility": promised_utility([bid.epsilon_micro for bid in turn.bids], 6_730_000, public),
                          "feedback": turn.response.feedback} for at, turn in enumerate(talk.transcript)])


def lying(s: Setting) -> pd.DataFrame:
    """What three homes earn in one auction for claiming a multiple of their true cost, everyone else being honest."""
    costs = {name: float(Auction(s.price, s.spread, seed=s.seed).cost(name)) for name in s.names}
    order = sorted(costs, key=costs.get)
    rows = []
    for which, name in (("cheap", order[len(order) // 10]), ("middle", order[len(order) // 3]), ("dear", order[-2])):
        for factor in (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0):
            for rule in ("fixed", GHOSH_ROTH):
                claims = {**costs, name: costs[name] * factor}
                bought = procure({key: Decimal(repr(value)) for key, value in claims.items()},
                                 Decimal(repr(s.money)), rule=rule, epsilon=Decimal(repr(s.epsilon)))
                profit = float(bought.payments.get(name, 0)) - costs[name] * float(bought.epsilon) \
                    * (name in bought.winners)
                rows.append({"home": which, "cost": costs[name], "claims": factor, "rule": rule, "profit": profit,
                             "won": name in bought.winners})
    return pd.DataFrame(rows)


def unequal(s: Setting, draws: int) -> pd.DataFrame:
    """The same total epsilon, spread ever more unevenly over the homes: what it does to the zone's answer."""
    rows = []
    for spread in (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5):
        for draw_number in range(draws if spread else 1):
            raw = np.exp(spread * stream(s.seed, "unequal", str(draw_number)).standard_normal(s.homes))
            granted = np.maximum(1, np.rint(raw / raw.mean() * s.epsilon * MICRO)).astype(int).tolist()
            asked = max(granted)
            rows.append({"spread": spread, "draw": draw_number,
                         "variance_local": np.mean((s.epsilon * MICRO / np.array(granted)) ** 2),
                         "utility_local": promised_utility(granted, asked, replace(s.public, trust="local")),
                         "utility_one": promised_utility(granted, asked, s.public)})
    return pd.DataFrame(rows)


def setting(config: Config, options: Mapping[str, Any]) -> Setting:
    """From the config's tables and the study's own options."""
    quick = options["quick"]
    homes, weeks = config.population.args.get("count", 50), config.query.args.get("rounds", 52)
    return Setting(min(homes, 12) if quick else homes, float(config.task.args.get("clip", 50.0)),
                   round(config.agreement.get("cap", 6.73) * MICRO), float(config.query.args.get("epsilon", 1.0)),
                   min(weeks, 16) if quick else weeks, config.seeds[0], *(options[key] for key in (
                       "price", "spread", "money", "need", "turns", "profile")))


def main(config: Config | None = None, **options: Any) -> Found:
    """Play every policy's year, write tables and figures, return them. options: see DEFAULTS."""
    if unknown := set(options) - set(DEFAULTS):
        raise ValueError(f"negotiation has no option {min(unknown)!r} (it has: {', '.join(DEFAULTS)})")
    options = {**DEFAULTS, **options}
    s = setting(load(CONFIG) if config is None else config, options)
    out = Path(options["out"])
    out.mkdir(parents=True, exist_ok=True)
    rows, summary, groups = [], [], []
    for scheme in schemes(s):
        weeks, home = one_year(s, scheme)
        row, parts = summarise(s, scheme, weeks, home)
        rows += weeks
        summary.append(row)
        groups += parts
    tables = {"summary": pd.DataFrame(summary), "year": pd.DataFrame(rows), "groups": pd.DataFrame(groups),
              "source_talk": source_talk(), "lying": lying(s), "unequal": unequal(s, 5 if options["quick"] else 40)}
    files = []
    for name, table in tables.items():
        files.append(out / f"{name}.csv")
        table.to_csv(files[-1], index=False, float_format="%.6g", lineterminator="\n")
    files += draw(tables, out, s.homes, s.weeks)
    return Found(tables["summary"], tables["year"], tables["groups"], tables, tuple(files))


COLUMNS = {"policy": "policy", "answers_share": "answered", "counters_share": "countered", "refusals_share": "refused",
           "utility_one_noise": "U one noise", "utility_local_noise": "U local", "weeks_useful": "weeks U>=.8",
           "epsilon_mean": "eps/home", "gives_under_half": "give < half", "paid": "paid", "gain_mean": "gain/home",
           "losers_share": "losers"}


def text(found: Found) -> str:
    """The summary for a terminal."""
    table = found.summary[list(COLUMNS)].rename(columns=COLUMNS)
    return "\n".join([table.to_string(index=False, float_format=lambda value: f"{value:.2f}"), "",
                      "U: expected cosine of the zone's answer, mean over the year; a week without an answer counts 0.",
                      "give < half: homes that gave less than half of what the average home gave. losers: homes whose",
                      "year's gain is below 0. AttributionWeighted has no privacy guarantee at the epsilon shown.",
                      *(str(path) for path in found.files)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default=CONFIG)
    parser.add_argument("--out", default=DEFAULTS["out"], help="folder for tables and figures")
    for key, words in (("price", "median price of a home, currency per unit of epsilon"), ("money", "per question"),
                       ("spread", "standard deviation of the log price"), ("need", "cosine that the operator needs")):
        parser.add_argument(f"--{key}", type=float, default=DEFAULTS[key], help=words)
    parser.add_argument("--quick", action="store_true", help="12 homes, 16 weeks")
    given = vars(parser.parse_args())
    print(text(main(load(given.pop("config")), **given)))
