"""FlowerGrid: Flower's own Grid, with household-index node ids, so that everything above it runs unchanged.

Flower draws node ids at random and answers in any order; which household a node plays only the node knows (its
partition id). One hello to each node settles that.
"""

from __future__ import annotations

import time
from collections.abc import Iterable

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.run import Run

from fedenergy.errors import ConfigError
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.client_app import HELLO

PAUSE_SECONDS = 0.1


class FlowerGrid(Grid):
    """The nodes of another Grid, numbered by household index like those of LocalGrid.

    inner     Flower's Grid; nodes may join late, those beyond the population are left alone
    count     households of the largest population
    patience  seconds without a new node after which too few nodes are an error
    hello     seconds in which every node must say which household it plays; Flower starts its workers meanwhile
    Guarantee: no text of a node's exception passes, only its code. Errors: ConfigError before anything is asked.
    """

    def __init__(self, inner: Grid, count: int, *, patience: float = 10.0, hello: float = 600.0) -> None:
        self._inner, self.count = inner, count
        self._nodes = self._meet(patience, hello)
        self._homes = {node: flower.node_id(index) for index, node in self._nodes.items()}

    def get_node_ids(self) -> list[int]:
        return [flower.node_id(index) for index in range(self.count)]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Replies in the order of the messages, one message per node; a node that stays silent has none."""
        batch = {message.metadata.dst_node_id: message for message in messages}
        outgoing = [self._addressed(message) for message in batch.values()]
        answers = {self._homes.get(reply.metadata.src_node_id): reply
                   for reply in self._inner.send_and_receive(outgoing, timeout=timeout)}
        return [flower.reply(message, _told(answers[home])) for home, message in batch.items() if home in answers]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError("FlowerGrid exchanges whole rounds: use send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError("FlowerGrid exchanges whole rounds: use send_and_receive")

    def create_message(self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str,
                       ttl: float | None = None) -> Message:
        return Message(content=content, message_type=message_type, dst_node_id=dst_node_id, group_id=group_id, ttl=ttl)

    def set_run(self, run: Run) -> None:
        self._inner.set_run(run)

    @property
    def run(self) -> Run:
        return self._inner.run

    def _addressed(self, message: Message) -> Message:
        meta = message.metadata
        index = flower.node_index(meta.dst_node_id)
        if index not in self._nodes:
            raise ValueError(f"message to node {meta.dst_node_id}: this grid has nodes {flower.FIRST_NODE} to "
                             f"{flower.node_id(self.count - 1)}")
        return Message(content=message.content, dst_node_id=self._nodes[index], message_type=meta.message_type,
                       group_id=meta.group_id, ttl=meta.ttl)

    def _meet(self, patience: float, hello: float) -> dict[int, int]:
        """Flower's node ids by household index, asking nodes as they join until the population is complete."""
        nodes: dict[int, int] = {}
        asked: set[int] = set()
        news = time.monotonic()
        while len(nodes) < self.count:
            new = sorted(set(self._inner.get_node_ids()) - asked)
            if new:
                for reply in self._ask(new, hello):
                    index = int(reply.content[HELLO]["index"])
                    if index in nodes:
                        raise ConfigError(f"two of Flower's nodes have partition-id = {index}: a home has one node")
                    if index < self.count:
                        nodes[index] = reply.metadata.src_node_id
                asked.update(new)
                news = time.monotonic()
            elif time.monotonic() - news > patience:
                raise ConfigError(_too_few(self.count, len(asked), self.count - len(nodes)))
            else:
                time.sleep(PAUSE_SECONDS)
        return nodes

    def _ask(self, nodes: list[int], seconds: float) -> list[Message]:
        content = RecordDict({HELLO: ConfigRecord()})
        messages = [flower.instruction(content, node, f"query.{HELLO}", "hello") for node in nodes]
        return [reply for reply in self._inner.send_and_receive(messages, timeout=seconds) if reply.has_content()]


def _told(reply: Message) -> RecordDict | int:
    return reply.content if reply.has_content() else reply.error.code


def _too_few(homes: int, nodes: int, missing: int) -> str:
    if nodes < homes:
        return (f"the study has {homes} homes and Flower runs {nodes} SuperNodes: set the number, as in flwr run . "
                f"--federation-config 'num-supernodes={homes} client-resources-num-cpus=1'")
    return (f"{missing} of {homes} homes have no node: of Flower's {nodes} nodes some did not answer the hello; see "
            "the log of the SuperLink, and set FEDENERGY_DEBUG=1 where it starts")
