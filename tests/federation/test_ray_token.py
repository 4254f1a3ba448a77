"""Ray's token is asked for: whoever has none, or another, is not let into a running RayGrid."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.federation.test_grids import COUNT, ask, indices, make_client

JOIN = ("import ray, sys; ray.init(address=sys.argv[1], log_to_driver=False, logging_level='ERROR', "
        "_node_ip_address='127.0.0.1'); print('INSIDE')")


@pytest.mark.slow
def test_only_the_token_of_a_running_grid_lets_a_process_in():
    from fedenergy.federation.ray_grid import RayGrid

    grid = RayGrid(make_client, COUNT, placement=lambda index: index % 8, workers=1, batch=4)
    import ray  # not before: Ray reads its mode when it is first imported

    try:
        address = ray.get_runtime_context().gcs_address
        bare = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
        tokens = {"none": {}, "wrong": {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64},
                  "right": {name: os.environ[name] for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN")}}
        started = {name: subprocess.Popen([sys.executable, "-c", JOIN, address], env={**bare, **env}, text=True,
                                          stdout=subprocess.PIPE, stderr=subprocess.PIPE) for name, env in tokens.items()}
        told = {name: process.communicate(timeout=180) for name, process in started.items()}
        assert {name: "INSIDE" in out for name, (out, _) in told.items()} == {"none": False, "wrong": False, "right": True}
        assert all(started[name].returncode for name in ("none", "wrong"))
        assert indices(ask(grid)) == list(range(COUNT))
    finally:
        grid.close()
