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
from fedenergy.federation.mail import Mail
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
    def deliver(self, mail: Mail, at_once: int) -> Iterator[tuple[int, Message]]:
        """(position, reply) of every message, in any order, once each.

        at_once  while the message at position p has no reply, those from p + at_once on are not sent: nobody has to hold
                 more replies than that to hand them on in order
        """

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
        mail = self._numbered(messages)
        self._waiting.update({answer.metadata.reply_to_message_id: answer
                              for _, answer in self.deliver(mail, max(1, len(mail.messages)))})
        return [message.metadata.message_id for message in mail.messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        return [self._waiting.pop(name) for name in message_ids if name in self._waiting]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Replies in the order of the messages. There is no network here, so timeout is not needed and not used."""
        with collector_paused():
            mail = self._numbered(messages)
            answers: list[Message] = [None] * len(mail.messages)
            for at, answer in self.deliver(mail, max(1, len(answers))):
                answers[at] = answer
            return answers

    def landing(self, messages: Iterable[Message]) -> Iterator[tuple[int, Message]]:
        """The replies of send_and_receive with the positions of their messages, as they come: in any order."""
        with collector_paused():
            mail = self._numbered(messages)
            yield from self.deliver(mail, max(1, len(mail.messages)))

    def stream(self, messages: Iterable[Message], at_once: int) -> Iterator[Message]:
        """The replies of send_and_receive, one after the other; at most `at_once` (at least 1) of them exist at a time."""
        if at_once < 1:
            raise ValueError(f"at_once = {at_once}: at least one reply exists at a time")
        mail = self._numbered(messages)
        held: dict[int, Message] = {}
        place = 0
        for at, answer in self.deliver(mail, at_once):
            held[at] = answer
            del answer
            while place in held:
                yield held.pop(place)
                place += 1

    def _numbered(self, messages: Iterable[Message]) -> Mail:
        mail = Mail.of(messages, self._sent + 1, self.count)
        self._sent += len(mail.messages)
        return mail


class LocalGrid(HomesGrid):
    """Every node in this process, no Ray: starts at once, and a debugger stops in a household's code."""

    def __init__(self, client: Client, count: int) -> None:
        super().__init__(count)
        self._shard = Shard(client, count)

    def deliver(self, mail: Mail, at_once: int) -> Iterator[tuple[int, Message]]:
        for span in mail.spans(at_once):
            answers = self._shard.run(mail.messages[span.start:span.stop])
            answers.reverse()
            for at in span:
                yield at, answers.pop()
