"""Mail: every message is in one batch, and a ledger file's homes of one form are never in two."""

from __future__ import annotations

import numpy as np
import pytest
from flwr.app import ConfigRecord, RecordDict

from fedenergy.federation import flower_adapter as flower
from fedenergy.federation.mail import LAST, Mail, cut

flower.assume_identity()
HOMES = 200


def mail(forms: int = 2) -> Mail:
    contents = [RecordDict({"config": ConfigRecord({"n": n})}) for n in range(forms)]
    return Mail.of((flower.instruction(contents[home % forms], flower.node_id(home), "query.ping", "1")
                    for home in range(HOMES)), 5, HOMES)


@pytest.mark.parametrize("size", [1, 16, 10_000])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_batches_are_whole_buckets_of_one_form_and_worker(size, workers):
    one, buckets = mail(), np.random.default_rng(0).integers(0, 64, HOMES).tolist()
    batches = list(cut(one, range(HOMES), buckets, workers, size))
    assert sorted(at for batch in batches for at in batch.positions) == list(range(HOMES))
    seen = set()
    for batch in batches:
        assert {one.forms[at] for at in batch.positions} == {batch.form}
        mine = {buckets[one.homes[at]] for at in batch.positions}
        assert {bucket % workers for bucket in mine} == {batch.worker}
        assert not seen & {(batch.form, bucket) for bucket in mine}
        seen |= {(batch.form, bucket) for bucket in mine}
    for key in {(batch.worker, batch.form) for batch in batches} if size > HOMES else ():
        sizes = [len(batch.positions) for batch in batches if (batch.worker, batch.form) == key]
        assert all(one >= sum(sizes[at:]) // 2 for at, one in enumerate(sizes))    # half of what is left,
        assert all(one >= LAST for one in sizes[:-1])                              # but never crumbs


def test_messages_are_numbered_in_order_and_contents_kept_once():
    one = mail(forms=3)
    assert [message.metadata.message_id for message in one.messages] == [f"m{5 + at}" for at in range(HOMES)]
    assert len(one.kinds) == 3
    assert [list(span) for span in one.spans(150)] == [list(range(150)), list(range(150, HOMES))]


def test_halves_share_the_messages():
    batch = next(cut(mail(1), range(HOMES), [0] * HOMES, 1, 1))
    first, second = batch.halves()
    assert first.positions + second.positions == list(range(HOMES))
