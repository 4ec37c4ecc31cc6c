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

_REFUSAL_MESSAGES = {
    "LAST_BATCH_FAILED": "its last batch is not done; run the job until a batch ends, end it "
    "with SIGTERM, then rescale again",
    "NO_COMMITTED_BATCH": "it has no finished batch; set state.partitions and run it",
    "NO_BATCH_FOUND": "it has no batch; set state.partitions and run it",
    "MISSING_OPERATOR_METADATA": "it keeps no state; nothing is to be done",
}
_ABANDONED_PATTERN = re.compile(r"LAST_BATCH_ABANDONED_REPARTITION")


@dataclass(frozen=True, slots=True)
class RescaleResult:
    """seconds: how long it took. batch: the one that stands for it."""

    old_partitions: int
    new_partitions: int
    batch: int
    seconds: float


def read_partition_count(files: Files) -> int | None:
    """Those of the state after the last finished batch; None before the first."""
    sizes = files.list_sizes()
    done = [n for n in layout.parse_batches(sizes, "commits") if f"offsets/{n}" in sizes]
    return layout.parse_partition_count(files.read(f"offsets/{done[-1]}")) if done else None


def rescale_state(spark: SparkSession, files: Files, new_partitions: int) -> RescaleResult:
    """The job must not run. Raises PipelineError: its last batch is not done, or an earlier
    rescaling to another number is not."""
    from py4j.protocol import Py4JJavaError

    before = read_partition_count(files)
    if before is None:
        raise PipelineError(f"{files.location}: {_REFUSAL_MESSAGES['NO_COMMITTED_BATCH']}")
    if before == new_partitions and not _is_unfinished(files):
        _update_definition(files, new_partitions)  # it may have been killed just before
        raise PipelineError(f"{files.location} has {new_partitions} partitions already")
    began = time.monotonic()
    manager: Any = spark._streamingCheckpointManager
    try:
        manager.repartition(files.location, new_partitions)
    except Py4JJavaError as error:
        raise PipelineError(f"{files.location}: {_format_error(error)}") from None
    _update_definition(files, new_partitions)
    batch = layout.parse_batches(files.list_sizes(), "commits")[-1]
    return RescaleResult(before, new_partitions, batch, time.monotonic() - began)


def _is_unfinished(files: Files) -> bool:
    """Is the newest batch one that never ended?"""
    sizes = files.list_sizes()
    return (
        layout.parse_batches(sizes, "offsets")[-1:] != layout.parse_batches(sizes, "commits")[-1:]
    )


def _format_error(error: Any) -> str:
    text = str(error.java_exception.getMessage())
    for sign, what in _REFUSAL_MESSAGES.items():
        if sign in text:
            return what
    if _ABANDONED_PATTERN.search(text):
        return f"an earlier rescaling was not finished; call it again with its number ({text})"
    return text


def _update_definition(files: Files, new_partitions: int) -> None:
    """The definition beside the checkpoint, too: else the job would be refused for it."""
    name = "definition.json"
    if name in files.list_sizes():
        found = json.loads(files.read(name))
        files.write(
            name, json.dumps(found | {"partitions": new_partitions}, indent=2).encode() + b"\n"
        )
