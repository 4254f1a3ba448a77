"""Who may import whom: an AST test of fedenergy/ and strategies/ (DESIGN, import rules)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FILES = sorted([*ROOT.glob("fedenergy/**/*.py"), *ROOT.glob("strategies/**/*.py")])
ONLY = {  # module -> places that may import it
    "flwr": ("fedenergy/federation/", "fedenergy/testing.py", "strategies/"),
    "ray": ("fedenergy/federation/ray_grid.py",),
    "opacus": ("fedenergy/privacy/accounting.py", "fedenergy/imputation/"),
    "dp_accounting": ("fedenergy/privacy/accounting.py", "fedenergy/imputation/"),
    "xgboost": ("fedenergy/explain/", "fedenergy/forecast/"),
    "shap": ("fedenergy/report/",),
    "torch": ("fedenergy/imputation/", "fedenergy/forecast/", "fedenergy/privacy/accounting.py"),
    "pickle": (), "cloudpickle": (), "joblib": (), "yaml": (), "simulations": (), "tests": (),
    "strategies": ("strategies/",),
}
APART = ("explain", "imputation", "synthesis", "forecast")


def imports(path: Path) -> list[tuple[str, bool]]:
    """(module, at top level) of every import in a file."""
    tree = ast.parse(path.read_text())
    top = {id(node) for node in tree.body}
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(alias.name, id(node) in top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.append((node.module, id(node) in top))
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports(path):
    place = path.relative_to(ROOT).as_posix()
    for module, top in imports(path):
        allowed = ONLY.get(module.split(".")[0])
        assert allowed is None or place.startswith(allowed or ("-",)), f"{place} imports {module}"
        if module.split(".")[0] == "shap":
            assert not top, f"{place} imports shap at top level: it must be lazy"
        for package in APART:
            if module.startswith(f"fedenergy.{package}"):
                own = place.split("/")[1]
                assert own == package or own not in APART, f"{place} imports {module}"


def test_the_rule_can_fail(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("import ray\nfrom flwr.app import Message\n")
    assert [module for module, _ in imports(bad)] == ["ray", "flwr.app"]
    assert not "fedenergy/box/bad.py".startswith(ONLY["ray"])


def test_modules_stay_small():
    long = {str(path.relative_to(ROOT)): n for path in FILES if (n := len(path.read_text().splitlines())) > 450}
    assert not long, "one responsibility per module"
