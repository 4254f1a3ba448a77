"""What a zone learns from homes that keep their data: the quickstart study, and any other config of its form.

    python -m simulations.zone_explanations [configs/london.toml] [--quick]
"""

from __future__ import annotations

import argparse

from fedenergy.config import Config, load
from fedenergy.federation.study import run_study
from fedenergy.progress import open_progress
from fedenergy.report.report import Report


def main(config: Config | None = None) -> Report:
    """Run the study (default: configs/quickstart.toml) and write its page. Returns the Report."""
    config = load("configs/quickstart.toml") if config is None else config
    report = Report(run_study(config, progress=open_progress()))
    report.to_html()
    return report


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("config", nargs="?", default="configs/quickstart.toml")
    parser.add_argument("--quick", action="store_true", help="toy size")
    options = parser.parse_args()
    print(main(load(options.config, quick=options.quick)))
