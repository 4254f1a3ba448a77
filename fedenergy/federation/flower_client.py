"""The ClientApp of `flwr run`: each process builds the study's worlds from the run config, once, as the server does.

Flower pickles a ClientApp with every message, so this one holds no homes: its handlers find them by the run config.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from fedenergy.box.query import QUERY_CLASSES
from fedenergy.box.world import World
from fedenergy.config import Config, load
from fedenergy.errors import ConfigError
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import records
from fedenergy.federation.client_app import ACCEPT, HELLO, IMPUTER, Homes, make_client
from fedenergy.federation.masked_rounds import ROUNDS
from fedenergy.federation.plan import plan_from_config
from fedenergy.federation.shard import Client
from fedenergy.federation.shard_nodes import SHARD_KINDS
from fedenergy.federation.study import place

Scalar = bool | int | float | str


def study_of(run_config: Mapping[str, Scalar]) -> Config:
    """The study that a run config names. The process moves to `root`: relative paths and modules are found there.

    config  a TOML file; root: absolute folder of the study
    seeds, data, out, quick, fresh   as on the command line; empty text leaves the config's own
    ConfigError for a missing root and for every mistake in the config. Nothing runs.
    """
    root = Path(str(run_config["root"]))
    if not root.is_absolute() or not root.is_dir():
        raise ConfigError(f'root = "{root}" is not the absolute path of a folder: the app runs from a copy elsewhere, '
                          "so name the study's folder, as in flwr run . --run-config 'root=\"/home/me/study\"'")
    os.chdir(root)
    texts = {name: str(run_config[name]) or None for name in ("seeds", "data", "out")}
    config = load(str(run_config["config"]), quick=bool(run_config["quick"]), fresh=bool(run_config["fresh"]), **texts)
    if config.data:
        os.environ["FEDENERGY_DATA"] = str(Path(config.data).resolve())
    return config


def answer(message: Message, context: Context) -> Message:
    """Any message to a home. What a home raises stays inside: Flower would send its text to the server."""
    client = None
    try:
        client = _client(tuple(sorted(context.run_config.items())), _fresh(message))
        return client.app(message, context)
    except (Exception, SystemExit) as error:
        if client is not None:
            client.failed(context, error, message.metadata.message_type)
        elif os.environ.get("FEDENERGY_DEBUG") == "1":
            traceback.print_exception(error)
        return flower.reply(message, flower.CLIENT_RAISED)


def _fresh(message: Message) -> int:
    """The number of the --fresh, as the server counted it: it names the run folder."""
    if records.QUERY not in message.content:
        return 0
    return int(records.read_query(message.content)[0].body["fresh"])


@cache
def _study(run_config: tuple[tuple[str, Scalar], ...]) -> tuple[Config, tuple[World, ...]]:
    config = study_of(dict(run_config))
    folder, ledger, _ = place(config, 0)
    return config, plan_from_config(config, folder.resolve(), ledger.resolve()).worlds


@cache
def _client(run_config: tuple[tuple[str, Scalar], ...], fresh: int) -> Client:
    config, worlds = _study(run_config)
    folder, _, _ = place(config, fresh if config.fresh else 0)
    return make_client(Homes(worlds, folder.resolve() / "inside"))


app = ClientApp()

app.train()(answer)
app.train(IMPUTER)(answer)
app.evaluate()(answer)
for _kind in (HELLO, ACCEPT, *(kind for kind in QUERY_CLASSES if "." not in kind), *ROUNDS, *SHARD_KINDS):
    app.query(_kind)(answer)
