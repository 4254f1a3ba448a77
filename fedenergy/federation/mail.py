"""The messages of one exchange as a grid carries them: numbered, and cut into batches that share a content."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from flwr.app import Message, RecordDict

from fedenergy.federation import flower_adapter as flower

LAST = 32       # messages of the last batches of a worker


@dataclass
class Mail:
    """The messages of one exchange, by position.

    first     number of the first one: the message at position p has the id m<first + p>
    homes     household index of each; forms: which of `kinds` each is
    kinds     (content, message type, group) that messages share
    """

    first: int
    messages: list[Message] = field(default_factory=list)
    homes: list[int] = field(default_factory=list)
    forms: list[int] = field(default_factory=list)
    kinds: list[tuple[RecordDict, str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, messages: Iterable[Message], first: int, count: int) -> Mail:
        """Number messages to `count` nodes; they may be made as they are read. ValueError for a node that there is not."""
        mail, seen = cls(first), {}
        for at, message in enumerate(messages, start=first):
            node, kind, group = flower.stamp(message, f"m{at}")
            home = flower.node_index(node)
            if not 0 <= home < count:
                raise ValueError(f"message to node {node}: this grid has nodes {flower.FIRST_NODE} to "
                                 f"{flower.node_id(count - 1)}")
            content = message.content
            key = (id(content), kind, group)
            form = seen.get(key)
            if form is None:
                form = seen[key] = len(mail.kinds)
                mail.kinds.append((content, kind, group))
            mail.messages.append(message)
            mail.homes.append(home)
            mail.forms.append(form)
        return mail

    def spans(self, size: int) -> list[range]:
        """Positions in order, `size` at a time."""
        return [range(start, min(start + size, len(self.messages))) for start in range(0, len(self.messages), size)]


@dataclass
class Batch:
    """Messages of one worker that share a form; kills counts the workers that died while it was in flight."""

    worker: int
    form: int
    positions: list[int]
    kills: int = 0

    def halves(self) -> list[Batch]:
        middle = len(self.positions) // 2
        return [Batch(self.worker, self.form, part, self.kills)
                for part in (self.positions[:middle], self.positions[middle:])]


def cut(mail: Mail, span: Iterable[int], buckets: Sequence[int], workers: int, size: int) -> Iterator[Batch]:
    """Batches of about `size` messages, rounded up to whole buckets; towards the end of a worker's messages each takes half
    of what is left (down to LAST), so that little is left to do when all workers but one are done.

    buckets  of each household index: a ledger file; it is never split, so its homes are charged in one transaction
    """
    groups: dict[tuple[int, int], list[int]] = {}
    homes, forms = mail.homes, mail.forms
    for at in span:
        key = forms[at], buckets[homes[at]]
        group = groups.get(key)
        if group is None:
            group = groups[key] = []
        group.append(at)
    filling: dict[tuple[int, int], Batch] = {}
    left: dict[tuple[int, int], int] = {}
    for (form, bucket), group in groups.items():
        left[form, bucket % workers] = left.get((form, bucket % workers), 0) + len(group)
    for form, bucket in sorted(groups):
        key = form, bucket % workers
        batch = filling.setdefault(key, Batch(key[1], form, []))
        batch.positions += groups[form, bucket]
        if len(batch.positions) >= min(size, max(LAST, left[key] // 2)):
            left[key] -= len(batch.positions)
            yield filling.pop(key)
    yield from filling.values()
