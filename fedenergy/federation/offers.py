"""The offers that bind in one round: which homes are asked a query at all, and for what epsilon each.

What a negotiation ended in is stored before anybody is charged, so that a killed run asks on the same offers again: bids
made later would follow other budgets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from flwr.app import Message

from fedenergy.box.query import SealedQuery, homes_digest
from fedenergy.federation import flower_adapter as flower
from fedenergy.federation import negotiation_rounds as rounds
from fedenergy.federation.failures import too_many
from fedenergy.privacy.trust import OPEN, SUM

if TYPE_CHECKING:
    from fedenergy.federation.trust_grid import Exchange

KEPT_AS = "offers-"
REFUSED, FAILED = "refused", "failed"


@dataclass(frozen=True)
class Willing:
    """Messages to the homes whose offers bind, with those inside; how many others refused or failed."""

    messages: list[Message]
    refused: int = 0
    failed: int = 0


class Offers:
    """One exchange's negotiations: of a query at most one with each home, whichever strategy asks first."""

    def __init__(self, exchange: Exchange, negotiation: rounds.Negotiation | None) -> None:
        self._exchange, self._negotiation = exchange, negotiation
        self._known: dict[str, dict[str, rounds.Bound | str]] = {}

    @property
    def negotiating(self) -> bool:
        return self._negotiation is not None

    def willing(self, query: SealedQuery, messages: Sequence[Message]) -> Willing:
        """Who is to be asked, after the negotiation; without one (and by an oracle) everybody."""
        if self._negotiation is None or query.trust == OPEN:
            return Willing(list(messages))
        named = dict(zip(self._exchange.names(messages), messages, strict=True))
        known = self._known.setdefault(query.id, {})
        if new := {name: named[name] for name in sorted(named) if name not in known}:
            known |= self._negotiated(query, new)
        words = [known[name] for name in named]
        bound = {name: known[name] for name in named if not isinstance(known[name], str)}
        return Willing(rounds.with_bindings(bound, named), words.count(REFUSED), words.count(FAILED))

    def _negotiated(self, query: SealedQuery, named: dict[str, Message]) -> dict[str, rounds.Bound | str]:
        """home -> its offer, or a word; from the store where this was negotiated before."""
        zones, key = self._exchange.zones, f"{KEPT_AS}{query.id}-{homes_digest(list(named))}"
        row = zones.get(key)
        if row is None:
            found = self._talk(query, named)
            failed = list(found.values()).count(FAILED)
            if failed and (query.trust != SUM or too_many(failed, len(named), self._exchange.max_failures)):
                return found  # a run that goes on after failures, or is resumed, asks those homes again
            # in a sum those who take part are fixed for good, failures included
            row = zones.put_once(key, list(named), lambda: _dump(found), query.trust)
            return found
        stored = json.loads(row.payload)
        return {name: stored.get(name, REFUSED) if stored.get(name) in (None, FAILED)
                else (*stored[name][:2], bytes.fromhex(stored[name][2])) for name in named}

    def _talk(self, query: SealedQuery, named: dict[str, Message]) -> dict[str, rounds.Bound | str]:
        exchange, talk = self._exchange, self._negotiation

        def send(batch):
            outgoing = []
            for name, content in batch:
                meta = named[name].metadata
                outgoing.append(flower.instruction(content, meta.dst_node_id, meta.message_type, meta.group_id))
            replies = exchange.send(query, outgoing, 0, kind=f"query.{rounds.NEGOTIATE}")
            exchange.crossings.offers[query.trust] += sum(reply.has_content() for reply in replies)
            return [reply.content if reply.has_content() else None for reply in replies]

        size = len(exchange.world.spec(query.kind).coordinates)
        outcome = rounds.negotiate_over(send, list(named), query, size, talk.operator, talk.rounds,
                                        talk.releases.get(query.cell, ()))
        found = dict.fromkeys(named, REFUSED) | outcome.binding(query.kind) | dict.fromkeys(outcome.failed, FAILED)
        words = list(found.values())
        exchange.crossings.refused[query.trust] += words.count(REFUSED)
        exchange.crossings.errors[query.trust] += words.count(FAILED)
        return found


def _dump(found: dict[str, rounds.Bound | str]) -> bytes:
    return json.dumps({name: one if one == FAILED else [one[0], one[1], one[2].hex()] for name, one in found.items()
                       if one != REFUSED}, sort_keys=True).encode()
