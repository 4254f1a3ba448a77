"""The engine benchmark's parts that need no Ray: its figure, its lines, and the explain round's bare loop."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from simulations.benchmarks import engine
from simulations.benchmarks.engines import figure, ours

ROWS = [{"homes": homes, "nodes": "shards", "seconds": {"min": s, "median": s, "max": s}, "first_s": 9.0, "memory_gb": s / 9}
        for homes, s in ((1_000, 0.5), (100_000, 5.0))] + [
    {"homes": 1_000, "nodes": "homes", "seconds": {"min": 1.0, "median": 1.0, "max": 1.0}, "first_s": 9.0, "memory_gb": 1.0}]


def test_the_figure_marks_what_is_computed(tmp_path):
    path = figure.write(ROWS, tmp_path / "scale.svg")
    text = path.read_text()
    assert "computed, 4 such machines" in text
    assert "measured, 2 cores" in text
    assert path.with_suffix(".png").stat().st_size > 1_000


def test_the_lines_say_which_form_was_measured():
    lines = engine.printed({"census": {"rows": ROWS}})
    assert lines[0].startswith("a new query of 1,000 homes (shards): 0.5 s")
    assert "(homes): 1 s" in lines[2]


def test_linear_compares_as_many_messages_at_either_size(monkeypatch):
    asked = []

    def child(kind, part):
        asked.append((kind, part["nodes"], part["repeats"]))
        slow = 2 if part["nodes"] == 2_000 else 1
        return {"seconds": [slow * part["nodes"] * 1e-6] * part["repeats"], "processor_s": slow**2 * part["nodes"] * 1e-6,
                "puts": 1.0}
    monkeypatch.setattr(engine, "child", child)
    found = engine.noop(quick=True)
    assert asked[-2:] == [("rounds", 500, 8), ("rounds", 2_000, 2)]
    assert found["linear"]["seconds"]["median"] == pytest.approx(2.0)
    assert found["linear"]["processor_s"]["median"] == pytest.approx(4.0)
    lines = engine.printed({"noop": found})[-2:]
    assert lines[0].startswith("time per home: 2,000 nodes 2 us")
    assert "2,000 nodes 4 us" in lines[1]


def test_processor_time_is_counted():
    before = ours.processor_s([os.getpid()])
    began = time.process_time()
    while time.process_time() - began < 0.05:
        pass
    assert 0.03 < ours.processor_s([os.getpid()]) - before < 5


def test_a_clock_counts_what_lies_between_start_and_stop():
    clock = ours.Clock([os.getpid()])
    for pause in (0.02, 0.0):
        clock.start()
        time.sleep(pause)
        clock.stop()
        time.sleep(0.1)
    assert min(seconds for seconds, _ in clock.taken) < 0.1      # the pause between is not counted; a stall may be
    assert clock.taken[0][0] >= 0.02
    assert all(processor < 0.1 for _, processor in clock.taken)


def test_descendants_stand_still_while_suspended():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as busy:
        try:
            assert busy.pid in ours.descendants(os.getpid())
            time.sleep(0.2)
            with ours.suspended([busy.pid]):
                time.sleep(0.05)
                before = ours.processor_s([busy.pid])
                time.sleep(0.2)
                assert ours.processor_s([busy.pid]) == before
            time.sleep(0.3)
            assert ours.processor_s([busy.pid]) > before
        finally:
            busy.kill()


def test_the_explain_lines_name_both_loops():
    one = {"min": 1.0, "median": 2.0, "max": 3.0}
    part = {f"{name}_s": one for name in ("ours", "bare", "ours_processor", "bare_processor")} | {
        "overhead": {"min": -0.01, "median": 0.02, "max": 0.03},
        "overhead_processor": {"min": 0.0, "median": 0.01, "max": 0.02}}
    lines = engine.printed({"explain": {"homes": 1_000, "rounds": {"first": part, "next": part},
                                        "home_ms": {"alone": one, "library": one}}})
    assert lines[0].startswith("the first explain round of 1,000 homes, with their enrolment")
    assert lines[1].endswith("overhead 2.0 % (-1.0 to 3.0); of processor time 1.0 % (0.0 to 2.0) (to reach: 5 %)")
    assert lines[2] == ("a home on one core: the bare loop 2 ms (1 to 3); xgboost's own training call and contributions "
                        "2 ms (1 to 3)")


def test_xgboosts_own_loop_runs():
    assert ours._library(([0], 1, (168, 744))) == 1


def test_a_census_in_this_process_answers_every_home():
    found = ours.census({"nodes": 40, "form": "shards", "repeats": 2, "workers": 0, "distinct": 1})
    assert len(found["seconds"]) == 2
    assert found["memory_gb"] > 0


def test_a_part_that_fails_is_told(monkeypatch):
    with pytest.raises(RuntimeError, match="the part census"):
        engine.child("census", {"nodes": 0, "form": "shards", "repeats": 1, "workers": 0, "distinct": 1})
