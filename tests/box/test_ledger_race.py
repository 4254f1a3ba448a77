"""Six processes ask at once: the cap holds, one id is one answer. A naive read-check-write beside it fails."""

import json
import multiprocessing
import os
import time

from fedenergy.box.ledger import Ledger
from tests.box.test_ledger import charge, noised

PROCESSES, TRIES, CAP = 6, 14, 33


def naive_grant(path):
    """What the ledger must not be: read, check, write."""
    spent = json.loads(path.read_text())
    if spent + 1 > CAP:
        return 0
    time.sleep(0.001)  # the time it takes to draw noise
    spare = path.with_suffix(f".{os.getpid()}")
    spare.write_text(json.dumps(spent + 1))
    os.replace(spare, path)
    return 1


def race(folder, number, barrier, results):
    with Ledger(folder / "ledger") as ledger:
        barrier.wait()
        naive = sum(naive_grant(folder / "naive.json") for _ in range(CAP))
        barrier.wait()
        mine = [ledger.settle([charge(query=f"q{number}-{k}", epsilon=1, cap=CAP)], noised)[0].status
                for k in range(TRIES)]
        barrier.wait()
        asked = [charge(household=f"h{k}", query="same", epsilon=1, cap=CAP) for k in range(2, 12)]
        same = ledger.settle(asked, noised)
    results.put((naive, mine.count("charged"), mine.count("over_cap"), [tuple(outcome) for outcome in same]))


def test_six_racing_processes_never_grant_more_than_the_cap_and_share_one_answer(tmp_path):
    context = multiprocessing.get_context("spawn")
    barrier, results = context.Barrier(PROCESSES), context.Queue()
    (tmp_path / "naive.json").write_text("0")
    workers = [context.Process(target=race, args=(tmp_path, number, barrier, results)) for number in range(PROCESSES)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=90) for _ in workers]
    for worker in workers:
        worker.join()
    naive, charged, refused, same = zip(*found, strict=True)
    assert sum(naive) > CAP  # the test can fail
    assert (sum(charged), sum(refused)) == (CAP, PROCESSES * TRIES - CAP)
    for answers in zip(*same, strict=True):  # one home, as each process saw it
        assert sorted(status for status, *_ in answers) == ["charged"] + ["stored"] * (PROCESSES - 1)
        assert len({payload for _, payload, *_ in answers}) == 1
    with Ledger(tmp_path / "ledger") as ledger:
        assert ledger.spent("h1") == CAP
        assert ledger.verify() == []
