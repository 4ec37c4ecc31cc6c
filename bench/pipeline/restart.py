"""Kill a job with much state, and measure the time from its restart to the first finished batch.

The state is counts of keys on a local disk. Each start has its own JVM, in a process that is killed
with SIGKILL. The count of every key is compared with the input. The time does not include the
start of the process and of Spark.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.sections.job import Spark, State
from gateway.pipeline.checkpoint import damage, maintenance, report
from gateway.pipeline.checkpoint.checkpoint import parse_batches, parse_stores
from gateway.pipeline.checkpoint.files import LocalFiles
from gateway.pipeline.reports import Reports
from gateway.pipeline.spark.session import (
    build_checkpoint_conf,
    build_state_conf,
    create_job_session,
    create_session,
)

from ..results import Cell
from .engine import print_progress


@dataclass(frozen=True)
class Workload:
    """whole: of so many keys state is damaged and rescaled, too."""

    key_counts: Sequence[int] = (100_000, 1_000_000)
    full_key_count: int = 1_000_000


SMALL = Workload(key_counts=(2_000,), full_key_count=2_000)
FILL_BATCHES = 8
PARTITION_COUNTS = 2, 4


def measure(cell: Cell, workload: Workload) -> None:
    for keys in workload.key_counts:
        with tempfile.TemporaryDirectory(prefix="restart-") as directory:
            _measure_keys(cell, Path(directory), keys, is_full=keys == workload.full_key_count)


def _measure_keys(cell: Cell, directory: Path, key_count: int, *, is_full: bool) -> None:
    filled, of = directory / "filled", f"{key_count:,} keys"
    _run_child("fill", filled, key_count)
    state = report.read_state(LocalFiles(filled), "counts")
    cell.add_row(f"all versions kept, {of}", "state", "bytes/key", state.bytes / key_count)
    cases: list[tuple[str, Callable[[Path], None]]] = [("clean", lambda _: None)]
    if is_full:
        cases += [("snapshot truncated", _truncate_snapshots), ("tables flipped", _flip_bits)]
    for case, harm in cases:
        seconds = _measure_restart(filled, key_count, case, harm)
        cell.add_row(f"{case}, {of}", "start to first batch", "s", seconds)
    if is_full:
        told = _run_child("rescale", filled, key_count)
        case = f"rescale {PARTITION_COUNTS[0]} to {PARTITION_COUNTS[1]}, {of}"
        cell.add_row(case, "time", "s", told["seconds"])


def _measure_restart(
    filled: Path, key_count: int, case: str, damage_files: Callable[[Path], None]
) -> float:
    """A copy is harmed, and its job begun."""
    copy = filled.with_name("copy")
    shutil.copytree(filled, copy)
    damage_files(copy)
    print_progress(f"{key_count:,} keys, {case}")
    told = _run_child("restart", copy, key_count)
    shutil.rmtree(copy)
    if bool(told["alerts"]) == (case == "clean"):
        raise AssertionError(f"{case}: alerts are {told['alerts']}")
    seconds: float = told["seconds"]
    return seconds


def _truncate_snapshots(checkpoint: Path) -> None:
    for snapshot in _list_newest_snapshots(checkpoint):
        snapshot.write_bytes(snapshot.read_bytes()[: snapshot.stat().st_size // 2])


def _flip_bits(checkpoint: Path) -> None:
    """Flip the second half of the largest table of a store's newest snapshot.

    The largest table of all may belong to older snapshots only, as RocksDB compacts tables at times
    of its own choice. A restart does not read those.
    """
    snapshot = _list_newest_snapshots(checkpoint)[0]
    largest = max(damage.read_metadata(snapshot)["sstFiles"], key=lambda file: file["sizeBytes"])
    table = snapshot.parent / "SSTs" / largest["dfsSstFileName"]
    data = table.read_bytes()
    half = len(data) // 2
    table.write_bytes(data[:half] + bytes(each ^ 0xFF for each in data[half:]))


def _list_newest_snapshots(checkpoint: Path) -> list[Path]:
    stores = parse_stores(LocalFiles(checkpoint).list_sizes()).values()
    return [checkpoint / store.snapshots[max(store.snapshots)][0] for store in stores]


def _run_child(task: str, checkpoint: Path, key_count: int) -> dict[str, Any]:
    """What it tells; then it is killed, with its JVM."""
    print_progress(f"{task} {key_count:,} keys, in a process of its own")
    command = [sys.executable, "-m", __name__, task, str(checkpoint), str(key_count)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    if not line:
        raise RuntimeError(f"{task} of {key_count} keys told nothing")
    told: dict[str, Any] = json.loads(line)
    return told


def _run_task(task: str, checkpoint: str, key_count: int) -> None:
    spark = create_session(
        Spark.model_validate({"master": "local[2]", "memory": "2GiB"}), "restart"
    )
    state = State.model_validate({"snapshotAfter": 2, "partitions": PARTITION_COUNTS[0]})
    often = {"spark.sql.streaming.stateStore.maintenanceInterval": "3s"}
    own = {**build_checkpoint_conf(checkpoint), **build_state_conf(state), **often}
    mine = create_job_session(spark, own)
    if task == "rescale":
        done = maintenance.rescale_state(mine, LocalFiles(checkpoint), PARTITION_COUNTS[1])
        _check_counts(mine, checkpoint, key_count)
        told: dict[str, Any] = {"seconds": done.seconds}
    else:
        told = _run_query(mine, checkpoint, key_count, fill=task == "fill")
    print(json.dumps(told), flush=True)
    time.sleep(60)  # until we are killed


def _run_query(spark: Any, checkpoint: str, key_count: int, *, fill: bool) -> dict[str, Any]:
    from pyspark.sql import functions as F

    reports = Reports()
    watch = damage.StateLogWatcher(spark, reports)
    rows = key_count // 4 if fill else 1000
    read_ = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    counts = read_.load().select((F.col("value") % key_count).alias("k")).groupBy("k").count()
    query = counts.writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", checkpoint).trigger(processingTime="2 seconds")
    done = parse_batches(LocalFiles(checkpoint).list_sizes(), "commits")
    batch = max(done, default=-1) + (FILL_BATCHES if fill else 1)
    began = time.monotonic()
    query = query.start()
    reports.register_run(str(query.runId), "counts")
    while not Path(checkpoint, "commits", str(batch)).exists():
        if not query.isActive:
            raise RuntimeError(str(query.exception()))
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if fill:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not _has_two_snapshots(Path(checkpoint)):
            time.sleep(0.1)
    query.stop()
    watch.close()
    _check_counts(spark, checkpoint, key_count)
    return {"seconds": seconds, "alerts": list(reports.get_alerts("counts").values())}


def _has_two_snapshots(checkpoint: Path) -> bool:
    """Has each store two snapshots?"""
    stores = parse_stores(LocalFiles(checkpoint).list_sizes()).values()
    return all(len(store.snapshots) > 1 for store in stores)


def _check_counts(spark: Any, checkpoint: str, key_count: int) -> None:
    """Of n values given, key k has had one of every `keys`, and one more if k is among the rest."""
    from pyspark.sql import functions as F

    state = spark.read.format("statestore").load(checkpoint)
    counts = state.select(F.col("key.k").alias("k"), F.col("value.count").alias("n"))
    given = _count_values_read(LocalFiles(checkpoint))
    want = F.lit(given // key_count) + (F.col("k") < given % key_count).cast("long")
    wrong = counts.where(F.col("n") != want).count()
    if wrong or counts.count() != key_count:
        raise AssertionError(f"{wrong} of {key_count} keys have another count than was given")


def _count_values_read(files: LocalFiles) -> int:
    """How many values the finished batches have read, as the log of their ends says."""
    last = parse_batches(files.list_sizes(), "commits")[-1]
    return int(json.loads(files.read(f"offsets/{last}").splitlines()[2])["offset"])


if __name__ == "__main__":
    _run_task(sys.argv[1], sys.argv[2], int(sys.argv[3]))
