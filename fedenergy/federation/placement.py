"""Which worker plays which home: all homes of a ledger file in one, and every worker as many homes as can be."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable


def balanced(files: Iterable[int], workers: int) -> list[int]:
    """A number per home, equal for homes of one ledger file, whose remainder by `workers` is the home's worker.

    files  ledger file of each home. The fullest goes first, always to the worker with the fewest homes so far (file
           number mod workers would leave one of two workers with 5 % more than its half of 200 homes, and the other idle).
    No result depends on it: answers, charges and noise are the home's own.

    >>> balanced([7, 9, 9, 11], workers=2)
    [1, 0, 0, 3]
    """
    files = list(files)
    homes, numbers = [0] * workers, {}
    for file, count in sorted(Counter(files).items(), key=lambda item: (-item[1], item[0])):
        worker = homes.index(min(homes))
        homes[worker] += count
        numbers[file] = worker + workers * sum(number % workers == worker for number in numbers.values())
    return [numbers[file] for file in files]
