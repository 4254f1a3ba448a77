"""A client, and the shard of nodes that one process runs for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp

from fedenergy.federation import flower_adapter as flower

BatchHandler = Callable[[Sequence[Message], Sequence[Context]], Sequence[Message]]


@dataclass(frozen=True)
class Client:
    """A Flower ClientApp and, where it has one, the batch form of its handlers.

    app     Flower's own, unchanged: one message at a time
    batch   handler of many messages at once, by message type; must answer in order, exactly as app would one by one.
            It bypasses the app's mods.
    failed  told the node, the exception that a handler raised and the message's type: what the node may log inside;
            nothing of it leaves
    """

    app: ClientApp
    batch: Mapping[str, BatchHandler] = field(default_factory=dict)
    failed: Callable[[Context, BaseException, str], None] = lambda context, error, phase: None


class Shard:
    """The nodes of one process: their contexts stay here (sticky), messages come and go."""

    def __init__(self, client: Client, count: int) -> None:
        flower.assume_identity()
        self._client, self._count = client, count
        self._contexts: dict[int, Context] = {}

    def run(self, messages: Sequence[Message]) -> list[Message]:
        """Answer every message, in order. An exception becomes an error code of that node alone."""
        contexts = [self._context(message.metadata.dst_node_id) for message in messages]
        handler = self._client.batch.get(messages[0].metadata.message_type) if messages else None
        if handler is not None and len({message.metadata.message_type for message in messages}) == 1:
            try:
                answers = list(handler(messages, contexts))
                if len(answers) == len(messages):
                    return answers
            except KeyboardInterrupt:
                raise
            except BaseException:
                if len(messages) > 1:  # find the node at fault: everyone else's answer must not depend on it
                    return [self.run([message])[0] for message in messages]
        return [self._one(message, context) for message, context in zip(messages, contexts, strict=True)]

    def _one(self, message: Message, context: Context) -> Message:
        content = RecordDict({name: record.copy() for name, record in message.content.items()})
        own = flower.received(content, message.metadata.message_id, message.metadata.dst_node_id,
                              message.metadata.message_type, message.metadata.group_id)
        try:
            return self._client.app(own, context)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a home that calls sys.exit is one failure, whatever plays it
            self._client.failed(context, error, message.metadata.message_type)
            return flower.reply(message, flower.CLIENT_RAISED)

    def _context(self, node: int) -> Context:
        if node not in self._contexts:
            self._contexts[node] = flower.new_context(node, self._count)
        return self._contexts[node]
