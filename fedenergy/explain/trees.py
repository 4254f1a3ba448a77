"""Boosted trees as flat arrays, read from xgboost's own serialisation without building Python objects per node."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

# UBJSON type markers of xgboost's typed arrays (big endian, as the format demands).
_MARKER_DTYPES = {b"d": ">f4", b"D": ">f8", b"i": "i1", b"U": "u1", b"I": ">i2", b"l": ">i4", b"L": ">i8"}
_FIELDS = {  # per-node arrays, in the alphabetical order in which xgboost writes them
    "default_left": np.uint8, "left_children": np.int32, "right_children": np.int32,
    "split_conditions": np.float32, "split_indices": np.int32, "split_type": np.uint8, "sum_hessian": np.float32,
}


class Trees(NamedTuple):
    """An additive ensemble: the nodes of all trees one after another; children are numbered within their tree.

    offset        (T + 1,) int64: tree t owns nodes offset[t] to offset[t + 1]; its root is the first
    left, right   (M,) int32 child within the tree, -1 at a leaf
    feature       (M,) int32 column that an inner node tests
    threshold     (M,) float32: a row goes left where x < threshold; at a leaf, the leaf's value
    cover         (M,) float32 sum of hessians of the training rows that reached the node
    default_left  (M,) uint8: 1 where a missing x goes left
    """

    offset: np.ndarray
    left: np.ndarray
    right: np.ndarray
    feature: np.ndarray
    threshold: np.ndarray
    cover: np.ndarray
    default_left: np.ndarray

    @property
    def count(self) -> int:
        return self.offset.size - 1


def from_ubjson(raw: bytes) -> Trees:
    """Trees of `Booster.save_raw("ubj")`. The arrays are found by their typed-array headers: .5 ms for 100 trees.

    Raises ValueError where a tree lacks an array (another format version) or splits on categories.
    """
    start = raw.find(b"trees[")
    if start < 0:
        raise ValueError(f"no trees in these {len(raw)} bytes: expected the UBJSON of a gbtree booster "
                         '(Booster.save_raw("ubj")); a linear booster has no trees to explain')
    heads = {name: name.encode() + b"[$" for name in _FIELDS}
    found: dict[str, list[np.ndarray]] = {name: [] for name in _FIELDS}
    find, position = raw.find, start
    while (end := find(b"tree_param", position)) >= 0:                    # the last key of every tree
        for name, head in heads.items():
            at = find(head, position, end) + len(head)
            if at < len(head):
                raise ValueError(f"tree {len(found[name])} of the model has no array {name!r}: this version of xgboost "
                                 'writes another layout; read it through from_json(Booster.save_raw("json"))')
            dtype, begin = _MARKER_DTYPES[raw[at:at + 1]], at + 11        # type marker, "#L", 8 bytes of length
            array = np.frombuffer(raw, dtype, int.from_bytes(raw[at + 3:begin], "big"), begin)
            found[name].append(array)
            position = begin + array.nbytes
        position = end + 1
    return _assemble(found)


def from_json(model: str | bytes | Mapping[str, Any]) -> Trees:
    """Trees of `Booster.save_raw("json")` (text or parsed): slower than `from_ubjson`, and its oracle in tests."""
    parsed = model if isinstance(model, Mapping) else json.loads(bytes(model) if not isinstance(model, str) else model)
    trees = parsed["learner"]["gradient_booster"]["model"]["trees"]
    return _assemble({name: [np.asarray(tree[name]) for tree in trees] for name in _FIELDS})


def _assemble(found: Mapping[str, list[np.ndarray]]) -> Trees:
    sizes = np.array([array.size for array in found["left_children"]], np.int64)
    whole = {name: np.concatenate(arrays).astype(_FIELDS[name]) for name, arrays in found.items()}
    if whole["split_type"].any():
        raise ValueError("the model splits on categorical features: exact tables need numeric splits (x < threshold)")
    return Trees(np.concatenate([[0], np.cumsum(sizes)]), whole["left_children"], whole["right_children"],
                 whole["split_indices"], whole["split_conditions"], whole["sum_hessian"], whole["default_left"])
