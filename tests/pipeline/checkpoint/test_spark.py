"""The state of a running query: read, copied, rescaled, damaged and mended; values compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.counting_query import (
    CountingQuery,
    count_expected,
    delete_checksums,
    flip_byte,
    run_with_snapshots,
)
from support.fake_checkpoint import truncate_file
from support.waiting import wait_until

from gateway.cli.pipeline.checkpoints import format_state
from gateway.errors import PipelineError
from gateway.pipeline.checkpoint import damage, maintenance, repair, report
from gateway.pipeline.checkpoint.files import HadoopFiles, LocalFiles
from gateway.pipeline.reports import STATE_ALERT

BATCHES = range(5)


@pytest.fixture(scope="module")
def made(session_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> CountingQuery:
    """Five batches, 300 keys; versions 2 and 4 are snapshots."""
    return run_with_snapshots(session_spark, tmp_path_factory.mktemp("made") / "job", len(BATCHES))


@pytest.fixture
def job(made: CountingQuery, spark: Any, tmp_path: Path) -> CountingQuery:
    return made.copy_to(tmp_path / "job")


@pytest.fixture
def watch(job: CountingQuery, spark: Any) -> Iterator[damage.StateLogWatcher]:
    watch = damage.StateLogWatcher(spark, job.reports)
    yield watch
    watch.close()


def goes_on(job: CountingQuery, batch: int = 5) -> None:
    """One batch more, and all counts are those of all batches."""
    job.write_batch(batch)
    job.run_to_end()
    assert job.latest_counts == count_expected(range(batch + 1))


def test_keys_are_counted_by_partition_and_shown(job: CountingQuery, spark: Any) -> None:
    found = report.read_state(LocalFiles(job.checkpoint), "counting", verify=True)
    report.count_keys(spark, found, str(job.checkpoint), sample_size=3)
    assert found.keys == 300
    assert [(each.snapshot, each.behind, each.damage) for each in found.partitions] == 2 * [
        (4, 1, [])
    ]
    assert found.operators == {0: "stateStoreSave"}
    counts = count_expected(BATCHES)
    for row in found.sample:
        assert tuple(row["value"].values()) == counts[row["key"]["k"]]
    assert len(found.sample) == 3
    assert "counting: after batch 4, 300 keys" in format_state(found)


@pytest.mark.parametrize("remote", [False, True])
def test_a_restored_copy_goes_on_after_its_batch(job, spark, tmp_path, remote):
    """Also by way of Hadoop, which other file systems are reached by."""
    where = tmp_path / "copy"
    copy = HadoopFiles(where.as_uri(), spark) if remote else LocalFiles(where)
    maintenance.create_backup(
        LocalFiles(job.checkpoint),
        copy,
        "counting",
        check_content=damage.create_content_check(spark),
    )
    job.checkpoint.rename(tmp_path / "lost")
    maintenance.restore_backup(copy, LocalFiles(tmp_path / "restoring"), str(job.checkpoint))
    goes_on(job)
    assert job.batches == [5]


def test_a_rescaled_job_goes_on_exactly(job: CountingQuery, spark: Any) -> None:
    files = LocalFiles(job.checkpoint)
    before = files.read("metadata")
    for partitions in (5, 3):
        done = maintenance.rescale_state(spark, files, partitions)
        assert done.new_partitions == maintenance.read_partition_count(files) == partitions
        found = report.read_state(files, "counting")
        report.count_keys(spark, found, str(job.checkpoint), sample_size=0)
        assert found.keys == 300
        assert len({each.partition for each in found.partitions}) == partitions
    assert files.read("metadata") == before
    goes_on(job)
    assert job.batches == [7]  # each rescaling was a batch that read nothing


def test_sessions_go_on_over_a_rescaling(spark: Any, tmp_path: Path) -> None:
    """A session that is open before it grows after it, and is one."""
    from pyspark.sql import functions as F

    mine = spark.newSession()
    found: set[tuple[str, int, int]] = set()
    names = [f"u{n}" for n in range(40)]

    def run(minutes: dict[str, list[int]]) -> None:
        lines = [
            json.dumps({"k": name, "t": f"2026-01-01T{10 + at // 60}:{at % 60:02}:00Z"})
            for name, times in minutes.items()
            for at in times
        ]
        number = len(list((tmp_path / "in").glob("*.json")))
        (tmp_path / f"in/{number}.json").write_text("\n".join(lines))
        report = mine.readStream.schema("k string, t timestamp").json(str(tmp_path / "in"))
        gaps = F.session_window("t", "30 minutes").alias("w")
        counts = report.withWatermark("t", "0 seconds").groupBy("k", gaps).count()
        rows = counts.select("k", F.minute("w.start").alias("start"), "count").writeStream
        told = rows.foreachBatch(lambda frame, _: found.update(map(tuple, frame.collect())))
        query = told.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()

    (tmp_path / "in").mkdir()
    run({name: [0, 10] for name in names})
    done = maintenance.rescale_state(spark, LocalFiles(tmp_path / "checkpoint"), 5)
    assert (done.old_partitions, done.new_partitions) == (2, 5)
    run({name: [20, 25] for name in names})
    run({"later": [180]})
    assert found == {(name, 0, 4) for name in names}


def test_a_rescaling_that_was_killed_is_finished_before_anything_else(job, spark):
    files = LocalFiles(job.checkpoint)
    maintenance.rescale_state(spark, files, 3)
    files.remove("commits/5")
    job.write_batch(5)
    with pytest.raises(Exception, match="UNFINISHED_REPARTITION"):
        job.run_to_end()
    with pytest.raises(PipelineError, match="call it again with its number"):
        maintenance.rescale_state(spark, files, 4)
    maintenance.rescale_state(spark, files, 3)
    goes_on(job)


def test_a_job_that_ended_within_a_batch_is_not_rescaled(job: CountingQuery, spark: Any) -> None:
    files = LocalFiles(job.checkpoint)
    files.remove("commits/4")
    with pytest.raises(PipelineError, match="run the job until a batch ends"):
        maintenance.rescale_state(spark, files, 3)


def test_the_same_number_is_nothing_to_do(job: CountingQuery, spark: Any) -> None:
    with pytest.raises(PipelineError, match="2 partitions already"):
        maintenance.rescale_state(spark, LocalFiles(job.checkpoint), 2)


def snapshot(store: Path) -> None:
    truncate_file(store / "4.zip")


def tables(store: Path) -> None:
    for path in store.glob("SSTs/*.sst"):
        flip_byte(path)


def changelog(store: Path) -> None:
    flip_byte(store / "5.changelog")


def test_a_damaged_snapshot_is_passed_over_and_told(job, watch):
    snapshot(job.checkpoint / "state/0/1")
    goes_on(job)
    said = _alert(job)
    assert "state/0/1/4.zip" in said
    assert "an older snapshot and its changelogs are used" in said


@pytest.mark.parametrize("harm", [snapshot, tables])
def test_bits_flipped_in_a_snapshot_are_mended_by_spark_where_checksums_are(job, watch, harm):
    harm(job.checkpoint / "state/0/0")
    goes_on(job)
    assert "state/0/0" in _alert(job)


@pytest.mark.parametrize(("harm", "sums"), [(tables, False), (changelog, False), (changelog, True)])
def test_what_spark_gives_up_at_is_mended(job, spark, watch, harm, sums):
    """A changelog, or, on a file system without checksums, a table: with them Spark mends it."""
    harm(job.checkpoint / "state/0/0")
    if not sums:
        delete_checksums(job.checkpoint)
    job.write_batch(5)
    with pytest.raises(Exception, match="STREAM_FAILED") as failed:
        job.run_to_end()
    assert repair.is_damage_error(str(failed.value))
    files = LocalFiles(job.checkpoint)
    repair.recover_state(
        files,
        "counting",
        job.run_once,
        job.reports,
        state_error="damaged",
        check_content=damage.create_content_check(spark),
    )
    assert job.batches == ([4] if harm is changelog else [])
    assert "it is in damaged/ now" in _alert(job)
    goes_on(job)


def _alert(job: CountingQuery) -> str:
    def find_alert() -> str | None:
        return job.reports.get_alerts("counting").get(STATE_ALERT)

    asyncio.run(wait_until(find_alert, "an alert", interval_s=0.1))
    return find_alert() or ""
