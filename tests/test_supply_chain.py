"""What the code trusts: no pickle, no YAML, no code from data; dependencies with their reasons, bounds where they count."""

from __future__ import annotations

import ast
import re
import subprocess
import tomllib
from functools import cache
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted(path for folder in ("fedenergy", "strategies", "simulations") for path in (ROOT / folder).rglob("*.py"))
BANNED = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "yaml", "ruamel", "oyaml",
          "jsonpickle", "imp", "xmlrpc", "telnetlib"}
CALLS = {"eval", "exec", "compile", "__import__", "read_pickle", "to_pickle", "breakpoint"}
DOTTED = {("torch", "load"), ("torch", "save"), ("os", "system"), ("os", "popen"), ("tempfile", "mktemp")}
LOADS = {("np", "load"), ("numpy", "load"), ("np", "save"), ("numpy", "save")}  # pickle unless told not to
SHELLS = {"run", "Popen", "call", "check_call", "check_output"}
FORMATS = (".yaml", ".yml", ".pkl", ".pickle", ".joblib", ".pt", ".pth", ".ckpt", ".npy", ".whl", ".so", ".dll",
           ".exe", ".jar")
# dependency -> what a release beyond the bound did, or may do: the comment in pyproject.toml says it
BOUNDED = {"flwr": "1.43", "torch": "2.14"}


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text(encoding="utf-8"))


def found_in(tree: ast.AST) -> list[str]:
    """What of the above a module does, with its line."""
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else \
            [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        found += [f"line {node.lineno}: imports {name}" for name in names if name.split(".")[0] in BANNED]
        if not isinstance(node, ast.Call):
            continue
        given = {word.arg: word.value for word in node.keywords}
        dotted = (node.func.value.id, node.func.attr) if isinstance(node.func, ast.Attribute) and isinstance(
            node.func.value, ast.Name) else ("", node.func.id if isinstance(node.func, ast.Name) else "")
        plain = node.func.id if isinstance(node.func, ast.Name) else \
            node.func.attr if isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_pickle") else ""
        if plain in CALLS or dotted in DOTTED:
            found.append(f"line {node.lineno}: calls {'.'.join(filter(None, dotted)) or plain}")
        if dotted in LOADS and getattr(given.get("allow_pickle"), "value", None) is not False:
            found.append(f"line {node.lineno}: {'.'.join(dotted)} without allow_pickle=False")
        if dotted[1] in SHELLS and isinstance(given.get("shell"), ast.Constant) and given["shell"].value:
            found.append(f"line {node.lineno}: a shell")
    return found


@pytest.mark.parametrize("folder", ["fedenergy", "strategies", "simulations"])
def test_no_module_unpickles_reads_yaml_or_runs_data(folder):
    wrong = {str(path.relative_to(ROOT)): found for path in FILES if path.relative_to(ROOT).parts[0] == folder
             and (found := found_in(parsed(path)))}
    assert not wrong


@pytest.mark.parametrize("line", [
    "import pickle", "from yaml import safe_load", "import numpy as np\nnp.load('x')", "np.load('x', allow_pickle=True)",
    "np.save('x', a)", "torch.load('x')", "eval('1')", "exec(text)", "pandas.read_pickle('x')", "frame.to_pickle('x')",
    "subprocess.run('ls', shell=True)", "os.system('ls')", "import ruamel.yaml", "__import__('x')"])
def test_the_rule_can_fail(line):
    assert found_in(ast.parse(line))
    assert not found_in(ast.parse("np.load('x', allow_pickle=False)\nmodel.eval()\nre.compile('x')\nimport json"))


def test_the_repository_holds_no_file_of_these_formats():
    try:
        listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, timeout=60).stdout
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs git and a repository: it lists what is committed")
    names = [name for name in listed.decode().split("\0") if name]
    assert len(names) > 100
    assert [name for name in names if name.lower().endswith(FORMATS)] == []


# -- dependencies

TEXT = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
PROJECT = tomllib.loads(TEXT)["project"]
LINE = re.compile(r'^\s*"([A-Za-z0-9._-]+)(\[[a-z,]+\])?([^"]*)",?[ ]*(?:#\s*(.+))?$', re.MULTILINE)


def stated() -> dict[str, tuple[str, str]]:
    """name -> (bounds, reason) of every line of the runtime dependencies."""
    block = TEXT[TEXT.index("dependencies = ["):TEXT.index("[project.optional-dependencies]")]
    return {match[1]: (match[3], (match[4] or "").strip()) for match in LINE.finditer(block)}


def test_every_dependency_has_a_lower_bound_and_a_stated_reason():
    found = stated()
    assert len(found) == len(PROJECT["dependencies"])
    for name, (bounds, reason) in found.items():
        assert re.match(r">=\d", bounds), f"{name}: no lower bound"
        assert len(reason.split()) >= 2, f"{name}: no reason in its comment"


def test_upper_bounds_stand_where_a_release_broke_us_with_the_reason():
    found = stated()
    bounded = {name: match[1] for name, (bounds, _) in found.items() if (match := re.search(r"<([\d.]+)", bounds))}
    assert bounded == BOUNDED
    for name, bound in BOUNDED.items():
        assert bound in found[name][1] or "newer" in found[name][1], f"{name}: the comment says what lies beyond {bound}"


def test_what_is_installed_is_within_the_bounds():
    def number(text: str) -> tuple[int, ...]:
        return tuple(int(part) for part in re.findall(r"\d+", text.split("+")[0])[:3])

    for name, (bounds, _) in stated().items():
        have = number(metadata.version(name))
        for sign, bound in re.findall(r"(>=|<)([\d.]+)", bounds):
            assert have >= number(bound) if sign == ">=" else have < number(bound), f"{name} {have}: {bounds}"


def test_every_dependency_is_used():
    """Imported somewhere in the package, or brought in by name by another of them; nothing else is asked for."""
    modules = {"flwr": "flwr", "scikit-learn": "sklearn", "dp-accounting": "dp_accounting"}
    imported = {name.split(".")[0] for path in FILES for node in ast.walk(parsed(path))
                for name in ([alias.name for alias in node.names] if isinstance(node, ast.Import) else
                             [node.module or ""] if isinstance(node, ast.ImportFrom) else [])}
    unused = {name for name in stated() if modules.get(name, name) not in imported}
    assert not unused
