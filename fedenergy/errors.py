"""The errors that a user sees, and the checks that raise them over what a user wrote: files, values, names,
arguments.

Every message is one line that names the thing, the value, the rule and the remedy.
"""

from __future__ import annotations

import datetime
import difflib
import errno
import importlib
import inspect
import json
import math
import os
import pkgutil
import re
import sys
import tomllib
import traceback
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MAX_BYTES, MAX_DEPTH = 1_000_000, 12
KIND = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "nothing"}


class FedenergyError(Exception):
    """An expected failure. Its text is one printable line, whatever the message held."""

    exit_code = 1

    def __init__(self, message: object):
        super().__init__(one_line(message))


class ConfigError(FedenergyError):
    """A mistake in the config or the arguments: nothing ran, nothing was spent (exit code 2)."""

    exit_code = 2


class RunFailed(FedenergyError):
    """A run that started and could not be finished (exit code 1)."""


def one_line(message: object) -> str:
    """The text with line breaks, tabs and control characters turned into single spaces.

    >>> one_line("a\\n  b\\x1b[31m")
    'a b [31m'
    """
    return " ".join("".join(letter if letter.isprintable() else " " for letter in str(message)).split())


def os_text(error: OSError, resume: str = "") -> str:
    """A failure of the operating system as a message: what is wrong, the file where it is known, and what to do where
    the disk is full. resume: the command that goes on.

    >>> os_text(OSError(28, "No space left on device", "/a/b"), "fedenergy resume runs/toy")
    'No space left on device: /a/b; make room, then fedenergy resume runs/toy'
    """
    named = f": {error.filename}" if error.filename is not None else ""
    remedy = f"; make room, then {resume or 'try again'}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
    return f"{error.strerror or error}{named}{remedy}"


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """An OSError of writing a file names that file: a full disk is told by write(), which knows none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def where(error: BaseException) -> str:
    """Type and place of an exception, without its text: texts may hold readings."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}{place}"


def did_you_mean(word: str, options: Iterable[str]) -> str:
    """A hint that starts with a space, or nothing where no option is near.

    >>> did_you_mean("flor", ["floor", "trim"])
    ' Did you mean "floor"?'
    >>> did_you_mean("xyz", ["floor"])
    ''
    """
    by_lower = {option.lower(): option for option in options}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1)
    return f' Did you mean "{by_lower[near[0]]}"?' if near else ""


class FrozenMap(Mapping):
    """A mapping of checked values that cannot change and can be hashed and pickled; lists become tuples."""

    __slots__ = ("_items",)

    def __init__(self, items: Mapping[str, Any] | Iterable = (), where: str = "", depth: int = 0):
        self._items = {key: freeze(value, f"{where}.{key}" if where else key, depth + 1)
                       for key, value in dict(items).items() if freeze(key, where or "a key") is not None}

    def __getitem__(self, key: str) -> Any:
        return self._items[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __hash__(self) -> int:
        return hash(frozenset(self._items.items()))

    def __repr__(self) -> str:
        return repr(self._items)


def freeze(value: Any, where: str = "", depth: int = 0) -> Any:
    """An immutable copy of a TOML value.

    where: its dotted key, for messages. ConfigError for NaN, infinities, numbers beyond 64 bits, text that is not
    UTF-8, nesting deeper than MAX_DEPTH and values of other types.
    """
    if depth > MAX_DEPTH:
        raise ConfigError(f"{where[:40]} is nested more than {MAX_DEPTH} deep: flatten it")
    if isinstance(value, Mapping):
        return FrozenMap(value, where, depth)
    if isinstance(value, list | tuple):
        return tuple(freeze(item, where, depth + 1) for item in value)
    if isinstance(value, datetime.date):
        return value
    if isinstance(value, str):
        if any("\ud800" <= letter <= "\udfff" for letter in value):
            raise ConfigError(f"{where} = {value!a} is not valid UTF-8 text")
    elif not isinstance(value, int | float):
        raise ConfigError(f"{where} is a {type(value).__name__}: write text, a number, true/false, a list or a table")
    elif not math.isfinite(value):
        raise ConfigError(f"{where} = {value} is not a finite number: nan and inf are refused everywhere")
    elif isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ConfigError(f"{where} is a whole number beyond 64 bits")
    return value


def thaw(value: Any, dates_as_text: bool = False) -> Any:
    """A plain copy: dicts and lists, as TOML gives them; on request dates as ISO text, for JSON."""
    if isinstance(value, Mapping):
        return {key: thaw(item, dates_as_text) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [thaw(item, dates_as_text) for item in value]
    return value.isoformat() if dates_as_text and isinstance(value, datetime.date) else value


def toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else toml_text(key)


def toml_text(value: Any) -> str:
    """A value as TOML writes it: for messages and for `Config.to_toml`.

    >>> print(toml_text({"lags": [1, 24], "name": "a b"}))
    {lags = [1, 24], name = "a b"}
    """
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_text, value))}]"
    return value.isoformat() if isinstance(value, datetime.date) else repr(value)


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file of at most MAX_BYTES, its values checked; ConfigError where it is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        near = did_you_mean(path.name, [item.name for item in path.parent.glob("*.toml")])
        raise ConfigError(f"{path} cannot be read: {error.strerror}.{near}") from error
    if len(text) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES:,} bytes: a config is a page of text")
    if any(part.count(b".") > 200 for part in re.split(b"[=,\n]", text)):  # tomllib takes quadratic time for such a key
        raise ConfigError(f"{path} has a key nested more than {MAX_DEPTH} deep: flatten it")
    try:
        return thaw(freeze(tomllib.loads(text.decode("utf-8-sig"))))
    except RecursionError as error:
        raise ConfigError(f"{path} is nested more than {MAX_DEPTH} deep: flatten it") from error
    except ValueError as error:  # bad TOML, bad UTF-8, a number of too many digits
        raise ConfigError(f"{path} is not TOML: {error}") from error


def look_up(use: str, table: str) -> Any:
    """The object named "module:Name", from the working folder first. ConfigError naming [table] where there is none."""
    folder = os.getcwd()
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    where, (module_name, name) = f'[{table}] use = "{use}"', use.split(":")
    try:
        importlib.invalidate_caches()
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise ConfigError(f'{where}: there is no module "{missing}" (searched {folder} and the installed packages).'
                              f"{did_you_mean(missing, _siblings(missing))}") from error
        raise ConfigError(f"{where}: {_import_failure(module_name, error)}") from error
    public = [key for key in vars(module).get("__all__", dir(module)) if not key.startswith("_")]
    try:
        return getattr(module, name)
    except Exception as error:  # a lazy module imports its parts only now
        if isinstance(error, AttributeError) and name not in vars(module).get("__all__", ()):
            raise ConfigError(f'{where}: the module "{module_name}" has no "{name}".'
                              f"{did_you_mean(name, public)}") from error
        raise ConfigError(f"{where}: {_import_failure(module_name, error)}") from error


def _siblings(module: str) -> list[str]:
    parent, dot, _ = module.rpartition(".")
    path = getattr(sys.modules.get(parent), "__path__", None) if dot else [os.getcwd()]
    return [f"{parent}{dot}{found.name}" for found in pkgutil.iter_modules(path)] if path else []


def _import_failure(module: str, error: BaseException) -> str:
    frame, place = error.__traceback__, ""
    while frame is not None:
        file = Path(frame.tb_frame.f_code.co_filename)
        if file.is_file() and file != Path(__file__) and "importlib" not in file.parts:
            place = f" ({file.name}, line {frame.tb_lineno})"
        frame = frame.tb_next
    return f'the module "{module}" fails when it is imported: {type(error).__name__}: {error}{place}'


def parameters(target: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """(arguments that can be given by name, whether others may be given too or the signature is not known)."""
    try:
        try:
            signature = inspect.signature(target, eval_str=True)
        except Exception:  # annotations that only a type checker resolves
            signature = inspect.signature(target)
    except (TypeError, ValueError):
        return {}, True
    found = signature.parameters
    named = {key: item for key, item in found.items() if item.kind in (item.POSITIONAL_OR_KEYWORD, item.KEYWORD_ONLY)}
    return named, any(item.kind is item.VAR_KEYWORD for item in found.values())


def check_arguments(target: Any, args: Mapping[str, Any], table: str) -> None:
    """ConfigError for an argument that target does not take, or a scalar of another kind than it annotates."""
    name = getattr(target, "__name__", str(target))
    if not callable(target):
        raise ConfigError(f"[{table}] use names {name}, which is no class or function")
    known, others = parameters(target)
    for key, value in args.items():
        if key not in known:
            if others:
                continue
            takes = f"takes: {', '.join(known)}" if known else "takes no arguments"
            raise ConfigError(f'[{table}] has no argument "{key}" ({name} {takes}).{did_you_mean(key, known)}')
        if wrong := wrong_kind(value, known[key].annotation):
            raise ConfigError(f"[{table}] {key} = {toml_text(value)} is {wrong[0]}, but {name} takes {wrong[1]}")


def wrong_kind(value: Any, hint: Any) -> tuple[str, str] | None:
    """(what the value is, what the annotation wants) where they differ; None where they agree or nothing is known."""
    kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if listed := [kind for kind in kinds if typing.get_origin(kind) in (list, tuple)]:
        return _no_list(value, listed, [kind for kind in kinds if kind not in listed])
    if not all(any(kind is one for one in KIND) for kind in kinds):
        return None
    if type(value) in kinds or (type(value) is int and float in kinds) or isinstance(value, datetime.date):
        return None
    try:
        quoted = isinstance(value, str) and (int in kinds or float in kinds) and math.isfinite(float(value))
    except ValueError:
        quoted = False
    wanted = " or ".join(KIND[kind] for kind in kinds) + (": drop the quotes" if quoted else "")
    return KIND.get(type(value), "a table" if isinstance(value, Mapping) else "a list"), wanted


def _no_list(value: Any, listed: list[Any], others: list[Any]) -> tuple[str, str] | None:
    """wrong_kind for lists: a single number, or text where numbers belong, in place of one. Nothing else is judged."""
    numbers = all(item in (int, float, ...) for kind in listed for item in typing.get_args(kind))
    text = isinstance(value, str)
    if not (numbers if text else isinstance(value, int | float)) or any(kind not in (str, type(None)) for kind in others) \
            or type(value) in others:
        return None
    wanted = "a list of numbers" if text else f"a list: write [{toml_text(value)}]"
    return KIND[type(value)], " or ".join([*(KIND[kind] for kind in others), wanted])


def call(target: Any, args: Mapping[str, Any], table: str) -> Any:
    """target(**args), with its arguments checked; whatever values it refuses become a ConfigError naming [table]."""
    check_arguments(target, args, table)
    name, args = getattr(target, "__name__", str(target)), dict(args)
    for key, item in parameters(target)[0].items():
        if item.default is item.empty and key not in args:
            raise ConfigError(f'[{table}] lacks "{key}", which {name} needs')
        if isinstance(args.get(key), datetime.date) and item.annotation is str:
            args[key] = args[key].isoformat()
    try:
        return target(**args)
    except (ValueError, TypeError, OSError) as error:
        said = str(error).removeprefix(f"[{table}] ").removeprefix(f"{name}: ")
        named = name.lower() == table or str(error).startswith(f"[{table}]")  # the table says already what it is about
        raise ConfigError(f"[{table}] {said}" if named else f"[{table}] {name}: {said}") from error
