"""Keys of a config's tables checked against the fields that take them: names first, then kinds of values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

from fedenergy.errors import did_you_mean

WORDS = {bool: "true or false", int: "a whole number", float: "a number", str: "text in quotes", tuple: "a list"}
_NUMBERS = (int, float)


def table_of(name: str, found: Any) -> dict[str, Any]:
    """A table's keys; ValueError where the config has something else by that name."""
    if not isinstance(found, Mapping):
        raise ValueError(f"[{name}] is a table of keys, not {found!r}")
    return dict(found)


def known(table: str, given: Mapping[str, Any], keys: set[str]) -> None:
    """ValueError for a key that the table does not take."""
    for name in given:
        if name not in keys:
            raise ValueError(f'[{table}] has no key "{name}" (takes: {", ".join(sorted(keys))}).{did_you_mean(name, keys)}')


def typed(table: str, given: Mapping[str, Any], *classes: type) -> None:
    """ValueError for a value of another kind than the field's default; fields without a plain default are left alone.

    >>> from fedenergy.synthesis.components import Recipe
    >>> typed("synthesis.recipe", {"seasonal": "7"}, Recipe)
    Traceback (most recent call last):
    ValueError: [synthesis.recipe] seasonal = '7'; use a whole number
    """
    usual = {item.name: item.default for kind in classes for item in fields(kind) if item.default is not MISSING}
    for name, value in given.items():
        want = type(usual.get(name))
        if want not in WORDS or name == "clusters":     # K or "auto": segments.kmeans checks it
            continue
        fits = isinstance(value, list | tuple) if want is tuple else (
            isinstance(value, _NUMBERS if want is float else want) and (want is bool or not isinstance(value, bool)))
        if not fits:
            raise ValueError(f"[{table}] {name} = {value!r}; use {WORDS[want]}")
