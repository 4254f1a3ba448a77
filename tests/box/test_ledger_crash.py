"""Sixty kills with SIGKILL, at every named step and at random: nothing revealed uncharged, nothing forgotten.

The kills run in a process of their own (this file as a script), which forks a worker for each and checks after each.
"""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HOMES = ("h1", "h2", "h3", "h4")
CAP = 400
KILLS = 60
MANY = 1_000  # no fault among them bounds the rate at 0.46 % with 99 % confidence


def test_sixty_kills_lose_nothing_and_reveal_nothing_uncharged(tmp_path):
    result = drive(tmp_path, "careful")
    assert result["faults"] == []
    assert result["kills"] == KILLS
    assert min(result["by_step"].values()) >= 3
    assert result["revealed"] > KILLS


@pytest.mark.slow
def test_a_thousand_kills_lose_nothing_and_reveal_nothing_uncharged(tmp_path):
    result = drive(tmp_path, "careful", MANY)
    assert result["faults"] == []
    assert result["kills"] == MANY


def test_the_check_sees_a_worker_that_reveals_before_it_commits(tmp_path):
    assert any("revealed" in fault for fault in drive(tmp_path, "hasty")["faults"])


def drive(folder, manner, kills=KILLS):
    done = subprocess.run([sys.executable, __file__, str(folder), manner, str(kills)], cwd=ROOT, timeout=60 + 2 * kills,
                          capture_output=True, text=True, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def main(folder: Path, manner: str, kills: int) -> None:
    from fedenergy.box import ledger_file

    global CAP
    CAP = max(CAP, 10 * kills)  # a worker that may charge nothing more reaches no step to be killed at
    steps = [*ledger_file.STEPS, "half a receipt", "compacted", "at random"]
    chance, faults, by_step = random.Random(5), [], dict.fromkeys(steps, 0)
    kills = kills if manner == "careful" else 6
    for number in range(kills):
        step = steps[number % len(steps)] if manner == "careful" else "drawn"
        times = chance.randint(1, 9)
        child = os.fork()
        if not child:
            try:
                work(folder, number, step, times, manner)
            finally:
                os._exit(1)
        if step == "at random":
            time.sleep(chance.uniform(0.0, 0.08))
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
            faults.append(f"worker {number} ended by itself at {step}")
        by_step[step] += 1
        faults += [f"after kill {number} at {step}: {fault}" for fault in check(folder)]
    print(json.dumps({"faults": faults, "kills": kills, "by_step": by_step, "revealed": len(revealed(folder))}))


def charges(query):
    from fedenergy.box.ledger import Charge

    return [Charge(home, query, query.encode(), "c1", 0, 0, "household", "replace-one", "laplace", "local", 1, CAP)
            for home in HOMES]


def work(folder: Path, number: int, step: str, times: int, manner: str) -> None:
    """Ask new and old queries in turn until killed; every answer is written down the moment it is revealed."""
    from fedenergy.box import ledger_file, receipts
    from fedenergy.box.ledger import Ledger

    left = [times]

    def die(here):
        if here == step:
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    ledger_file.on_step = die
    write, replace = os.pwrite, os.replace
    if step == "half a receipt":
        def half(file, data, offset):
            write(file, data[:len(data) // 2], offset)
            die(step)
            return write(file, data, offset)
        receipts.os.pwrite = half
    if step == "compacted":
        receipts.COMPACT_ABOVE = -100

        def swap(source, target):
            if times % 2:
                replace(source, target)
            left[0] = 1
            die(step)
        receipts.os.replace = swap
    notes = os.open(folder / "revealed", os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600)

    def reveal(query, home, payload):
        os.write(notes, f"{home} {query} {payload.hex()}\n".encode())

    with Ledger(folder / "ledger") as ledger:
        for turn in range(10_000):
            query = f"q{number}-{turn // 2}"  # every query twice

            def draw(index, query=query):
                payload = os.urandom(8)
                if manner == "hasty":
                    reveal(query, HOMES[index], payload)
                return payload

            for home, outcome in zip(HOMES, ledger.settle(charges(query), draw), strict=True):
                if outcome.payload is not None:
                    reveal(query, home, outcome.payload)


def revealed(folder: Path) -> dict:
    lines = (folder / "revealed").read_text().splitlines() if (folder / "revealed").exists() else []
    return {(home, query, payload) for home, query, payload in map(str.split, lines)}


def check(folder: Path) -> list[str]:
    from fedenergy.box.ledger import Ledger

    with Ledger(folder / "ledger") as ledger:
        faults = [f"{problem}" for problem in ledger.verify()]
        rows = {(row.household, row.query_id): row.payload for row in ledger.rows()}
        shown = revealed(folder)
        faults += [f"revealed {home} {query}, which is not charged so" for home, query, payload in shown
                   if rows.get((home, query)) != bytes.fromhex(payload)]
        for home in HOMES:
            mine = [query for owner, query in rows if owner == home]
            if not ledger.spent(home, "c1") == len(mine) <= CAP:
                faults.append(f"{home}: {len(mine)} answers, {ledger.spent(home, 'c1')} spent, cap {CAP}")
        for query in sorted({query for _, query in rows})[-2:]:
            before = {home: ledger.spent(home) for home in HOMES}
            for home, outcome in zip(HOMES, ledger.settle(charges(query), lambda index: b"new"), strict=True):
                stored = rows.get((home, query))
                if stored is not None and (outcome.payload, ledger.spent(home)) != (stored, before[home]):
                    faults.append(f"{home} {query}: asked again, another answer or another charge")
    return faults


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
