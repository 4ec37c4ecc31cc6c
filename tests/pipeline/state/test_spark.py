"""The state of a running query: read, copied, rescaled, damaged and mended; values compared."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.counting import Counting, flip, oracle, with_snapshots, without_sums
from support.paper import cut
from support.until import until

from gateway.errors import PipelineError
from gateway.pipeline.progress import alerts
from gateway.pipeline.state import backup, damage, mend, read, repair, rescale, whole
from gateway.pipeline.state.files import Hadoop, Local

BATCHES = range(5)


@pytest.fixture(scope="module")
def made(session_spark: Any, tmp_path_factory: pytest.TempPathFactory) -> Counting:
    """Five batches, 300 keys; versions 2 and 4 are snapshots."""
    return with_snapshots(session_spark, tmp_path_factory.mktemp("made") / "job", len(BATCHES))


@pytest.fixture
def job(made: Counting, spark: Any, tmp_path: Path) -> Counting:
    return made.copied(tmp_path / "job")


@pytest.fixture
def watch(spark: Any) -> Iterator[damage.Watch]:
    watch = damage.Watch(spark)
    yield watch
    watch.close()
    alerts.clear("counting", damage.ALERT)


def goes_on(job: Counting, batch: int = 5) -> None:
    """One batch more, and all counts are those of all batches."""
    job.give(batch)
    job.run()
    assert job.counts == oracle(range(batch + 1))


def test_keys_are_counted_by_partition_and_shown(job: Counting, spark: Any) -> None:
    found = read.state(Local(job.checkpoint), "counting", verify=True)
    read.read(spark, found, str(job.checkpoint), sample=3)
    assert found.keys == 300
    assert [(each.snapshot, each.behind, each.damage) for each in found.partitions] == 2 * [
        (4, 1, [])
    ]
    assert found.operators == {0: "stateStoreSave"}
    counts = oracle(BATCHES)
    for row in found.sample:
        assert tuple(row["value"].values()) == counts[row["key"]["k"]]
    assert len(found.sample) == 3
    assert "counting: after batch 4, 300 keys" in read.table(found)


@pytest.mark.parametrize("remote", [False, True])
def test_a_restored_copy_goes_on_after_its_batch(
    job: Counting, spark: Any, tmp_path: Path, remote: bool
) -> None:
    """Also by way of Hadoop, which other file systems are reached by."""
    where = tmp_path / "copy"
    copy = Hadoop(where.as_uri(), spark) if remote else Local(where)
    backup.backup(Local(job.checkpoint), copy, "counting", deep=whole.by_jvm(spark._jvm))
    job.checkpoint.rename(tmp_path / "lost")
    backup.restore(copy, Local(tmp_path / "restoring"), str(job.checkpoint))
    goes_on(job)
    assert job.batches == [5]


def test_a_rescaled_job_goes_on_exactly(job: Counting, spark: Any) -> None:
    files = Local(job.checkpoint)
    before = files.read("metadata")
    for partitions in (5, 3):
        done = rescale.rescale(spark, files, partitions)
        assert done.after == rescale.partitions(files) == partitions
        found = read.state(files, "counting")
        read.read(spark, found, str(job.checkpoint), sample=0)
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
        read = mine.readStream.schema("k string, t timestamp").json(str(tmp_path / "in"))
        gaps = F.session_window("t", "30 minutes").alias("w")
        counts = read.withWatermark("t", "0 seconds").groupBy("k", gaps).count()
        rows = counts.select("k", F.minute("w.start").alias("start"), "count").writeStream
        told = rows.foreachBatch(lambda frame, _: found.update(map(tuple, frame.collect())))
        query = told.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
        query.processAllAvailable()
        query.stop()

    (tmp_path / "in").mkdir()
    run({name: [0, 10] for name in names})
    done = rescale.rescale(spark, Local(tmp_path / "checkpoint"), 5)
    assert (done.before, done.after) == (2, 5)
    run({name: [20, 25] for name in names})
    run({"later": [180]})
    assert found == {(name, 0, 4) for name in names}


def test_a_rescaling_that_was_killed_is_finished_before_anything_else(
    job: Counting, spark: Any
) -> None:
    files = Local(job.checkpoint)
    rescale.rescale(spark, files, 3)
    files.remove("commits/5")
    job.give(5)
    with pytest.raises(Exception, match="UNFINISHED_REPARTITION"):
        job.run()
    with pytest.raises(PipelineError, match="call it again with its number"):
        rescale.rescale(spark, files, 4)
    rescale.rescale(spark, files, 3)
    goes_on(job)


def test_a_job_that_ended_within_a_batch_is_not_rescaled(job: Counting, spark: Any) -> None:
    files = Local(job.checkpoint)
    files.remove("commits/4")
    with pytest.raises(PipelineError, match="run the job until a batch ends"):
        rescale.rescale(spark, files, 3)


def test_the_same_number_is_nothing_to_do(job: Counting, spark: Any) -> None:
    with pytest.raises(PipelineError, match="2 partitions already"):
        rescale.rescale(spark, Local(job.checkpoint), 2)


def snapshot(store: Path) -> None:
    cut(store / "4.zip")


def tables(store: Path) -> None:
    for path in store.glob("SSTs/*.sst"):
        flip(path)


def changelog(store: Path) -> None:
    flip(store / "5.changelog")


def test_a_damaged_snapshot_is_passed_over_and_told(job: Counting, watch: damage.Watch) -> None:
    snapshot(job.checkpoint / "state/0/1")
    goes_on(job)
    said = _alert()
    assert "state/0/1/4.zip" in said
    assert "an older snapshot and its changelogs are used" in said


@pytest.mark.parametrize("harm", [snapshot, tables])
def test_bits_flipped_in_a_snapshot_are_mended_by_spark_where_checksums_are(
    job: Counting, watch: damage.Watch, harm: Callable[[Path], None]
) -> None:
    harm(job.checkpoint / "state/0/0")
    goes_on(job)
    assert "state/0/0" in _alert()


@pytest.mark.parametrize("harm", [tables, changelog])
@pytest.mark.parametrize("sums", [True, False])
def test_what_spark_gives_up_at_is_mended(
    job: Counting, spark: Any, watch: damage.Watch, harm: Callable[[Path], None], sums: bool
) -> None:
    """A changelog, or, on a file system without checksums, a table."""
    harm(job.checkpoint / "state/0/0")
    if not sums:
        without_sums(job.checkpoint)
    elif harm is tables:
        return  # see above: Spark does it
    job.give(5)
    with pytest.raises(Exception, match="STREAM_FAILED") as failed:
        job.run()
    assert repair.damaged_by(str(failed.value))
    files = Local(job.checkpoint)
    mend.mend(files, "counting", job.once, damaged=True, deep=whole.by_jvm(spark._jvm))
    assert job.batches == ([4] if harm is changelog else [])
    assert "it is in damaged/ now" in _alert()
    goes_on(job)


def _alert() -> str:
    said: list[str] = []

    def raised() -> bool:
        said[:] = [what for (_, alert), what in alerts.active().items() if alert == damage.ALERT]
        return bool(said)

    asyncio.run(until(raised, "an alert", 30.0, every=0.1))
    return said[0]
