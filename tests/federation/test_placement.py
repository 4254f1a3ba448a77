"""Homes of one ledger file stay together, and no worker has much more to do than another."""

from collections import Counter
from types import SimpleNamespace

import pytest

from fedenergy.box.ledger import bucket
from fedenergy.explain.task import Explain
from fedenergy.federation import study
from fedenergy.federation.placement import balanced


@pytest.mark.parametrize("workers", [1, 2, 3, 7])
@pytest.mark.parametrize("count", [1, 60, 200, 2_000])
def test_files_stay_whole_and_workers_get_equal_shares(workers, count):
    files = [bucket(f"home-{k + 1:06d}") for k in range(count)]
    numbers = balanced(files, workers)
    assert len(set(zip(files, numbers, strict=True))) == len(set(files)) == len(set(numbers))
    homes = Counter(number % workers for number in numbers)
    largest = max(Counter(files).values())  # a file cannot be split
    assert max(homes.values()) - min(homes[worker] for worker in range(workers)) <= largest
    if count >= 200 and workers <= 3:
        assert max(homes.values()) <= 1.03 * count / workers + 1


def test_a_worker_prepares_each_task_once_before_its_first_message(monkeypatch):
    done = []
    monkeypatch.setattr(Explain, "prepare", lambda task: done.append(task.clip))
    one, two = Explain(clip=1.0), Explain(clip=2.0)
    homes = SimpleNamespace(worlds=[SimpleNamespace(task=task) for task in (one, two, one, object())])
    study.prepared_client(done.append, homes)
    assert done == [1.0, 2.0, homes]


@pytest.mark.parametrize("coordinates", ["appliance", "daypart", "feature_lag"])
def test_explain_prepares_without_data_whatever_it_explains(coordinates):
    Explain(coordinates=coordinates, depth=9, engine="auto").prepare()
    Explain(coordinates=coordinates).prepare()
