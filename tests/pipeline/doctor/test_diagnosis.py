"""Causes by batches that are made up: each alone, its neighbours, their order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.query_progress import (
    build_kafka_source,
    build_operator,
    build_progress,
    build_stage,
    build_tasks,
)

from gateway.pipeline.doctor.diagnosis import Diagnosis, diagnose
from gateway.pipeline.doctor.query_run import Thresholds, build_run

Made = Callable[[int], dict[str, Any]]

EVEN = build_tasks(build_stage(1.6, 1.7))


def found(made: Made, batches: int = 8, cores: int | None = 2) -> Diagnosis:
    return diagnose(build_run([made(each) for each in range(batches)], cores))


def names(made: Made, **how: Any) -> list[str]:
    return [cause.name for cause in found(made, **how).causes]


def healthy(batch: int) -> dict[str, Any]:
    return build_progress(
        batch, operators=[build_operator()], tasks=EVEN, newest=batch, watermark=batch - 5
    )


SICK: dict[str, Made] = {
    "state-lookups": lambda n: build_progress(
        n, operators=[build_operator(rocksdbGetLatency=2000, rocksdbGetCount=90_000)], tasks=EVEN
    ),
    "compaction": lambda n: build_progress(
        n,
        operators=[
            build_operator(rocksdbWriterStallLatencyMs=1800, rocksdbTotalCompactionLatencyMs=900)
        ],
        tasks=EVEN,
    ),
    "commit": lambda n: build_progress(n, operators=[build_operator(commit_s=2.4)], tasks=EVEN),
    "skew": lambda n: build_progress(n, tasks=build_tasks(build_stage(1.7, 0.2))),
    "partitions-too-many": lambda n: build_progress(
        n,
        operators=[build_operator(partitions=200, commit_s=3.0)],
        tasks=build_tasks(build_stage(*[0.015] * 200)),
    ),
    "partitions-too-few": lambda n: build_progress(
        n, operators=[build_operator(partitions=1)], tasks=build_tasks(build_stage(1.7), cores=8)
    ),
    "sink-slow": lambda n: build_progress(
        n, tasks=build_tasks(build_stage(0.2, 0.2)), notes={"sink": 1.1}
    ),
    "python": lambda n: build_progress(n, tasks=EVEN | {"python": 2.2}),
    "gc": lambda n: build_progress(n, tasks=build_tasks(build_stage(1.7, 1.7, gc=1.6))),
    "source-behind": lambda n: build_progress(
        n,
        interval_s=6,
        tasks=EVEN,
        sources=[build_kafka_source("orders", n * 10_000, 200_000 + n * 20_000)],
    ),
    "watermark-stuck": lambda n: build_progress(
        n,
        operators=[build_operator(row_count=1000 * n)],
        tasks=EVEN,
        newest=2.0 * n + 60,
        watermark=10,
    ),
    "late-drops": lambda n: build_progress(
        n, operators=[build_operator(dropped_count=3000)], tasks=EVEN, newest=n, watermark=n - 5
    ),
}


@pytest.mark.parametrize("name", SICK)
def test_each_cause_is_named_alone(name: str):
    assert names(SICK[name]) == [name]


def test_a_healthy_job_has_none():
    assert names(healthy) == []


def test_what_costs_most_comes_first():
    def both(n: int) -> dict[str, Any]:
        slow = build_operator(commit_s=3.0, rocksdbGetLatency=4400, rocksdbGetCount=90_000)
        return build_progress(
            n, seconds=5.0, operators=[slow], tasks=build_tasks(build_stage(4.4, 4.4))
        )

    causes = found(both).causes
    assert [cause.name for cause in causes] == ["state-lookups", "commit"]
    assert causes[0].seconds == pytest.approx(2.2)
    assert causes[0].share == pytest.approx(0.44)


def test_a_short_batch_is_healthy_though_commits_are_half_of_it():
    """What every batch costs: 120 ms of 237 where nothing is wrong."""
    logs = {"walCommit": 0.06, "commitOffsets": 0.06}
    assert names(lambda n: build_progress(n, seconds=0.24, phases=logs)) == []
    slower = {"walCommit": 0.6, "commitOffsets": 0.6}
    assert names(lambda n: build_progress(n, seconds=2.4, phases=slower)) == ["commit"]


def test_who_asks_for_less_gets_to_know_less():
    logs = {"walCommit": 0.06, "commitOffsets": 0.06}
    records = [build_progress(n, seconds=0.24, phases=logs) for n in range(8)]
    (cause,) = diagnose(build_run(records, 2), Thresholds(min_seconds=0.1)).causes
    assert cause.name == "commit"


def test_two_batches_say_nothing():
    told = found(SICK["skew"], batches=2)
    assert not told.causes and "skew" in told.unseen


def test_the_first_batches_of_a_process_are_left_out():
    """They take 6 to 15 s where later ones take less than one."""

    def cold(n: int) -> dict[str, Any]:
        return build_progress(
            n, seconds=12.0 if n < 2 else 0.3, operators=[build_operator(commit_s=0.1)]
        )

    assert found(cold).seconds == pytest.approx(0.3)
    assert found(cold).batches == 6


def test_only_the_latest_run_of_a_query_counts():
    old = [SICK["skew"](n) | {"runId": "old"} for n in range(8)]
    assert not diagnose(build_run(old + [healthy(n) for n in range(8, 16)])).causes


class TestSkew:
    def test_of_a_topic_and_of_keys_have_other_settings(self):
        keys = found(SICK["skew"]).causes[0]
        topic = found(
            lambda n: build_progress(n, tasks=build_tasks(build_stage(1.7, 0.2, shuffles=False)))
        ).causes[0]
        assert "salt" in keys.settings
        assert "from.max_records_per_partition" in topic.settings

    def test_is_no_cause_while_the_other_cores_have_work(self):
        many = build_stage(0.9, *[0.3] * 6)  # the other core needs 1.8 s for six
        assert names(lambda n: build_progress(n, tasks=build_tasks(many))) == []


class TestSource:
    def test_a_job_that_is_slow_is_not_told_that_its_input_is_fast(self):
        def behind(n: int) -> dict[str, Any]:
            source = build_kafka_source("orders", n * 10_000, 200_000 + n * 20_000)
            return SICK["skew"](n) | {"sources": [source]}

        assert names(behind) == ["skew"]

    def test_a_job_that_catches_up_is_healthy(self):
        def catching(n: int) -> dict[str, Any]:
            source = build_kafka_source("orders", n * 30_000, 300_000)
            return build_progress(n, interval_s=6, tasks=EVEN, sources=[source])

        assert names(catching) == []

    def test_offsets_may_be_text(self):
        source = build_kafka_source("orders", 5, 9)
        text = source | {"endOffset": '{"orders":{"0":5}}', "latestOffset": '{"orders":{"0":9}}'}
        (batch,) = build_run([build_progress(0, sources=[text])]).batches
        assert batch.sources[0].offsets_behind == 4
        assert batch.sources[0].name == "orders"


class TestWatermark:
    def test_an_input_without_records_is_named(self):
        def idle(n: int) -> dict[str, Any]:
            sources = [
                build_kafka_source("orders", 9, 9),
                build_kafka_source("payments", 0, 0, rows=0),
            ]
            return SICK["watermark-stuck"](n) | {"sources": sources}

        (cause,) = found(idle).causes
        assert "payments" in cause.title and "orders" not in cause.title

    def test_that_stands_where_events_stand_is_none(self):
        assert (
            names(
                lambda n: build_progress(n, operators=[build_operator()], newest=60, watermark=10)
            )
            == []
        )

    def test_ahead_of_all_events_is_a_clock_that_is_wrong(self):
        def ahead(n: int) -> dict[str, Any]:
            late = build_operator(dropped_count=9_000)
            return build_progress(n, operators=[late], tasks=EVEN, newest=n, watermark=9_000)

        (cause,) = found(ahead).causes
        assert cause.name == "late-drops" and "clock" in cause.advice


class TestLate:
    def test_the_share_that_matters_is_the_jobs(self):
        records = [SICK["late-drops"](n) for n in range(8)]
        assert not diagnose(build_run(records), Thresholds(max_late_share=0.4)).causes

    def test_events_before_1970_are_late_whatever_the_watermark(self):
        def historic(n: int) -> dict[str, Any]:
            late = build_operator(dropped_count=9_000)
            return build_progress(n, operators=[late], tasks=EVEN, newest=n - 3e9)

        (cause,) = found(historic).causes
        assert cause.name == "late-drops" and "of before 1970" in cause.advice


class TestSink:
    def test_tasks_that_wait_are_not_judged_on_a_busy_machine(self):
        waiting = build_stage(1.7, 1.7, cpu=0.2)
        assert names(lambda n: build_progress(n, tasks=build_tasks(waiting))) == ["sink-slow"]
        told = found(lambda n: build_progress(n, tasks=build_tasks(waiting, busy=True)))
        assert not told.causes and "busy" not in told.unseen and "sink-slow" in told.unseen

    def test_the_time_of_writers_is_not_pythons(self):
        """Writers of exactly-once are Python, and wait there."""
        waits = build_tasks(build_stage(0.9, 0.9)) | {"python": 1.8}
        assert names(lambda n: build_progress(n, tasks=waits, notes={"sink": 0.9})) == ["sink-slow"]

    def test_nor_is_it_when_writers_are_more_than_cores(self):
        writes = build_tasks(build_stage(*[0.5] * 8)) | {"python": 4.0}
        (cause,) = found(lambda n: build_progress(n, tasks=writes, notes={"sink": 0.4})).causes
        assert cause.name == "sink-slow" and cause.seconds == pytest.approx(1.6)


class TestLooks:
    """A job that runs has the times of tasks of a batch in ten seconds."""

    def test_a_few_are_enough(self):
        def seldom(n: int) -> dict[str, Any]:
            return SICK["skew"](n) if n % 4 == 2 else build_progress(n)

        (cause,) = found(seldom, batches=16).causes
        assert cause.name == "skew" and cause.seconds == pytest.approx(1.5)

    def test_one_is_not_and_says_so(self):
        told = found(lambda n: SICK["skew"](n) if n == 5 else build_progress(n))
        assert not told.causes and "ten seconds" in told.unseen["skew"]


class TestPartitions:
    def test_many_that_have_much_to_do_are_right(self):
        def large(n: int) -> dict[str, Any]:
            many = build_operator(partitions=200, commit_s=3.0)
            return build_progress(n, rows=10_000_000, seconds=60.0, operators=[many])

        assert "partitions-too-many" not in names(large)

    def test_without_times_of_tasks_cores_must_be_known(self):
        def bare(n: int) -> dict[str, Any]:
            return build_progress(n, operators=[build_operator(partitions=2, update_s=3.0)])

        assert names(bare, cores=16) == ["partitions-too-few"]
        assert "partitions-too-few" not in names(bare, cores=None)


class TestPython:
    def test_is_seen_by_the_operators_name_without_times_of_tasks(self):
        slow = build_operator("transformWithStateInPySparkExec", update_s=2.6)
        (cause,) = found(lambda n: build_progress(n, operators=[slow])).causes
        assert cause.name == "python" and "emit: closed" in cause.settings


def test_an_invalid_record_of_the_only_batch_is_a_cause():
    """The doctor called a job healthy that had left out a record: it judged no single batch."""
    observed = {"observedMetrics": {"from": {"rows": 5, "invalid": 1}}}
    (cause,) = diagnose(build_run([build_progress(0, rows=5) | observed])).causes
    assert cause.name == "invalid-records" and cause.share == 0.2


def test_an_invalid_record_of_the_warm_up_is_a_cause():
    observed = {
        "observedMetrics": {"left": {"rows": 5, "invalid": 0}, "right": {"rows": 2, "invalid": 2}}
    }
    records = [build_progress(batch, rows=5) for batch in range(8)]
    records[0] |= observed
    causes = diagnose(build_run(records)).causes
    assert [cause.name for cause in causes] == ["invalid-records"]
    assert any("input right: 2" in each for each in causes[0].evidence)
