"""Another number of partitions for a job's state.

`spark.sql.shuffle.partitions` stands in the checkpoint, and a changed setting is ignored. Spark
4.2 rewrites the state in place, as one more batch that reads nothing (SPARK-53720): all
operators, whatever they keep. Identity and batch numbers go on, so the ledger of exactly-once
output does too; it only never hears of that batch. The partitions of its writers are another
number, and stay.

If it is killed half-way the job refuses to start until the same call has succeeded.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError

from . import layout
from .files import Files

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_REFUSALS = {
    "LAST_BATCH_FAILED": "its last batch is not done; run the job until a batch ends, end it "
    "with SIGTERM, then rescale again",
    "NO_COMMITTED_BATCH": "it has no finished batch; set state.partitions and run it",
    "NO_BATCH_FOUND": "it has no batch; set state.partitions and run it",
    "MISSING_OPERATOR_METADATA": "it keeps no state; nothing is to be done",
}
_ABANDONED = re.compile(r"LAST_BATCH_ABANDONED_REPARTITION")


@dataclass(frozen=True, slots=True)
class Rescaled:
    """seconds: how long it took. batch: the one that stands for it."""

    before: int
    after: int
    batch: int
    seconds: float


def partitions(files: Files) -> int | None:
    """Those of the state after the last finished batch; None before the first."""
    sizes = files.sizes()
    done = [n for n in layout.batches(sizes, "commits") if f"offsets/{n}" in sizes]
    return layout.partitions_of(files.read(f"offsets/{done[-1]}")) if done else None


def rescale(spark: SparkSession, files: Files, to: int) -> Rescaled:
    """The job must not run. Raises PipelineError: its last batch is not done, or an earlier
    rescaling to another number is not."""
    from py4j.protocol import Py4JJavaError

    before = partitions(files)
    if before is None:
        raise PipelineError(f"{files.where}: {_REFUSALS['NO_COMMITTED_BATCH']}")
    if before == to and not _half(files):
        _settle(files, to)  # it may have been killed just before
        raise PipelineError(f"{files.where} has {to} partitions already")
    began = time.monotonic()
    manager: Any = spark._streamingCheckpointManager
    try:
        manager.repartition(files.where, to)
    except Py4JJavaError as error:
        raise PipelineError(f"{files.where}: {_said(error)}") from None
    _settle(files, to)
    batch = layout.batches(files.sizes(), "commits")[-1]
    return Rescaled(before, to, batch, time.monotonic() - began)


def _half(files: Files) -> bool:
    """Is the newest batch one that never ended?"""
    sizes = files.sizes()
    return layout.batches(sizes, "offsets")[-1:] != layout.batches(sizes, "commits")[-1:]


def _said(error: Any) -> str:
    text = str(error.java_exception.getMessage())
    for sign, what in _REFUSALS.items():
        if sign in text:
            return what
    if _ABANDONED.search(text):
        return f"an earlier rescaling was not finished; call it again with its number ({text})"
    return text


def _settle(files: Files, to: int) -> None:
    """The definition beside the checkpoint, too: else the job would be refused for it."""
    name = "definition.json"
    if name in files.sizes():
        found = json.loads(files.read(name))
        files.write(name, json.dumps(found | {"partitions": to}, indent=2).encode() + b"\n")
