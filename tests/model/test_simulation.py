from __future__ import annotations

from model.simulation import SimulatedBrokers


def test_compaction_leaves_the_latest_of_each_key():
    """It took any record. A client that is conflated had been sent the later one of two, that one
    was taken, and the oracle held the earlier one, which it was spared, to be lost."""
    kafka = SimulatedBrokers(1)
    (p,) = kafka.partitions
    for key in (b"a", b"b", b"a"):
        kafka.append_record(p, 0, key)
    assert [kafka.compact_slot(p, offset) for offset in (2, 1, 0)] == [False, False, True]
    assert [slot.must_deliver for slot in p.slots] == [False, True, True]


def test_what_was_aborted_is_no_later_one():
    kafka = SimulatedBrokers(1)
    (p,) = kafka.partitions
    kafka.append_record(p, 0, b"a")
    kafka.begin_transaction(p, 0, b"a")
    kafka.finish_transaction(p, 0, 0, commit=False)
    assert not kafka.compact_slot(p, 0)
