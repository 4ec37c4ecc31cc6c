"""A job with much state is killed, and begins again: how long until its first batch is done.

Counts of keys, on a local disk, each start in a JVM of its own, by a process that is killed with
SIGKILL. Of every key the count is compared with what was given. The start of the process and of
Spark is not in the time. `KEYS=4000000` in the environment: of other sizes.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gateway.config.sections.pipeline import Spark, State
from gateway.pipeline.progress import alerts
from gateway.pipeline.spark.session import of_checkpoints, of_job, session
from gateway.pipeline.state import damage, layout, read, rescale
from gateway.pipeline.state.files import Local
from gateway.pipeline.state.profiles import conf

from ..figure import Figure
from .telling import tell


@dataclass(frozen=True)
class Size:
    """whole: of so many keys state is damaged and rescaled, too."""

    keys: Sequence[int] = (100_000, 1_000_000)
    whole: int = 1_000_000


SMALL = Size(keys=(2_000,), whole=2_000)
BATCHES = 8
PARTITIONS = 2, 4


def measure(size: Size = Size()) -> list[Figure]:
    asked = os.environ.get("KEYS")
    figures: list[Figure] = []
    for keys in map(int, asked.split(",")) if asked else size.keys:
        with tempfile.TemporaryDirectory(prefix="restart-") as directory:
            figures += _measured(Path(directory), keys, whole=keys == size.whole)
    return figures


def _measured(directory: Path, keys: int, *, whole: bool) -> Iterator[Figure]:
    filled, of = directory / "filled", f"{keys:,} keys"
    _child("fill", filled, keys)
    state = read.state(Local(filled), "counts")
    yield Figure(f"state on disk, all versions kept, {of}", state.bytes / keys, "bytes/key")
    yield _again(filled, keys, "clean", lambda _: None)
    if whole:
        for what, harm in (("snapshot truncated", _truncated), ("tables flipped", _flipped)):
            yield _again(filled, keys, what, harm)
        told = _child("rescale", filled, keys)
        what = f"rescale {PARTITIONS[0]} to {PARTITIONS[1]}, {of}"
        yield Figure(what, told["seconds"], "s")


def _again(filled: Path, keys: int, what: str, harm: Callable[[Path], None]) -> Figure:
    """A copy is harmed, and its job begun."""
    copy = filled.with_name("copy")
    shutil.copytree(filled, copy)
    harm(copy)
    tell(f"{keys:,} keys, {what}")
    told = _child("restart", copy, keys)
    shutil.rmtree(copy)
    if bool(told["alerts"]) == (what == "clean"):
        raise AssertionError(f"{what}: alerts are {told['alerts']}")
    return Figure(f"query start to first batch, {what}, {keys:,} keys", told["seconds"], "s")


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
    tell(f"{what} {keys:,} keys, in a process of its own")
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
    own = {**of_checkpoints(checkpoint), **conf(state), _MAINTENANCE: "3s"}
    mine = of_job(spark, own)
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
    batch = _next(Path(checkpoint)) + (BATCHES if fill else 1) - 1
    began = time.monotonic()
    query = query.start()
    damage.began(str(query.runId), "counts")
    while not Path(checkpoint, "commits", str(batch)).exists():
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


def _next(checkpoint: Path) -> int:
    """The batch that is due."""
    return max(layout.batches(Local(checkpoint).sizes(), "commits"), default=-1) + 1


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
