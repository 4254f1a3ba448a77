"""`fedenergy new`: a study folder that runs, with a strategy and a policy to edit. Nothing is downloaded."""

from __future__ import annotations

import json
import re
import string
import tomllib
from importlib import metadata, resources
from pathlib import Path

from fedenergy.errors import ConfigError

COUNT = 50  # homes of the study
PLACES = {"study.toml.txt": "study.toml", "README.md.txt": "README.md", "pyproject.toml.txt": "pyproject.toml",
          "mine_strategy.py.txt": "strategies/mine.py", "mine_policy.py.txt": "policies/mine.py",
          "test_study.py.txt": "tests/test_study.py"}
ALWAYS = ("non_private",)  # asked whenever oracle = true, though no config names it
IGNORED = "runs/\n__pycache__/\n.pytest_cache/\n*.fab\n"


def new_study(folder: Path) -> list[Path]:
    """Make a study folder; the files written, sorted. ConfigError where the folder has something in it already.

    The folder appears whole: what cannot be written leaves nothing half made in a folder that did not exist.
    """
    if not str(folder).strip() or folder == Path():
        raise ConfigError("the study folder needs a name: fedenergy new mystudy")
    folder = folder.resolve()
    name = re.sub(r"[^a-z0-9-]+", "-", folder.name.lower()).strip("-")[:40] or "study"
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(f"{folder} exists and is not an empty folder: choose another name, nothing is overwritten")
    starter = resources.files("fedenergy") / "starter"
    values = {"name": name, "count": COUNT, "nodes": COUNT, "root": json.dumps(str(folder), ensure_ascii=False)}
    files = {place: string.Template((starter / source).read_text(encoding="utf-8")).substitute(values)
             if not place.endswith(".py") else (starter / source).read_text(encoding="utf-8")
             for source, place in PLACES.items()}
    strategies = strategy_files()
    files |= {place: strategies(Path(place).stem) for module in named_strategies(files["study.toml"])
              if (place := f"strategies/{module}.py") not in files}
    files |= {"strategies/__init__.py": "", "policies/__init__.py": "", ".gitignore": IGNORED}
    try:
        for place, text in sorted(files.items()):
            path = folder / place
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise ConfigError(f"{folder} cannot be made ({error.strerror}): choose a folder that you may write to") from error
    return sorted(folder / place for place in files)


def named_strategies(config: str) -> list[str]:
    """The modules of strategies/ that a config's text names, and the oracle's.

    >>> named_strategies('[[strategy]]\\nuse = "strategies.zonal_sum:ZonalSum"')
    ['non_private', 'zonal_sum']
    """
    uses = [table["use"] for table in tomllib.loads(config).get("strategy", ())]
    return sorted({use.partition(":")[0].partition(".")[2] for use in uses if use.startswith("strategies.")}.union(ALWAYS))


def strategy_files():
    """A function module -> text of strategies/<module>.py: of the checkout, else those installed with the package.

    An installation keeps them under share/fedenergy/strategies, outside of what Python imports: a study imports its own.
    """
    checkout = Path(__file__).parents[1] / "strategies"
    if (checkout / "zonal_sum.py").is_file():
        return lambda module: (checkout / f"{module}.py").read_text(encoding="utf-8")
    found = {Path(str(path)).name: path for path in metadata.files("fedenergy") or ()
             if "share/fedenergy/strategies/" in Path(str(path)).as_posix()}

    def read(module: str) -> str:
        if f"{module}.py" not in found:
            raise ConfigError(f"this installation has no strategies/{module}.py: install fedenergy again, or copy the file "
                              "from its repository")
        return Path(found[f"{module}.py"].locate()).read_text(encoding="utf-8")
    return read
