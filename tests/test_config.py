"""The config: golden texts, did-you-mean, bad input, and the round trip through TOML."""

from __future__ import annotations

import datetime
import os
import pickle
import subprocess
import sys
import tomllib
from dataclasses import FrozenInstanceError, dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedenergy as fe
from fedenergy.config import Config, PopulationSpec, Spec, StrategySpec, load, parse, parse_value, put
from fedenergy.errors import ConfigError, FrozenMap, RunFailed, did_you_mean, freeze, one_line

HERE = "tests.test_config"
ROOT = Path(__file__).parents[1]


# What the configs of these tests name.

@dataclass(frozen=True)
class Homes:
    count: int = 1_000
    seed: int = 0
    start: str = ""


@dataclass(frozen=True)
class Task:
    clip: float = 50.0
    lags: tuple[int, ...] = (1,)


class Fixed:
    pass


@dataclass(frozen=True)
class Query:
    kind: str = "appliances"
    epsilon: float = 1.0
    rounds: int = 1

    def __post_init__(self):
        if not self.epsilon > 0:
            raise ValueError(f"epsilon = {self.epsilon} is not above 0")


class ZonalSum:
    def __init__(self, floor: float = 0.0):
        self.floor = floor


class Needy:
    def __init__(self, share: float, **others: object):
        self.share, self.others = share, others


class Picky:
    def __init__(self, mode: str | None = None, many: int = 1, sure: bool = False):
        raise ValueError("never\nsatisfied")


class Unresolvable:
    def __init__(self, thing: NoSuchType = None, count: int = 1):  # noqa: F821
        self.count = count


def of_homes(homes: int, /, *rest: int) -> None: ...


NOT_CALLABLE = 3
TEXT = f"""
name = "toy"
[population]
use = "{HERE}:Homes"
count = 40
[task]
use = "{HERE}:Task"
[policy]
use = "{HERE}:Fixed"
[query]
use = "{HERE}:Query"
[[strategy]]
use = "{HERE}:ZonalSum"
"""


@pytest.fixture(autouse=True)
def same_path(monkeypatch):
    """Looking a name up puts the working folder on sys.path: undo it."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "path", sys.path[:])


@pytest.fixture
def study(tmp_path):
    """Write a config (default: a toy one plus `more` in front or behind) and load it."""
    def write(text=TEXT, top="", more="", **options) -> Config:
        path = tmp_path / "study.toml"
        path.write_text(top + text + more, encoding="utf-8")
        return load(path, **options)
    return write


def refused(function, *args, **options) -> str:
    with pytest.raises(ConfigError) as caught:
        function(*args, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Errors


def test_errors_are_one_line_with_an_exit_code():
    assert (ConfigError.exit_code, RunFailed.exit_code) == (2, 1)
    assert str(RunFailed("two\nlines\t\x1b[31mred")) == "two lines [31mred"
    assert one_line("  ε  stays ") == "ε stays"


def test_did_you_mean_ignores_case_and_stays_silent_when_nothing_is_near():
    assert did_you_mean("zonalsum", ["ZonalSum", "SecureSum"]) == ' Did you mean "ZonalSum"?'
    assert did_you_mean("qqq", ["ZonalSum"]) == ""


# Names and arguments


@pytest.mark.parametrize(("spec", "message"), [
    (Spec(f"{HERE}:ZonalSum", {"flor": 1}, table="strategy"),
     '[strategy] has no argument "flor" (ZonalSum takes: floor). Did you mean "floor"?'),
    (Spec(f"{HERE}:Fixed", {"x": 1}, table="policy"), '[policy] has no argument "x" (Fixed takes no arguments).'),
    (Spec(f"{HERE}:Querry", table="query"),
     f'[query] use = "{HERE}:Querry": the module "{HERE}" has no "Querry". Did you mean "Query"?'),
    (Spec("strategys.mine:Mine", table="strategy"),
     f'[strategy] use = "strategys.mine:Mine": there is no module "strategys" (searched {ROOT} and the installed '
     'packages). Did you mean "strategies"?'),
    (Spec("tests.test_confg:Homes", table="population"),
     f'[population] use = "tests.test_confg:Homes": there is no module "tests.test_confg" (searched {ROOT} and the '
     'installed packages). Did you mean "tests.test_config"?'),
    (Spec(f"{HERE}:Query", {"epsilon": "1e-5"}, table="query"),
     '[query] epsilon = "1e-5" is text, but Query takes a number: drop the quotes'),
    (Spec(f"{HERE}:Query", {"rounds": 1.5}, table="query"),
     "[query] rounds = 1.5 is a number, but Query takes a whole number"),
    (Spec(f"{HERE}:Query", {"epsilon": True}, table="query"),
     "[query] epsilon = true is true or false, but Query takes a number"),
    (Spec(f"{HERE}:Query", {"epsilon": [1.0]}, table="query"),
     "[query] epsilon = [1.0] is a list, but Query takes a number"),
    (Spec(f"{HERE}:Picky", {"mode": 3}, table="policy"),
     "[policy] mode = 3 is a whole number, but Picky takes text or nothing"),
    (Spec("fedenergy:Explain", {"lags": 24}, table="task"),
     "[task] lags = 24 is a whole number, but Explain takes a list: write [24]"),
    (Spec("fedenergy:Explain", {"lags": "24"}, table="task"),
     '[task] lags = "24" is text, but Explain takes a list of numbers'),
    (Spec("fedenergy:Forecast", {"lags": 24.5}, table="task"),
     "[task] lags = 24.5 is a number, but Forecast takes a list: write [24.5]"),
    (Spec(f"{HERE}:of_homes", {"homes": 3}, table="task"),
     '[task] has no argument "homes" (of_homes takes no arguments).'),
    (Spec(f"{HERE}:NOT_CALLABLE", table="task"), "[task] use names 3, which is no class or function"),
])
def test_check_says_what_is_wrong_and_what_to_do(spec, message):
    assert refused(spec.check) == message
    assert refused(spec.build) == message


def test_build_refuses_missing_arguments_and_refused_values_naming_the_table():
    assert refused(Spec(f"{HERE}:Needy", table="strategy").build) == '[strategy] lacks "share", which Needy needs'
    assert refused(Spec(f"{HERE}:Query", {"epsilon": -1.0}, table="query").build) == \
        "[query] epsilon = -1.0 is not above 0"
    assert refused(Spec(f"{HERE}:Picky", table="policy").build) == "[policy] Picky: never satisfied"
    assert refused(Spec("fedenergy:simulate_households", {"count": 2, "distinct": -1},
                        table="population").build).startswith(
        "[population] simulate_households: distinct = -1 is below 0")  # the name once, whoever says it


def test_build_gives_plain_lists_and_lets_extra_arguments_come_on_top():
    made = Spec(f"{HERE}:Needy", {"share": 0.5, "lags": [1, 24], "more": {"a": 1}}).build(share=0.25)
    assert (made.share, made.others) == (0.25, {"lags": [1, 24], "more": {"a": 1}})


def test_functions_builtins_and_unresolvable_annotations_are_taken():
    assert Spec("math:floor", {}).check().resolve()(2.5) == 2
    assert Spec(f"{HERE}:Unresolvable", {"count": 3}).build().count == 3


def test_a_date_reaches_an_argument_that_takes_text_as_iso_text():
    assert Spec(f"{HERE}:Homes", {"start": datetime.date(2013, 1, 7)}).build().start == "2013-01-07"


@pytest.mark.parametrize(("use", "hint"), [
    ("strategies.mine.Mine", 'Did you mean "strategies.mine:Mine"?'), ("Mine", 'for example "strategies.mine:Mine"'),
    ("../evil:Mine", "not of the form"), ("a:b:c", "not of the form"), ("os:system('x')", "not of the form"),
    (3, "not of the form"),
])
def test_use_has_one_form(use, hint):
    assert hint in refused(Spec, use)


@pytest.mark.parametrize(("body", "said"), [
    ("import nowhere_at_all\n", "ModuleNotFoundError: No module named 'nowhere_at_all' (mine_{n}.py, line 1)"),
    ("x = 1\n1 / 0\n", "ZeroDivisionError: division by zero (mine_{n}.py, line 2)"),
    ("def broken(:\n", "SyntaxError"),
    ("raise SystemExit('bye')\n", "SystemExit: bye"),
])
def test_a_module_of_the_users_that_fails_is_named_with_its_line(tmp_path, monkeypatch, body, said):
    number = abs(hash(body))
    (tmp_path / f"mine_{number}.py").write_text(body)
    monkeypatch.chdir(tmp_path)
    message = refused(Spec(f"mine_{number}:Mine", table="policy").resolve)
    assert f'the module "mine_{number}" fails when it is imported' in message
    assert said.format(n=number) in message


def test_names_are_looked_up_in_the_working_folder_first(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("class Mine:\n    def __init__(self, depth=1): self.depth = depth\n")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    monkeypatch.chdir(tmp_path)
    assert Spec("colorsys:Mine", {"depth": 3}).build().depth == 3
    sys.modules.pop("colorsys")


# Values


def test_frozen_maps_are_equal_hashable_picklable_and_do_not_change():
    made = FrozenMap({"a": [1, {"b": 2}]})
    assert made == {"a": (1, {"b": 2})}
    assert hash(made) == hash(pickle.loads(pickle.dumps(made)))
    with pytest.raises(TypeError):
        made["a"] = 2


@pytest.mark.parametrize(("value", "said"), [
    (float("nan"), "nan is not a finite number"), (float("inf"), "inf is not a finite number"),
    (2**63, "beyond 64 bits"),
    (datetime.time(1), "is a time"), (None, "is a NoneType"), ("\ud800", "not valid UTF-8"),
])
def test_values_that_no_result_could_be_named_by_are_refused(value, said):
    assert said in refused(freeze, value, "query.epsilon")
    assert "query.epsilon" in refused(freeze, {"x": [value]}, "query.epsilon")


def test_deep_nesting_is_refused_at_any_depth_in_a_moment():
    deep: list = []
    for _ in range(500):
        deep = [deep]
    assert "nested more than" in refused(freeze, deep, "task.x")
    table: dict = {}
    for _ in range(500):
        table = {"a": table}
    assert "nested more than" in refused(freeze, table, "task.x")


# The file


def test_defaults_fill_what_a_config_leaves_out():
    config = parse({"strategy": [{"use": "a:B"}]}, name="tiny")
    assert config.query == Spec("fedenergy:Query", {"kind": "appliances"})
    assert (config.population.use, config.policy.use) == ("fedenergy:simulate_households", "fedenergy:Fixed")
    assert (config.name, config.seeds, config.out, config.oracle) == ("tiny", (0,), "runs", False)
    assert (config.privacy.noise, config.engine.workers, config.ledger.path) == ("simulation", 2, "")
    with pytest.raises(FrozenInstanceError):
        config.name = "other"


@pytest.mark.parametrize(("top", "message"), [
    ("sedes = [1]\n", 'the config has no key "sedes" (it takes: name, title, seeds, oracle, fresh, out, data, '
                      "population, task, policy, negotiation, query, agreement, privacy, engine, ledger, vary, strategy). "
                      'Did you mean "seeds"?'),
    ("[populaton]\ncount = 3\n", 'Did you mean "population"?'),
    ("[engine]\nworker = 3\n", '[engine] has no argument "worker" (Engine takes: workers, address, batch, '
                               'max_failures, nodes). Did you mean "workers"?'),
    ("[engine]\nworkers = -1\n", "[engine] workers = -1 is outside 0..1024"),
    ('[engine]\nworkers = "2"\n', '[engine] workers = "2" is text, but Engine takes a whole number: drop the quotes'),
    ("[engine]\nmax_failures = 1.5\n", "max_failures = 1.5 is outside 0..1"),
    ('[privacy]\nnoise = "sekure"\n', 'noise = "sekure" is unknown: use "simulation" or "secure"'),
    ("seeds = []\n", "seeds = []: write one or more different whole numbers >= 0"),
    ("seeds = [1, 1]\n", "seeds = [1, 1]:"), ("seeds = [-1]\n", "seeds = [-1]:"),
    ("seeds = [true]\n", "seeds = [true]:"),
    ("seeds = [0.5]\n", "seeds = [0.5]:"), ("seeds = 3\n", "seeds = 3 is not a list"),
    ('oracle = "yes"\n', 'oracle = "yes" is not true or false'),
    ("fresh = true\n", "fresh = true is not a whole number"),
    ("fresh = -1\n", "fresh = -1"), ("agreement = 3\n", "agreement = 3 is not a table: write [agreement]"),
    ("[agreement]\nkap = 3\n", '[agreement] has no argument "kap"'),
    ("[agreement]\nfoldr = 'x'\n", 'or AgreementFolder takes: folder, revoked, keys, zone, authenticator). '
     'Did you mean "folder"?'),
    ("[agreement]\ntrust = 3\n", "[agreement] trust = 3 is a whole number, but AgreementTerms takes a list: write [3]"),
    ('[agreement]\ncap = "1e-5"\n', '[agreement] cap = "1e-5" is text'),
    ("[agreement]\ncap = nan\n", "agreement.cap = nan is not a finite number: nan and inf are refused everywhere"),
    ("[agreement]\ncap = -inf\n", "agreement.cap = -inf is not a finite number"),
    ("vary = 3\n", "vary is not a flat table"), ("[vary]\n'query.epsilon' = 3\n", "write a list of one or more"),
    ("[vary]\n'query.epsilon' = []\n", "write a list"),
    ("[vary]\n'query.epsilon' = [1, 1.0]\n", "different values"),
    ("[vary]\n'query.epsilom' = [1.0]\n", '[query] has no argument "epsilom"'),
    ("[vary]\n'query.epsilon' = [1.0, 'x']\n", '[query] epsilon = "x" is text, but Query takes a number'),
    ("[vary]\n'engine.workers' = [1]\n", '[vary] "engine.workers" cannot be varied'),
    ("[vary]\nseeds = [1]\n", "cannot be varied"), ("[vary]\nstrategy = ['a:B']\n", "cannot be varied"),
    ("[vary]\n'quary.epsilon' = [1]\n", 'the config has no table "quary"'),
    ("[vary]\n'strategy.7.floor' = [1]\n", '"strategy.7.floor" is no strategy: there are 1, numbered from 0'),
    (f"[vary]\npolicy = ['{HERE}:Fixed']\n'policy.x' = [1]\n", "both set the same thing"),
    ("[vary]\n" + "".join(f"'query.a{i}' = [0,1,2,3,4,5,6,7,8,9]\n" for i in range(5)), "makes 100000 combinations"),
    ('name = "../up"\n', 'name = "../up" names a folder'), ('name = "=1+1"\n', "names a folder"),
    ('name = ""\n', "names a folder"), ("name = 3\n", "name = 3 is not text"),
    ("x = 99999999999999999999\n", "beyond 64 bits"), ("x = 1" + "0" * 5_000 + "\n", "is not TOML"),
    ("x = " + "[" * 20 + "]" * 20 + "\n", "nested more than 12 deep"),
    ("x = " + "[" * 9_000 + "]" * 9_000 + "\n", "nested more than 12 deep"),
    (".".join(["a"] * 100) + " = 1\n", "nested more than 12 deep"),
    (".".join(["a"] * 400_000) + " = 1\n", "nested more than 12 deep"),
    ("x = {" + ".".join(["a"] * 400_000) + " = 1}\n", "nested more than 12 deep"),
    ("x = 01:00:00\n", "x is a time"), ("x = \n", "is not TOML"),
    ("#" * 1_000_001 + "\n", "larger than 1,000,000 bytes"),
], ids=lambda text: text[:40])
def test_a_bad_file_is_refused_in_one_line(study, top, message):
    text = TEXT.replace('name = "toy"\n', "") if "name" in top else TEXT
    table = top.startswith("[")
    said = refused(study, text, top="" if table else top, more=top if table else "")
    assert message in said
    assert len(said) < 500


def test_a_file_that_is_absent_or_not_utf8_or_a_folder_is_refused(tmp_path):
    (tmp_path / "quickstart.toml").write_text("")
    assert refused(load, tmp_path / "quikstart.toml").endswith(
        'No such file or directory. Did you mean "quickstart.toml"?')
    assert "cannot be read" in refused(load, tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'name = "caf\xe9"')
    assert "is not TOML" in refused(load, tmp_path / "latin.toml")


@pytest.mark.parametrize("strategy", ["strategy = 3", "strategy = [3]", "[[strategy]]\nfloor = 1", ""])
def test_a_study_has_strategies_that_name_what_they_use(study, strategy):
    assert "[[strategy]]" in refused(study, 'name = "toy"\n', more=strategy)


def test_the_trust_of_a_strategy_is_no_argument_of_it(study):
    config = study(more='trust = "open"\nfloor = 2.0\n')
    assert config.strategies == (StrategySpec(f"{HERE}:ZonalSum", {"floor": 2.0}, "open"),)
    assert config.strategies[0].build().floor == 2.0
    assert config.strategies[0].identity() == {"use": f"{HERE}:ZonalSum", "trust": "open", "floor": 2.0}
    assert 'trust = "opn" is unknown: use one of local, sum, curator, open. Did you mean "open"?' in refused(
        study, more='trust = "opn"\n')


def test_data_must_be_a_folder(study, tmp_path):
    assert study(data=str(tmp_path)).data == str(tmp_path)
    assert "is no folder" in refused(study, data=str(tmp_path / "absent"))


# --set and --vary


@pytest.mark.parametrize(("text", "value"), [
    ("2", 2), ("2.5", 2.5), (".5", 0.5), ("-1.", -1.0), ("1e-5", 1e-5), ("true", True), ("[1, 24]", [1, 24]),
    ("abc", "abc"),
    ("a b", "a b"), ('"2"', "2"), ("", ""), ("{a = 1}", {"a": 1}), ("2027-01-01", datetime.date(2027, 1, 1)),
    ("1\nx = 2", "1\nx = 2"), ("strategies.mine:Mine", "strategies.mine:Mine"), ("0,1", "0,1"),
])
def test_values_are_toml_or_bare_text(text, value):
    assert parse_value(text) == value
    assert type(parse_value(text)) is type(value)


def test_set_changes_one_key(study):
    config = study(sets=["query.epsilon=.5", "strategy.0.floor=3", "oracle=true", "seeds=[4, 5]", "engine.workers=0"])
    assert config.query.args == {"epsilon": 0.5}
    assert config.strategies[0].args == {"floor": 3}
    assert (config.oracle, config.seeds, config.engine.workers) == (True, (4, 5), 0)


def test_set_strategy_replaces_the_list_and_plus_appends(study):
    needy = f"{HERE}:Needy"
    assert [s.use for s in study(sets=[f"strategy={needy}"]).strategies] == [needy]
    assert [s.use for s in study(sets=[f"strategy+={needy}"]).strategies] == [f"{HERE}:ZonalSum", needy]
    config = study(sets=[f'strategy=[{{use="{needy}", share=1}}, {{use="{needy}", share=2}}]', f"strategy.1={needy}"])
    assert [dict(s.args) for s in config.strategies] == [{"share": 1}, {}]
    assert study(sets=[f'strategy+={{use="{needy}", share=1}}']).strategies[1].args == {"share": 1}
    assert '"seeds+=" is not possible' in refused(study, sets=["seeds+=1"])


def test_set_of_a_use_table_drops_the_old_arguments(study):
    more = f'[policy]\nuse = "{HERE}:Needy"\nshare = 1\n'
    text = TEXT.replace(f'[policy]\nuse = "{HERE}:Fixed"\n', "")
    assert study(text, more=more).policy.args == {"share": 1}
    assert study(text, more=more, sets=[f"policy={HERE}:Fixed"]).policy == Spec(f"{HERE}:Fixed")
    assert "Fixed takes no arguments" in refused(study, text, more=more, sets=[f"policy.use={HERE}:Fixed"])


@pytest.mark.parametrize(("text", "said"), [
    ("query.epsilon", 'is not KEY=VALUE: write --set query.epsilon=2'), ("=2", "is not KEY=VALUE"),
    ("+=2", "is not KEY=VALUE"), ("query..epsilon=2", "has an empty part"), ("name.x=2", "name is not a table"),
    ("strategy.x.floor=2", "numbered from 0, as in strategy.0.use"),
    ("strategy.1.floor=2", "there are 1"),
    ("query.epsilon=nan", "query.epsilon = nan is not a finite number"), ("query.epsilon=x", 'epsilon = "x" is text'),
    ("query.epsilom=2", 'Did you mean "epsilon"?'), ("strategy=[{use=1", "is not a TOML value"),
    ("strategy=[1]", "a list of tables"), ("query=[1]", "query = [1] is not a table"),
    ("querry=2", 'Did you mean "query"?'),
    ("strategy.0=3", "a list of tables"),
])
def test_a_bad_set_is_refused(study, text, said):
    assert said in refused(study, sets=[text])


def test_vary_adds_keys_and_replaces_values(study):
    more = "[vary]\nquery.epsilon = [1, 2]\n"
    config = study(more=more, vary=["population.count=50,200", "query.epsilon=.1,1.05", "task.lags=[1],[1,24]",
                                    f"policy={HERE}:Fixed,{HERE}:ZonalSum"])
    assert dict(config.vary) == {"query.epsilon": (0.1, 1.05), "population.count": (50, 200),
                                 "task.lags": ((1,), (1, 24)), "policy": (f"{HERE}:Fixed", f"{HERE}:ZonalSum")}
    assert "is not KEY=VALUE" in refused(study, vary=["query.epsilon"])
    assert "write a list of one or more" in refused(study, vary=["query.epsilon="])


def test_variations_are_the_cartesian_product_in_order(study):
    config = study(more=f"[vary]\n'query.epsilon' = [2.0, 1.0]\npolicy = ['{HERE}:Fixed', '{HERE}:ZonalSum']\n")
    made = config.variations()
    assert [tuple(one.keys.values()) for one in made] == [
        (2.0, f"{HERE}:Fixed"), (2.0, f"{HERE}:ZonalSum"), (1.0, f"{HERE}:Fixed"), (1.0, f"{HERE}:ZonalSum")]
    assert [one.config.query.args["epsilon"] for one in made] == [2.0, 2.0, 1.0, 1.0]
    assert made[1].config == replace(config, vary=FrozenMap(), policy=Spec(f"{HERE}:ZonalSum"),
                                     query=Spec(f"{HERE}:Query", {"epsilon": 2.0}))
    assert [dict(one.keys) for one in study().variations()] == [{}]


def test_options_set_seeds_engine_out_and_fresh(study):
    config = study(seeds="3, 1", workers=3, address="auto", out="elsewhere", fresh=True)
    assert (config.seeds, config.engine.workers, config.engine.address) == ((3, 1), 3, "auto")
    assert (config.out, config.fresh) == ("elsewhere", 1)
    assert study(seeds=[7, 8]).seeds == (7, 8)
    assert "workers = 0 means this process" in refused(study, workers=0, address="auto")
    assert "--seeds 0,1,2" in refused(study, seeds="0-2")
    assert "different" in refused(study, seeds="1,1")


def test_quick_shrinks_homes_seeds_and_varied_keys(study):
    config = study(quick=True, seeds="5,6,7", vary=["query.epsilon=1,2,3", "population.count=10,50,200"])
    assert (config.population.args["count"], config.seeds) == (20, (5, 6))
    assert dict(config.vary) == {"query.epsilon": (1, 3), "population.count": (10, 20)}
    assert study(quick=True, vary=["population.count=50,200"]).vary["population.count"] == (20,)
    assert study(TEXT.replace("count = 40\n", ""), quick=True).population.args == {"count": 20}
    assert study(TEXT.replace("count = 40\n", "count = 7\n"), quick=True).population.args == {"count": 7}


def test_put_on_an_empty_document():
    document: dict = {}
    put(document, "query.epsilon", 1)
    put(document, "vary.query.epsilon", [1, 2])
    put(document, "strategy", "a:B", append=True)
    assert document == {"query": {"epsilon": 1}, "vary": {"query.epsilon": [1, 2]}, "strategy": [{"use": "a:B"}]}


# Identity


def test_the_digest_is_that_of_what_results_depend_on(study):
    config = study()
    for same in (study(workers=0), study(out="x"), study(fresh=True), study(sets=["ledger.path=x"]),
                 study(address="auto"), study(data=str(ROOT))):
        assert same.digest() == config.digest()
    for other in (study(seeds="1"), study(sets=["query.epsilon=2"]), study(sets=["oracle=true"]),
                  study(sets=["name=b"]), study(sets=["strategy.0.trust=open"]), study(vary=["query.epsilon=1,2"]),
                  study(sets=["agreement.cap=1"]), study(sets=["privacy.noise=secure"])):
        assert other.digest() != config.digest()


def test_golden_run_name():
    # BLAKE2b of canonical JSON, person "fe.config.1": a change here renames every run folder and its ledger.
    config = parse({"name": "toy", "seeds": [0, 1], "strategy": [{"use": "strategies.zonal_sum:ZonalSum"}],
                    "query": {"epsilon": 1.0}, "agreement": {"cap": 6.73}})
    assert config.run_name == "toy-de3c05e4"
    assert len(config.digest()) == 32


# The round trip

WORDS = st.text(st.characters(codec="utf-8"), max_size=8)
NAMES = st.from_regex(r"[a-z][a-z_.]{0,8}:[A-Z][a-z]{0,5}", fullmatch=True)
SCALARS = (st.booleans() | st.integers(-2**63, 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | WORDS
           | st.dates() | st.datetimes() | st.datetimes(timezones=st.just(datetime.UTC)))
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
                      max_leaves=5)
ARGS = st.dictionaries(WORDS.filter(lambda key: key not in ("use", "trust")), VALUES, max_size=3)
TABLES = st.builds(lambda use, args: {"use": use, **args}, NAMES, ARGS)
DOCUMENTS = st.fixed_dictionaries(
    {"name": st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,9}", fullmatch=True),
     "strategy": st.lists(st.builds(lambda table, trust: {**table, **({"trust": trust} if trust else {})}, TABLES,
                                    st.sampled_from([None, "local", "sum", "open"])), min_size=1, max_size=3)},
    optional={"title": WORDS, "seeds": st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=3, unique=True),
              "oracle": st.booleans(), "fresh": st.integers(0, 9), "out": WORDS, "data": WORDS, "population": TABLES,
              "task": TABLES, "policy": TABLES, "query": ARGS | TABLES, "agreement": ARGS,
              "privacy": st.sampled_from([{}, {"noise": "secure"}]), "engine": st.sampled_from([{}, {"workers": 0}]),
              "ledger": st.builds(lambda path: {"path": path}, WORDS),
              "vary": st.dictionaries(st.sampled_from(["query.epsilon", "population.count", "task.a b", "policy"]),
                                      st.lists(SCALARS | TABLES, min_size=1, max_size=1), max_size=3)})


@settings(max_examples=100, deadline=None)
@given(DOCUMENTS)
def test_contract_toml_written_and_read_again_is_an_equal_config(document):
    config = parse(document)
    again = parse(tomllib.loads(config.to_toml()))
    assert again == config
    assert hash(again) == hash(config)
    assert again.digest() == config.digest()
    assert again.to_toml() == config.to_toml()
    assert pickle.loads(pickle.dumps(config)) == config


def test_the_resolved_config_loads_as_the_same_study(study, tmp_path):
    config = study(more="[vary]\n'query.epsilon' = [0.1, 1e-5]\n", sets=["agreement.expires=2030-01-01"], fresh=True)
    (tmp_path / "config.resolved.toml").write_text(config.to_toml(), encoding="utf-8")
    assert load(tmp_path / "config.resolved.toml") == config


def test_quickstart_is_the_study_that_the_readme_promises():
    config = parse(tomllib.loads((ROOT / "configs" / "quickstart.toml").read_text(encoding="utf-8")))
    assert (config.name, config.seeds, config.oracle, dict(config.vary)) == (
        "quickstart", (0, 1, 2), True, {"query.epsilon": (0.1, 1.05, 6.73)})
    assert config.population == PopulationSpec("fedenergy:simulate_households", {
        "count": 200, "steps": 744, "step_minutes": 60, "seed": 1,
        "appliances": ["Heating", "Fridge", "Fan", "Oven", "Washing Machine", "Dryer", "Cooler"]})
    assert [spec.use for spec in config.strategies] == [
        "strategies.zonal_sum:ZonalSum", "strategies.central_laplace:CentralLaplace", "strategies.secure_sum:SecureSum"]
    assert (config.task.args["lags"], config.task.args["clip"]) == ((1, 24, 168), 50.0)
    assert config.agreement == {"cap": 6.73, "trust": ("local", "sum", "curator")}
    assert (config.policy.use, config.query.args["rounds"]) == ("fedenergy:Fixed", 1)
    assert config.agreement_spec.build().cap == 6.73


def test_reading_a_config_loads_nothing_heavy():
    code = ("import sys, fedenergy.config, fedenergy.progress; "
            "heavy = {'pandas', 'scipy', 'flwr', 'ray', 'torch', 'xgboost', 'matplotlib'} & set(sys.modules); "
            "assert not heavy, heavy")
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})


NEGOTIATES = '[negotiation]\nuse = "fedenergy:Budget"\nmoney = 5.0\nrounds = 4\n'


def test_without_a_negotiation_table_nothing_is_negotiated(study):
    config = study()
    assert config.negotiation is None
    assert "negotiation" not in config.document()
    assert "negotiation" not in config.to_toml()
    assert "leaking" not in config.to_toml()


def test_a_negotiation_is_an_operator_with_its_arguments_and_rounds(study):
    plain, config = study(), study(more=NEGOTIATES)
    assert config.negotiation.rounds == 4
    assert config.negotiation.build() == fe.Budget(money=5.0)
    assert config.digest() != plain.digest()
    assert parse(tomllib.loads(config.to_toml())) == config
    assert study(more=NEGOTIATES.replace("= 4", "= 5")).digest() != config.digest()
    assert study(more='[negotiation]\nuse = "fedenergy:TakeIt"\n').negotiation.rounds == 8


def test_set_and_vary_reach_the_negotiation(study):
    config = study(more=NEGOTIATES, sets=["negotiation=fedenergy:NeedAccuracy", "negotiation.need=0.8"])
    assert config.negotiation.build() == fe.NeedAccuracy(need=0.8)
    assert config.negotiation.rounds == 8
    config = study(sets=["negotiation=fedenergy:NeedAccuracy"],
                  vary=["negotiation.need=0.5,0.9", "negotiation.rounds=1,4"])
    found = [variation.config.negotiation for variation in config.variations()]
    assert [(one.build().need, one.rounds) for one in found] == [(0.5, 1), (0.5, 4), (0.9, 1), (0.9, 4)]
    config = study(vary=['negotiation="fedenergy:TakeIt","fedenergy:Budget"'])
    assert [type(v.config.negotiation.build()) for v in config.variations()] == [fe.TakeIt, fe.Budget]


@pytest.mark.parametrize(("table", "said"), [
    ("rounds = 3\n", "[negotiation] has no use"),
    ('use = "fedenergy:TakeIt"\nrounds = 0\n', "rounds = 0 is not a whole number"),
    ('use = "fedenergy:TakeIt"\nrounds = 65\n', "from 1 to 64"),
    ('use = "fedenergy:TakeIt"\nrounds = true\n', "rounds = true"),
    ('use = "fedenergy:TakeThat"\n', 'TakeIt'), ('use = "fedenergy:Budget"\nmonei = 3\n', 'Did you mean "money"?'),
])
def test_a_bad_negotiation_is_refused(study, table, said):
    assert said in refused(study, TEXT, more=f"[negotiation]\n{table}")


def test_leaking_is_part_of_the_digest_only_where_it_is_set(study):
    config = study(sets=["privacy.leaking=true"])
    assert config.privacy.leaking
    assert config.digest() != study().digest()
    assert parse(tomllib.loads(config.to_toml())) == config
