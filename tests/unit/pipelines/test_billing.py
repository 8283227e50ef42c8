"""The backlog of usage records."""

import pytest

from turnwire.pipelines.billing import BATCH, Backlog
from turnwire.pipelines.messages import Counts, UsageRecord
from turnwire.pipelines.protocol.errors import Overloaded


def record(id: str) -> UsageRecord:
    return UsageRecord(id, "t", "k", "m", "completed", 1, Counts(1, 0, 1))


def filled(count: int, limit: int = 1000) -> Backlog:
    backlog = Backlog(limit)
    for number in range(count):
        backlog.put(record(f"resp_{number}"))
    return backlog


def test_a_batch_is_sent_again_until_it_is_settled() -> None:
    backlog = filled(2)
    first = backlog.batch()
    assert backlog.batch() == first
    backlog.settled()
    assert repr(backlog) == "<Backlog 0/1000 | 0 in flight>"


def test_a_record_put_while_a_batch_is_away_stays_when_that_batch_is_settled() -> None:
    backlog = filled(1)
    backlog.batch()
    backlog.put(record("late"))
    backlog.settled()
    assert [r.response_id for r in backlog.batch().records] == ["late"]


def test_a_batch_is_bounded_and_takes_the_oldest() -> None:
    backlog = filled(BATCH + 10)
    records = backlog.batch().records
    assert (len(records), records[0].response_id) == (BATCH, "resp_0")
    backlog.settled()
    assert len(backlog) == 10


def test_a_full_backlog_refuses_and_keeps_what_it_has() -> None:
    backlog = filled(20, limit=20)
    with pytest.raises(Overloaded, match="20 usage records"):
        backlog.put(record("too much"))
    assert len(backlog) == 20


def test_new_turns_are_to_be_refused_before_running_ones_find_no_room() -> None:
    assert not filled(17, limit=20).nearly_full
    assert filled(18, limit=20).nearly_full
    assert not filled(0, limit=1).nearly_full
