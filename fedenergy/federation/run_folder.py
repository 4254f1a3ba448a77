"""What a run leaves: metrics.csv, cells.csv, releases.parquet, summary.json; sorted, so equal runs are equal bytes."""

from __future__ import annotations

import csv
import io
import json
import platform
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

from fedenergy import metrics
from fedenergy.box.agreement import AgreementError, key_id
from fedenergy.box.box import RELATION, revocations_of
from fedenergy.box.ledger import Ledger
from fedenergy.box.ledger_mark import HEADS, heads_of, mark_text
from fedenergy.box.policy import REFUSE, Public, policy_name
from fedenergy.box.shaping import leaks, shaped
from fedenergy.box.world import SECURE, World
from fedenergy.errors import naming
from fedenergy.federation import flower_privacy
from fedenergy.federation.campaign import Part, State, declared, write_durably
from fedenergy.federation.cloud import Tier, cloud
from fedenergy.federation.failures import noted_inside
from fedenergy.federation.plan import Plan
from fedenergy.federation.training import trains
from fedenergy.federation.trust_grid import Exchange
from fedenergy.households.population import Population
from fedenergy.ids import decimal_text
from fedenergy.privacy.epsilon import text
from fedenergy.privacy.mechanisms import Laplace
from fedenergy.privacy.noise import noise_from
from fedenergy.privacy.sum_protocol import SumProtocol
from fedenergy.privacy.trust import CURATOR, ENVELOPES, LOCAL, OPEN, SUM, TRUST_MODES

METRICS = ("run", "cell", "population", "strategy", "policy", "trust", "epsilon", "delta", "seed", "round", "metric",
           "value")
PACKAGES = ("fedenergy", "flwr", "ray", "numpy", "pandas", "scipy", "xgboost", "numba", "cryptography", "torch",
            "opacus")
SPENT_ROWS, BUDGETS_READ = 20_000, 500_000
OFFERED = "the operator: epsilon, kind, window, code; computed from public state"
ACCEPTED = "the operator: one word, computed from public state"
MASKED = "nobody singly; the aggregator opens only the sum over survivors"


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on."""
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def keep_releases(folder: Path, part: Part, index: int, exchange: Exchange) -> None:
    """Keep what crossed openly in one round: every home's Release (trust local)."""
    found = exchange.releases()
    if found:
        path = folder / "checkpoints" / f"{part.name}-round{index + 1}.releases.npz"
        path.parent.mkdir(parents=True, exist_ok=True)
        data = io.BytesIO()
        save = np.savez if part.shards else np.savez_compressed  # noise does not shrink, and takes its time
        save(data, query=np.repeat([one[0] for one in found], [len(one[1]) for one in found]),
             household=[name for one in found for name in one[1]],
             epsilon_micro=np.concatenate([one[2] for one in found]), values=np.concatenate([one[3] for one in found]))
        write_durably(path, data.getvalue())


def finish(plan: Plan, states: Sequence[State], ledger: Ledger, truths: Mapping[str, Any], seconds: float) -> None:
    """Write the run's tables. metrics.csv comes last but one, summary.json last: they mark a finished run."""
    folder = plan.out
    tier = cloud(plan.parts, states) if plan.cloud else Tier()
    rows = sorted([plan.name, *row] for row in [row for state in states for row in state.rows] + tier.rows)
    write_durably(folder / "cells.csv", _cells([*(state.cells for state in states), tier.cells]))
    _releases(plan)
    write_durably(folder / HEADS, mark_text(heads_of(ledger.receipts)))
    write_durably(folder / "metrics.csv", _csv(METRICS, [[_cell_text(value) for value in row] for row in rows]))
    write_durably(folder / "summary.json", json.dumps(_summary(plan, states, ledger, seconds) | {"cloud": tier.sums},
                                                         indent=1).encode())


def _csv(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue().encode()


def _cell_text(value: Any) -> str:
    return repr(value) if isinstance(value, float) else str(value)


def _cells(several: Sequence[Mapping[str, dict]]) -> bytes:
    cells: dict[str, dict] = {}
    for some in several:
        cells |= some
    fixed = ["trust", "mechanism", "policy", "epsilon", "seed"]
    varied = sorted({key for cell in cells.values() for key in cell} - set(fixed))
    header = ["cell", *fixed, *varied]
    rows = [[name, *(_plain(cell.get(key, "")) for key in header[1:])] for name, cell in sorted(cells.items())]
    return _csv(header, rows)


def _plain(value: Any) -> str:
    if isinstance(value, bool | str):
        return str(value)
    return decimal_text(value) if isinstance(value, int | float) else json.dumps(value)


def _releases(plan: Plan) -> None:
    """releases.parquet: cell-independent long form, one row per released number."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns: dict[str, list] = {name: [] for name in ("part", "round", "query_id", "household", "epsilon_micro",
                                                      "coordinate", "value")}
    for part in plan.parts:
        names = part.world.spec(part.query.kind).coordinates
        for index in range(part.query.rounds):
            path = plan.out / "checkpoints" / f"{part.name}-round{index + 1}.releases.npz"
            if not path.exists():
                continue
            with np.load(path, allow_pickle=False) as data:
                n = len(data["household"])
                columns["part"].append(np.repeat(part.name, n * len(names)))
                columns["round"].append(np.repeat(index + 1, n * len(names)))
                for key in ("query", "household", "epsilon_micro"):
                    columns["query_id" if key == "query" else key].append(np.repeat(data[key], len(names)))
                columns["coordinate"].append(np.tile(names, n))
                columns["value"].append(data["values"].ravel())
    table = pa.table({key: np.concatenate(value) if value else [] for key, value in columns.items()})
    with naming(plan.out / "releases.parquet"):
        pq.write_table(table, plan.out / "releases.parquet")


def _summary(plan: Plan, states: Sequence[State], ledger: Ledger, seconds: float) -> dict[str, Any]:
    world, query = plan.parts[0].world, plan.parts[0].query
    population, task = getattr(world.population, "whole", world.population), world.task
    specs = {part.world.spec(part.query.kind) for part in plan.parts}
    names, units = {spec.coordinates for spec in specs}, {spec.unit for spec in specs}
    start = json.loads((plan.out / "start.json").read_text())
    return {
        "name": plan.name, "title": plan.title, "started": start["started"], "seconds": round(seconds, 1),
        "population": {"name": population.name, "count": len(population), "unit": population.unit,
                       "channels": list(population.channels), "step_minutes": population.step_minutes,
                       "steps": population.steps, "source": dict(population.identity())},
        "task": dict(task.identity()),
        "query": {"kind": query.kind, "class": query.query_class, "rounds": query.rounds, "repeat": query.repeat,
                  "querier": query.querier, "purpose": query.purpose, "fresh": query.fresh,
                  **({"delta": query.delta} if query.delta else {})},
        "coordinates": list(names.pop()) if len(names) == 1 else [],  # a study may vary the kind: then neither is one
        "unit_of_values": units.pop() if len(units) == 1 else "", "relation": RELATION,
        "noise": plan.noise, "stamp": _stamp(plan), "oracle": plan.oracle,
        "agreement": {"cap": world.terms.cap, "trust": list(world.terms.trust), "purposes": list(world.terms.purposes),
                      "classes": list(world.terms.classes), **_signed(world, ledger)},
        "who_sees_what": _who_sees_what(plan, states), **_spent(plan, states, ledger),
        "refusals": _refusals(plan.out / "inside"),
        **({"training": True} if trains(query.kind) else {}),
        "zones": [zone for state in states for zone in state.zones],
        "zone_answers": [answer for state in states for answer in state.answers],
        "expected": _expected(plan, states), "inside_view": _inside_view(plan),
        "quality": _quality(population) if plan.oracle else [],
        "notes": _notes(plan, states)}


def _signed(world: World, ledger: Ledger) -> dict[str, Any]:
    """Of agreements on file: the Authenticator's key, and the revocation list as it was when the run ended."""
    if world.enrolment is None:
        return {}
    found = {"folder": world.enrolment.folder.name, "authenticator": key_id(world.enrolment.public_key)}
    try:
        listed = revocations_of(world, ledger.path)
        return found | {"revocations": {"version": listed.version, "agreements": len(listed.ids)}}
    except AgreementError as error:
        return found | {"revocations": {"problem": str(error)}}


def _stamp(plan: Plan) -> str:
    """What stands under every table: seeded noise, and policies under which epsilon bounds nothing."""
    leaking = sorted({policy_name(part.world.policy) for part in plan.parts if leaks(part.world.policy)})
    return "; ".join(filter(None, (noise_from(plan.noise, 0).stamp, *(f"no guarantee under {name}" for name in leaking))))


def _inside_view(plan: Plan) -> dict[str, Any] | None:
    """One home's day, recomputed by the driver off the grid, only with an oracle."""
    part = plan.parts[0]
    show = getattr(part.world.task, "inside_view", None)
    if not plan.oracle or show is None:
        return None
    population = part.world.population
    window = part.world.task.windows(population, part.query.rounds, part.query.repeat)[-1]
    return show(population.load(0), window)


def _quality(population: Population) -> list[dict[str, Any]]:
    """What is wrong with measured homes, counted per home; nothing for simulated ones."""
    if not hasattr(population, "excluded"):
        return []
    from fedenergy.households.clean import quality_table

    return [{key: value.item() if isinstance(value, np.generic) else value for key, value in row.items()}
            for row in quality_table(population)]


def _notes(plan: Plan, states: Sequence[State]) -> list[str]:
    """What a reader must know beside the numbers."""
    population = plan.parts[0].world.population
    notes = [f"{name} was left out: {reason}" for name, reason in sorted(getattr(population, "excluded", {}).items())]
    if population.unit != "household":
        owners = Counter(population.load(index).charged_to for index in range(len(population)))
        most = max(owners.values())
        notes.insert(0, f"The unit is one {population.unit}, not one home: {len(population)} of them belong to "
                     f"{len(owners)} home(s), at most {most} to one. By composition a home with k of them has k times "
                     f"the epsilon shown (here up to {most} x).")
    if trains(plan.parts[0].query.kind):
        notes.insert(0, "Not private: homes send models as they trained them (trust open, epsilon infinite), which tell "
                        "about the readings behind them.")
        notes[1:1] = flower_privacy.statements(plan, states)
    policies = {policy_name(part.world.policy): part for part in plan.parts}
    notes += [f"No guarantee: {name} sets the noise by the true answer. The epsilon shown for it bounds nothing."
              for name, part in sorted(policies.items()) if leaks(part.world.policy)]
    for name, part in sorted(policies.items()):
        spec = part.world.spec(part.query.kind)
        public = Public(N=len(part.world.population), d=len(spec.coordinates), clip=spec.clip)
        if set(getattr(part.world.policy, "weights_for", lambda _: ())(public)) == {1.0}:
            notes.append(f"{name} has equal weights here: give it weights or a profile of {public.d} public numbers.")
    return notes


def _who_sees_what(plan: Plan, states: Sequence[State]) -> list[dict[str, Any]]:
    """Counted from the envelopes that crossed."""
    counts = {name: Counter() for name in ("envelopes", "refused", "errors", "zones", "offers", "accepted")}
    sums = {SumProtocol.parse(cell["mechanism"]) is not None for state in states for cell in state.cells.values()
            if cell["trust"] == SUM}
    for state in states:
        for name, counter in counts.items():
            counter.update(state.crossings.get(name, {}))
    ideal = ENVELOPES[SUM].seen_by
    summed = {(): ideal, (False,): ideal, (True,): MASKED, (False, True): f"{ideal}; in protocol mode {MASKED}"}
    asked = sorted({part.query.epsilon_micro for part in plan.parts})
    most = text(asked[-1]) if len(asked) == 1 else f"{text(asked[0])} to {text(asked[-1])}"
    amounts: dict[str, list[int]] = {}
    for state in states:
        for cell, ends in state.granted.items():
            amounts.setdefault(state.cells[cell]["trust"], []).extend(ends)
    granted = {trust: " to ".join(map(text, sorted({min(ends), max(ends)}))) for trust, ends in amounts.items()}
    unit = plan.parts[0].world.population.unit
    stamp = noise_from(plan.noise, 0).stamp
    rows = []
    for trust in TRUST_MODES:
        for envelope, name, told in (("Offer", "offers", OFFERED), ("Acceptance", "accepted", ACCEPTED)):
            if counts[name][trust]:
                rows.append({"trust": trust, "envelope": envelope, "count": counts[name][trust], "refused": 0, "errors": 0,
                             "zones": 0, "seen_by": told, "epsilon_vs_querier": "0", "epsilon_vs_operator": "0",
                             "unit": unit, "relation": RELATION, "stamp": ""})
        if not (counts["envelopes"][trust] or counts["refused"][trust] or counts["errors"][trust]):
            continue
        kind = ENVELOPES[trust]
        querier = "infinite" if trust == OPEN else most
        if trust == LOCAL and any(leaks(part.world.policy) for part in plan.parts):
            querier = "no guarantee where the policy leaks"
        operator = {LOCAL: querier, CURATOR: "infinite: the Curator opens every Deposit", OPEN: "infinite"}.get(trust, most)
        rows.append({"trust": trust, "envelope": kind.__name__, "count": counts["envelopes"][trust],
                     "refused": counts["refused"][trust], "errors": counts["errors"][trust],
                     "zones": counts["zones"][trust],
                     "seen_by": summed.get(tuple(sorted(sums))) if trust == SUM else kind.seen_by,
                     "epsilon_vs_querier": querier, "epsilon_vs_operator": operator,
                     "epsilon_granted": granted.get(trust, ""), "unit": unit, "relation": RELATION,
                     "stamp": "" if trust == OPEN else stamp})
    return rows


def _spent(plan: Plan, states: Sequence[State], ledger: Ledger) -> dict[str, Any]:
    """What the ledger says that homes have spent, by this run and before it, beside their caps.

    spent       a row per home and cell; per home under secure noise, where a cap is for all cells together (it is then the
                largest of the study's). The first cells only where there are many
    spent_most  the largest of all; absent where these are too many to be looked up
    """
    budgets: dict[str | None, dict[str, tuple[str, float]]] = {}  # cell, None: all -> household -> trust, cap
    for part, state in zip(plan.parts, states, strict=True):
        cap = part.world.terms.cap
        for cell, described in sorted(state.cells.items()):
            if described["trust"] != OPEN and plan.noise == SECURE:
                homes = budgets.setdefault(None, {})
                homes |= {name: ("", max(cap, homes.get(name, ("", cap))[1])) for name in part.world.population.ids}
            elif described["trust"] != OPEN:
                budgets[cell] = dict.fromkeys(part.world.population.ids, (described["trust"], cap))
    if sum(map(len, budgets.values())) > BUDGETS_READ:
        return {"spent": []}
    known = ledger.spent_many([(name, cell) for cell, homes in budgets.items() for name in homes])
    rows: list[dict[str, Any]] = []
    for cell, homes in budgets.items():
        if len(rows) + len(homes) <= SPENT_ROWS:
            rows += [{"household": name, "cell": cell or "", "trust": trust, "epsilon_spent": known[name, cell] / 1e6,
                      "cap": cap} for name, (trust, cap) in homes.items()]
    if not known:
        return {"spent": rows}
    name, cell = max(known, key=known.__getitem__)
    return {"spent": rows, "spent_most": {"epsilon_spent": known[name, cell] / 1e6, "cap": budgets[cell][name][1]}}


def _refusals(inside: Path) -> list[dict[str, Any]]:
    """Inside view: refusals by code and reason. A retried question is counted once, of a negotiation the last bid."""
    seen, bids = {}, {}
    for path in sorted(inside.glob("*.jsonl")):
        for entry in noted_inside(path):
            if "action" in entry:
                bids[entry["household"], entry["query_id"]] = entry
            else:
                seen[entry.get("household"), entry.get("query_id"), entry["code"]] = entry["reason"]
    seen |= {(*key, entry["code"]): entry["reason"] for key, entry in bids.items() if entry["action"] == REFUSE}
    counts = Counter((code, reason) for (_, _, code), reason in seen.items())
    return [{"code": code, "reason": reason, "count": count} for (code, reason), count in sorted(counts.items())]


def _expected(plan: Plan, states: Sequence[State]) -> list[dict[str, Any]]:
    """Closed forms beside the measurements: E|error| and E[cosine] of sums with Laplace noise."""
    found: dict[tuple, dict[str, Any]] = {}
    for part, state in zip(plan.parts, states, strict=True):
        returns = {}
        for entry in part.entries:
            trust, mechanism, kind = declared(entry.build(), entry.trust, part.query.kind)
            returns[entry.label] = trust, shaped(part.world.policy, mechanism), kind
        law = Laplace(part.world.spec(part.query.kind).clip)
        scale, delta = law.scale_units(part.query.epsilon_micro), law.sensitivity()
        answers = {(row[2], row[8]): row[10] for row in state.rows if row[9] == "answers"}
        spent = {(row[2], row[8]): row[10] for row in state.rows if row[9] == "epsilon_spent_mean"}
        for zone in state.zones:
            trust, mechanism, kind = returns[zone["strategy"]]
            n = int(answers[zone["strategy"], zone["round"]])
            if trust == OPEN or mechanism != "laplace" or kind != "sum" or n == 0:
                continue
            full, asked = part.query.epsilon * n / len(part.world.population), part.query.epsilon_micro
            if trust != LOCAL and state.granted.get(zone["cell"], (asked,))[0] < asked:
                continue  # homes that grant less than was asked are clipped to less under the one noise
            if trust == LOCAL and (zone["round"] > 1 or not abs(spent[zone["strategy"], 1] - full) < 1e-9 * full):
                continue  # homes that grant less than was asked add more noise than the closed form says
            noises = n if trust == LOCAL else 1
            norm = float(np.linalg.norm(zone["true_clipped"]))
            even = metrics.eps0(delta, len(zone["released"]), noises, norm) if norm > 0 else float("nan")
            cosine = metrics.expected_cosine(part.query.epsilon, even) if norm > 0 else float("nan")
            found[zone["strategy"], part.query.epsilon, n] = {
                "strategy": zone["strategy"], "trust": trust, "epsilon": part.query.epsilon, "n": n,
                "mae": scale * metrics.expected_abs_sum_of_laplace(noises), "cosine": cosine}
    return [found[key] for key in sorted(found)]
