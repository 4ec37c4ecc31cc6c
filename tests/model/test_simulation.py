from __future__ import annotations

from model.simulation import Kafka


def test_compaction_leaves_the_latest_of_each_key():
    """It took any record. A client that is conflated had been sent the later one of two, that one
    was taken, and the oracle held the earlier one, which it was spared, to be lost."""
    kafka = Kafka(1)
    (p,) = kafka.partitions
    for key in (b"a", b"b", b"a"):
        kafka.append(p, 0, key)
    assert [kafka.compact(p, offset) for offset in (2, 1, 0)] == [False, False, True]
    assert [slot.delivers for slot in p.slots] == [False, True, True]


def test_what_was_aborted_is_no_later_one():
    kafka = Kafka(1)
    (p,) = kafka.partitions
    kafka.append(p, 0, b"a")
    kafka.begin(p, 0, b"a")
    kafka.finish(p, 0, 0, commit=False)
    assert not kafka.compact(p, 0)
