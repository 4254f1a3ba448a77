"""The ServerApp of `flwr run`: the same study as `fedenergy run`, on Flower's own runtime, with the same numbers.

    flwr run . --run-config 'config="configs/quickstart.toml" root="/abs/study"' --stream \
        --federation-config 'num-supernodes=200 client-resources-num-cpus=1'
"""

from __future__ import annotations

import os
import sys
from functools import partial

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedenergy.errors import FedenergyError, one_line
from fedenergy.federation.flower_client import study_of
from fedenergy.federation.flower_grid import FlowerGrid
from fedenergy.federation.study import run_study
from fedenergy.progress import LineProgress

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the study that the run config names; its folder is made under root."""
    try:
        folder = run_study(study_of(context.run_config), progress=LineProgress(sys.stdout),
                           grid=partial(FlowerGrid, grid)).resolve()
        print(f"Run folder: {folder}", flush=True)
        from fedenergy.report.page import write_report

        print(f"Report: {write_report(folder)}", flush=True)
    except FedenergyError as error:
        print(f"Error: {one_line(error)}", flush=True)
        if os.environ.get("FEDENERGY_DEBUG") == "1":
            raise
        raise type(error)(str(error)) from None  # Flower prints the traceback: a short one
