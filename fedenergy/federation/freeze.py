"""A strategy's state between rounds, as JSON: what a checkpoint needs to go on, without pickle."""

from __future__ import annotations

import base64
import json
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import Strategy

PLAIN = (bool, int, float, str, type(None))
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType, type)


def freeze(strategy: Strategy) -> dict[str, Any]:
    """The instance's attributes as JSON values. State that has no such form raises TypeError, naming it.

    Functions and classes are left out: they come back with the constructor. A wrapped strategy (an attribute) is frozen
    in place.
    """
    return {name: _down(value, f"{type(strategy).__name__}.{name}")
            for name, value in vars(strategy).items() if not _is_function(value)}


def thaw(state: Mapping[str, Any], into: Strategy) -> None:
    """Put a frozen state back into a strategy that was built with the same arguments."""
    for name, value in state.items():
        current = vars(into).get(name)
        if isinstance(value, dict) and "strategy" in value and isinstance(current, Strategy):
            thaw(value["strategy"], current)
        else:
            setattr(into, name, _up(value))


def dump_arrays(arrays: ArrayRecord) -> dict[str, Any]:
    """An ArrayRecord as JSON values, exact to the bit."""
    return {key: _down(array.numpy(), key) for key, array in arrays.items()}


def load_arrays(values: Mapping[str, Any]) -> ArrayRecord:
    """Inverse of dump_arrays."""
    return ArrayRecord({key: Array(_up(value)) for key, value in values.items()})


def _is_function(value: Any) -> bool:
    return isinstance(value, FUNCTIONS)


def _down(value: Any, where: str, inside: bool = False) -> Any:
    if isinstance(value, Strategy) and not inside:
        return {"strategy": freeze(value)}
    if isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return {"scalar": base64.b64encode(value.tobytes()).decode(), "dtype": value.dtype.str}
    if type(value) in PLAIN:
        return {"float": value.hex()} if type(value) is float else value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": data, "dtype": value.dtype.str, "shape": list(value.shape)}
    if type(value) is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, ArrayRecord):
        return {"arrays": dump_arrays(value)}
    if isinstance(value, MetricRecord | ConfigRecord):
        return {"record": type(value).__name__, "items": {k: _down(v, where, True) for k, v in value.items()}}
    if type(value) is set:
        items = [json.dumps(_down(item, where, True)) for item in value]
        return {"set": [json.loads(item) for item in sorted(items)]}
    if type(value) in (list, tuple):
        return {type(value).__name__: [_down(item, where, True) for item in value]}
    if type(value) is dict:
        return {"dict": [[_down(k, where, True), _down(v, where, True)] for k, v in value.items()]}
    raise TypeError(f"{where} is a {type(value).__name__}, which a checkpoint cannot hold: keep a strategy's state in "
                    "numbers, text, arrays, records, lists and dicts")


def _up(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if "float" in value:
        return float.fromhex(value["float"])
    if "scalar" in value:
        return np.frombuffer(base64.b64decode(value["scalar"]), np.dtype(value["dtype"]))[0]
    if "array" in value:
        data = np.frombuffer(base64.b64decode(value["array"]), np.dtype(value["dtype"]))
        return data.reshape(value["shape"]).copy()
    if "bytes" in value:
        return base64.b64decode(value["bytes"])
    if "arrays" in value:
        return load_arrays(value["arrays"])
    if "record" in value:
        kind = {"MetricRecord": MetricRecord, "ConfigRecord": ConfigRecord}[value["record"]]
        return kind({k: _up(v) for k, v in value["items"].items()})
    if "dict" in value:
        return {_up(k): _up(v) for k, v in value["dict"]}
    kind, items = next(iter(value.items()))
    return {"list": list, "tuple": tuple, "set": set}[kind](_up(item) for item in items)
