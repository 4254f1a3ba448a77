"""Grids whose nodes are numbered by household index; LocalGrid runs them in this process."""

from __future__ import annotations

import gc
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from flwr.app import Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.shard import Client, Shard


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection meanwhile: a round makes many objects that live, and walking them again and again is quadratic
    in the number of homes (100,000: twice the time)."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class HomesGrid(Grid):
    """A Flower Grid over `count` nodes with reproducible ids (household index + 2). Subclasses deliver the messages."""

    def __init__(self, count: int) -> None:
        if count < 1:
            raise ValueError(f"a grid of {count} nodes cannot answer: the population needs at least one household")
        flower.assume_identity()
        self.count = count
        self._run = flower.empty_run()
        self._sent = 0
        self._waiting: dict[str, Message] = {}

    @abstractmethod
    def deliver(self, messages: list[Message]) -> Iterator[Message]:
        """Replies to the messages (each has its id), in any order, every message answered once."""

    def close(self) -> None:
        """Let go of what the grid holds."""

    def set_run(self, run: Run) -> None:
        self._run = run

    @property
    def run(self) -> Run:
        return self._run

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
                       ttl: float | None = None) -> Message:
        return Message(content=content, message_type=message_type, dst_node_id=dst_node_id, group_id=group_id, ttl=ttl)

    def get_node_ids(self) -> list[int]:
        return [flower.node_id(index) for index in range(self.count)]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        batch = self._numbered(messages)
        self._waiting.update({answer.metadata.reply_to_message_id: answer for answer in self.deliver(batch)})
        return [message.metadata.message_id for message in batch]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(name) for name in message_ids if name in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Replies in the order of the messages. There is no network here, so timeout is not needed and not used."""
        with collector_paused():
            batch = self._numbered(messages)
            answers = {answer.metadata.reply_to_message_id: answer for answer in self.deliver(batch)}
            return [answers[message.metadata.message_id] for message in batch]

    def _numbered(self, messages: Iterable[Message]) -> list[Message]:
        batch = list(messages)
        for message in batch:
            index = flower.node_index(message.metadata.dst_node_id)
            if not 0 <= index < self.count:
                raise ValueError(f"message to node {message.metadata.dst_node_id}: this grid has nodes "
                                 f"{flower.FIRST_NODE} to {flower.node_id(self.count - 1)}")
            self._sent += 1
            flower.stamp_id(message, f"m{self._sent}")
        return batch


class LocalGrid(HomesGrid):
    """Every node in this process, no Ray: starts at once, and a debugger stops in a household's code."""

    def __init__(self, client: Client, count: int) -> None:
        super().__init__(count)
        self._shard = Shard(client, count)

    def deliver(self, messages: list[Message]) -> Iterator[Message]:
        yield from self._shard.run(messages)
