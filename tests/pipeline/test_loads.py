"""What is advised of a job's input, and what is left alone."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.config.sections.pipelines import Join, Pipelines
from gateway.pipeline.skew import KeyLoad, PartitionLoad, build_advice


def job(**more: Any) -> Join:
    of_left = {"order": "string", "merchant": "string", "at": "timestamp"}
    sides = {
        "left": {"topic": "orders", "time": "at", "value": {"fields": of_left}},
        "right": {"topic": "terms", "time": "at", "value": {"fields": of_left}},
    }
    rest = {"name": "paid", "type": "join", "on": {"merchant": "merchant"}, "to": {"topic": "paid"}}
    return Join.model_validate({**rest, **sides, **more})


def partitions(*rates: float) -> list[PartitionLoad]:
    return [PartitionLoad(number, 100, 100, rate) for number, rate in enumerate(rates)]


def keys(*shares: float) -> list[KeyLoad]:
    return [KeyLoad(f"k{number}", 100, share) for number, share in enumerate(shares)]


def test_an_even_load_needs_nothing() -> None:
    assert list(build_advice(job(), "left", partitions(10, 12, 8), keys(9.9, 1))) == []


def test_a_hot_partition_is_read_by_several_tasks() -> None:
    (found,) = build_advice(job(), "left", partitions(10, 300, 10, 10), keys(1))
    assert found.startswith("partition 1 has 91% of the records, others 3.0% each")
    assert "left.maxRecordsPerPartition" in found


def test_what_is_set_already_is_not_advised() -> None:
    split = job(left={"topic": "orders", "maxRecordsPerPartition": 1000}, salt={})
    assert list(build_advice(split, "left", partitions(10, 300), keys(50))) == []


def test_records_of_the_log_count_where_there_is_no_rate() -> None:
    loads = [PartitionLoad(0, 1000, 1, None), PartitionLoad(1, 10, 1, None)]
    assert [text[:11] for text in build_advice(job(), "right", loads, [])] == ["partition 0"]


def test_one_partition_is_not_hotter_than_others() -> None:
    assert list(build_advice(job(), "left", partitions(500), [])) == []


def test_a_hot_key_of_a_join_is_made_finer_or_spread() -> None:
    finer, salt = build_advice(job(), "left", partitions(1, 1), keys(50, 12, 3))
    assert finer.startswith("k0 (50%), k1 (12%): add one of order to `on`")
    assert "set salt: {}" in salt


def test_a_key_is_as_hot_as_the_job_says() -> None:
    assert list(build_advice(job(salt={"share": 60}), "left", partitions(1, 1), keys(50))) == []


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"type": "sessions", "by": ["k"]}, ["one task handles all sessions of a key"]),
        (
            {
                "type": "aggregate",
                "by": ["k"],
                "window": {"size": "1m"},
                "measures": {"n": "count(*)"},
            },
            [],
        ),
    ],
)
def test_other_kinds_have_advice_of_their_own(more: dict[str, Any], words: list[str]) -> None:
    made = {"name": "x", "from": {"topic": "t"}, "to": {"topic": "u"}, **more}
    (other,) = Pipelines.model_validate({"jobs": [made]}).jobs
    found = list(build_advice(other, "from", partitions(1), keys(50)))
    assert len(found) == len(words)
    assert all(word in text for word, text in zip(words, found, strict=True))
