"""The benchmark's engines take the same steps, its figures are paired, and its verdicts are read off them."""

from __future__ import annotations

import json

import pytest
import torch

from simulations.benchmarks import dpsgd

SMALL = dict(patch=8, width=16, depth=1)
pytestmark = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning",
                                        "ignore:Full backward hook:UserWarning", "ignore:Secure RNG:UserWarning")


@pytest.mark.parametrize("engine", dpsgd.ENGINES)
def test_smoke_every_engine_steps(engine):
    step, net = dpsgd.build(engine, **SMALL)
    before = [p.detach().clone() for p in net.parameters()]
    step()
    step()
    assert any((a != b).any() for a, b in zip(before, net.parameters()))


@pytest.mark.parametrize(("engine", "sigma"), [                        # Opacus' optimizer draws noise of its own
    ("opacus", 0.0), ("opacus-default", 0.0), ("opacus-halves", 0.0), ("ghost", 0.0), ("vmap", 0.0), ("ghost", 1.5),
    ("vmap", 1.5)])
def test_oracle_every_private_engine_writes_the_same_gradient(engine, sigma):
    """Clipped sum, noise, divided by the batch: compared are equal amounts of work."""
    found = []
    for name in ("bookkeeping", engine):
        step, net = dpsgd.build(name, **SMALL, sigma=sigma)
        step()
        found.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-6)
    assert found[0].norm() > 1e-3


def test_contract_repeats_are_summed_up():
    engines = ("plain", "bookkeeping", "opacus")
    part = dpsgd.timed(8, engines, rounds=2, repeats=3, width=16, depth=1)
    for figures in part.values():
        for ratio in figures.values():
            assert 0 < ratio["least"] <= ratio["median"] <= ratio["most"]
    assert part["plain"]["to_plain"] == {"least": 1.0, "median": 1.0, "most": 1.0}
    assert part["opacus"]["hooks_to_it"]["median"] == 1.0


def test_golden_ratios_are_paired_by_round(monkeypatch):
    """A machine that is ten times slower in the second round: the ratio stays 3."""
    ticks, cost = [0.0], {"plain": 1.0, "bookkeeping": 3.0}
    calls = {"plain": 0, "bookkeeping": 0}

    def build(engine, patch, device):
        def step():
            slow = 10.0 if calls[engine] == 2 else 1.0         # the first call only warms up
            calls[engine] += 1
            ticks[0] += cost[engine] * slow
        return step, None

    monkeypatch.setattr(dpsgd, "build", build)
    monkeypatch.setattr(dpsgd, "clock", lambda device: lambda: ticks[0])
    part = dpsgd.timed(1, ("plain", "bookkeeping"), rounds=3, repeats=1)
    assert part["bookkeeping"]["to_plain"] == {"least": 3.0, "median": 3.0, "most": 3.0}


def test_golden_verdicts():
    def ratio(x):
        return dpsgd.spread([x, x, x])

    part = {"bookkeeping": {"to_plain": ratio(1.3), "hooks_to_it": ratio(2.5), "peak_mb": 100.0},
            "opacus": {"peak_mb": 190.0}}
    assert [line.split(": ")[-1] for line in dpsgd.verdict(8, part)] == ["reached", "reached", "missed"]
    assert [line.split(": ")[-1] for line in dpsgd.verdict(1, part)] == ["missed", "reached", "missed"]
    assert dpsgd.verdict(8, part)[2] == "Opacus hooks / book-keeping, memory: 1.90 (reach: at least 2): missed"
    assert dpsgd.verdict(2, part) == []                        # nothing was promised there


def test_smoke_rows_of_absent_devices_say_so(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(dpsgd, "here", lambda device: False)
    found = dpsgd.main(["--devices", "cuda", "--json", str(tmp_path / "figures.json")])
    assert found["cuda"] == json.loads((tmp_path / "figures.json").read_text())["cuda"] == "not run: no GPU"
    assert "cuda: not run" in capsys.readouterr().out


def test_mistakes_are_named():
    with pytest.raises(ValueError, match="takes: plain"):
        dpsgd.build("fast", **SMALL)
