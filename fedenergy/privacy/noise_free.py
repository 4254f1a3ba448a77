"""What must not travel: sealed objects, and the wrapper of an array that carries no noise yet.

In a simulation this is a convention that catches slips (a summary logged, pickled to a worker, written as JSON);
it proves flows, not isolation.
"""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np


class Sealed:
    """Abstract: an object that refuses pickle, copy and deepcopy, and prints only its label.

    Used for everything whose state is secret: un-noised arrays, noise sources, pad keys.
    """

    __slots__ = ()
    _label = "<sealed>"

    def _refuse(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(f"{self._label} stays in the process that made it: it cannot be pickled, copied or converted. "
                        "Send a Release, a Share or a Deposit instead")

    __reduce__ = __reduce_ex__ = __getstate__ = __copy__ = __deepcopy__ = _refuse

    def __repr__(self) -> str:
        return self._label

    def __str__(self) -> str:
        return self._label

    def __format__(self, spec: str) -> str:
        return self._label


class NoiseFree(Sealed):
    """Holds one un-noised array; only `reveal_to_mechanism`, called in fedenergy.privacy, reads it back.

    values  any numeric array; a private, read-only copy is kept
    Guarantee: pickle, copy, deepcopy, json, numpy conversion, iteration, len, indexing, bool, comparison and hash raise
    TypeError; repr, str and format show "<NoiseFree>" and neither shape nor dtype.

    >>> NoiseFree([1.25, 2.5])
    <NoiseFree>
    """

    __slots__ = ("__values",)
    _label = "<NoiseFree>"

    def __init__(self, values: Any) -> None:
        copy = np.array(reveal_to_mechanism(values))
        if copy.dtype.kind not in "iuf":
            raise TypeError(f"NoiseFree holds numbers, not {copy.dtype}")
        copy.setflags(write=False)
        self.__values = copy

    __array__ = __array_interface__ = __array_struct__ = property(Sealed._refuse)
    __iter__ = __len__ = __getitem__ = __contains__ = __bool__ = Sealed._refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = Sealed._refuse
    __float__ = __int__ = __index__ = __complex__ = __bytes__ = Sealed._refuse


def gathered(vectors: list[NoiseFree]) -> NoiseFree:
    """(d,) vectors as the rows of one NoiseFree (n, d).

    >>> gathered([NoiseFree([1.0]), NoiseFree([2.0])])
    <NoiseFree>
    """
    return NoiseFree(np.stack([reveal_to_mechanism(vector) for vector in vectors]))


def reveal_to_mechanism(x: Any) -> Any:
    """The read-only array inside a NoiseFree; anything else is returned as it is.

    For fedenergy.privacy alone (a test holds every other module to it): what a mechanism gives back is noised, masked,
    or goes to the Curator by agreement.
    """
    return x._NoiseFree__values if isinstance(x, NoiseFree) else x
