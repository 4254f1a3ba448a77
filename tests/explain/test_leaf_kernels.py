"""Where compiled code is cached: beside the module, in the user's folder, or nowhere; it runs in all three."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedenergy.explain.leaf_kernels as leaf_kernels

RUN = """
import numpy as np, leaf_kernels
codes = np.empty((1, 2), np.uint8)
leaf_kernels.bin_rows(np.array([[.5], [2.]], np.float32), np.array([0, 1]), np.array([1.], np.float32), codes)
print(codes.ravel().tolist(), leaf_kernels.__file__)
"""


@pytest.mark.parametrize("user_cache", [True, False])
def test_contract_read_only_package_falls_back(tmp_path, user_cache):
    package, cache = tmp_path / "package", tmp_path / "cache"
    package.mkdir()
    shutil.copy(Path(leaf_kernels.__file__), package / "leaf_kernels.py")
    (package / "__pycache__").write_text("in the way: no folder can be made here")
    if not user_cache:
        cache.write_text("in the way")
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    environment |= {"XDG_CACHE_HOME": str(cache), "HOME": str(cache), "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "-c", RUN], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("[0, 1] " + str(package))
    assert bool(list(cache.rglob("*.nbi")) if user_cache else []) == user_cache
