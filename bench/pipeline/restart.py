"""A job with much state is killed, and begins again: how long until its first batch is done.

Counts of keys, on a local disk, each start in a JVM of its own, by a process that is killed with
SIGKILL. Of every key the count is compared with what was given. The start of the process and of
Spark is not in the time.
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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gateway.config.pipeline import Spark, State
from gateway.pipeline import alerts
from gateway.pipeline.session import of_job, session
from gateway.pipeline.state import damage, layout, read, rescale
from gateway.pipeline.state.files import Local
from gateway.pipeline.state.profiles import conf

from ..figure import Figure

KEYS = tuple(int(each) for each in os.environ.get("KEYS", "100000,1000000,4000000").split(","))
DAMAGED = 1_000_000  # of so many keys the newest snapshot is damaged, too
BATCHES = 8
PARTITIONS = 2, 4


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for keys in KEYS:
        with tempfile.TemporaryDirectory(prefix="restart-") as directory:
            figures += _measured(Path(directory), keys)
    return figures


def _measured(directory: Path, keys: int) -> list[Figure]:
    filled = directory / "filled"
    _child("fill", filled, keys)
    state = read.state(Local(filled), "counts")
    of = f"{keys:,} keys"
    figures = [Figure(f"state on disk, all versions kept, {of}", state.bytes / keys, "bytes/key")]

    def again(what: str, harm: Callable[[Path], None] = lambda _: None) -> dict[str, Any]:
        copy = directory / "copy"
        shutil.copytree(filled, copy)
        harm(copy)
        told = _child("restart", copy, keys)
        shutil.rmtree(copy)
        figures.append(Figure(f"query start to first batch, {what}, {of}", told["seconds"], "s"))
        return told

    again("clean")
    if keys == DAMAGED:
        for what, harm in (("snapshot truncated", _truncated), ("tables flipped", _flipped)):
            if not again(what, harm)["alerts"]:
                raise AssertionError(f"{what}: no alert was raised")
    told = _child("rescale", filled, keys)
    figures.append(
        Figure(f"rescale {PARTITIONS[0]} to {PARTITIONS[1]}, {of}", told["seconds"], "s")
    )
    return figures


def _truncated(checkpoint: Path) -> None:
    for snapshot in _newest(checkpoint):
        snapshot.write_bytes(snapshot.read_bytes()[: snapshot.stat().st_size // 2])


def _flipped(checkpoint: Path) -> None:
    """The second half of the largest table of a store."""
    tables = checkpoint.glob("state/0/0/SSTs/*.sst")
    largest = max(tables, key=lambda path: path.stat().st_size)
    data = largest.read_bytes()
    half = len(data) // 2
    largest.write_bytes(data[:half] + bytes(each ^ 0xFF for each in data[half:]))


def _newest(checkpoint: Path) -> list[Path]:
    stores = layout.stores(Local(checkpoint).sizes()).values()
    return [checkpoint / store.snapshots[max(store.snapshots)][0] for store in stores]


def _child(what: str, checkpoint: Path, keys: int) -> dict[str, Any]:
    """What it tells; then it is killed, with its JVM."""
    command = [sys.executable, "-m", __name__, what, str(checkpoint), str(keys)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as child:
        try:
            assert child.stdout is not None
            line = child.stdout.readline()
        finally:
            os.killpg(child.pid, signal.SIGKILL)
    if not line:
        raise RuntimeError(f"{what} of {keys} keys told nothing")
    told: dict[str, Any] = json.loads(line)
    return told


def _main(what: str, checkpoint: str, keys: int) -> None:
    spark = session(Spark.model_validate({"master": "local[2]", "memory": "2GiB"}), "restart")
    state = State.model_validate({"snapshotAfter": 2, "partitions": PARTITIONS[0]})
    mine = of_job(spark, conf(state) | {_MAINTENANCE: "3s"})
    if what == "rescale":
        done = rescale.rescale(mine, Local(checkpoint), PARTITIONS[1])
        _compare(mine, checkpoint, keys)
        told: dict[str, Any] = {"seconds": done.seconds}
    else:
        told = _run(mine, checkpoint, keys, fill=what == "fill")
    print(json.dumps(told), flush=True)
    time.sleep(60)  # until we are killed


_MAINTENANCE = "spark.sql.streaming.stateStore.maintenanceInterval"


def _run(spark: Any, checkpoint: str, keys: int, *, fill: bool) -> dict[str, Any]:
    from pyspark.sql import functions as F

    watch = damage.Watch(spark)
    rows = keys // 4 if fill else 1000
    read_ = spark.readStream.format("rate-micro-batch").option("rowsPerBatch", rows)
    counts = read_.load().select((F.col("value") % keys).alias("k")).groupBy("k").count()
    query = counts.writeStream.outputMode("update").format("noop")
    query = query.option("checkpointLocation", checkpoint).trigger(processingTime="2 seconds")
    began = time.monotonic()
    query = query.start()
    damage.began(str(query.runId), "counts")
    batches = BATCHES if fill else 1
    while sum(each.numInputRows > 0 for each in query.recentProgress) < batches:
        if not query.isActive:
            raise RuntimeError(str(query.exception()))
        time.sleep(0.01)
    seconds = time.monotonic() - began
    if fill:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and not _whole(Path(checkpoint)):
            time.sleep(0.1)
    query.stop()
    watch.close()
    _compare(spark, checkpoint, keys)
    said = [what for (_, alert), what in alerts.active().items() if alert == damage.ALERT]
    return {"seconds": seconds, "alerts": said}


def _whole(checkpoint: Path) -> bool:
    """Has each store two snapshots?"""
    stores = layout.stores(Local(checkpoint).sizes()).values()
    return all(len(store.snapshots) > 1 for store in stores)


def _compare(spark: Any, checkpoint: str, keys: int) -> None:
    """Of n values given, key k has had one of every `keys`, and one more if k is among the rest."""
    from pyspark.sql import functions as F

    state = spark.read.format("statestore").load(checkpoint)
    counts = state.select(F.col("key.k").alias("k"), F.col("value.count").alias("n"))
    given = _given(Local(checkpoint))
    want = F.lit(given // keys) + (F.col("k") < given % keys).cast("long")
    wrong = counts.where(F.col("n") != want).count()
    if wrong or counts.count() != keys:
        raise AssertionError(f"{wrong} of {keys} keys have another count than was given")


def _given(files: Local) -> int:
    """How many values the finished batches have read, as the log of their ends says."""
    last = layout.batches(files.sizes(), "commits")[-1]
    return int(json.loads(files.read(f"offsets/{last}").splitlines()[2])["offset"])


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
