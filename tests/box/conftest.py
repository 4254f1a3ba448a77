"""A PostgreSQL server of our own, from Debian's package, for the tests that every ledger store must pass."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def postgres_url():
    """URL of an empty data base; skips with a reason where there is no server to start."""
    pytest.importorskip("psycopg", reason="needs psycopg: pip install 'fedenergy[postgres]'")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb")) or [Path(shutil.which("initdb") or "/nowhere")]
    if not found[-1].exists():
        pytest.skip("needs PostgreSQL's initdb and pg_ctl (Debian: apt-get install postgresql)")
    user, run = pwd.getpwuid(os.getuid()).pw_name, []
    if user == "root":  # PostgreSQL does not run as root
        if "postgres" not in {entry.pw_name for entry in pwd.getpwall()} or shutil.which("runuser") is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres to run it as")
        user, run = "postgres", ["runuser", "-u", "postgres", "--"]
    folder = Path(tempfile.mkdtemp(prefix="fe-pg-"))  # short: socket paths have a limit
    folder.chmod(0o777)
    programs, data = found[-1].parent, folder / "data"

    def call(program, *arguments):
        subprocess.run([*run, str(programs / program), *arguments], check=True, cwd="/", capture_output=True, timeout=120)

    call("initdb", "-D", str(data), "-A", "trust", "-U", "fe", "-E", "UTF8")
    call("pg_ctl", "-D", str(data), "-w", "-l", str(folder / "log"), "-o",
         f"-k {folder} -c listen_addresses='' -c max_connections=300 -c shared_buffers=64MB", "start")
    try:
        yield f"postgresql://fe@/postgres?host={folder}"
    finally:
        call("pg_ctl", "-D", str(data), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
