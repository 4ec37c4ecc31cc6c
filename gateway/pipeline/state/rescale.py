"""Change the number of partitions of a job's state.

`spark.sql.shuffle.partitions` is stored in the checkpoint, and a changed setting is ignored. Spark
4.2 rewrites the state of all operators in place, as one more batch that reads nothing
(SPARK-53720). The query id and the batch numbers continue, so the ledger of exactly-once output
stays valid: it just has no entries of that batch. The number of writers is another setting and does
not change.

If the process is killed meanwhile, the job refuses to start until the same call has succeeded.
"""

from __future__ import annotations

import json
import re
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gateway.errors import PipelineError

from . import layout
from .files import Files, refuse_damaged

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What Spark's error classes mean, and what to do.
_REFUSAL_MESSAGES = {
    "LAST_BATCH_FAILED": "its last batch is not finished; run the job until a batch ends, end it "
    "with SIGTERM, then rescale again",
    "NO_COMMITTED_BATCH": "it has no finished batch; set state.partitions and run it",
    "NO_BATCH_FOUND": "it has no batch; set state.partitions and run it",
    "MISSING_OPERATOR_METADATA": "it keeps no state; there is nothing to do",
}
_ABANDONED_PATTERN = re.compile(r"LAST_BATCH_ABANDONED_REPARTITION")


@dataclass(frozen=True, slots=True)
class RescaleResult:
    old_partitions: int
    new_partitions: int
    batch: int
    seconds: float


def read_partition_count(files: Files) -> int | None:
    """Return the number of partitions after the last finished batch, or None before the first."""
    sizes = files.list_sizes()
    batches = [n for n in layout.parse_batches(sizes, "commits") if f"offsets/{n}" in sizes]
    return layout.parse_partition_count(files.read(f"offsets/{batches[-1]}")) if batches else None


def rescale_state(spark: SparkSession, files: Files, new_partitions: int) -> RescaleResult:
    """Change the number of partitions of a job's state. The job must not run."""
    from py4j.protocol import Py4JJavaError

    old_partitions = read_partition_count(files)
    if old_partitions is None:
        raise PipelineError(f"{files.location}: {_REFUSAL_MESSAGES['NO_COMMITTED_BATCH']}")
    if old_partitions == new_partitions and not _is_unfinished(files):
        # An earlier call may have been killed just before it updated the definition.
        _update_definition(files, new_partitions)
        raise PipelineError(f"{files.location} has {new_partitions} partitions already")
    began = time.monotonic()
    manager: Any = spark._streamingCheckpointManager
    try:
        manager.repartition(files.location, new_partitions)
    except Py4JJavaError as error:
        raise PipelineError(f"{files.location}: {_format_error(error)}") from None
    _update_definition(files, new_partitions)
    batch = layout.parse_batches(files.list_sizes(), "commits")[-1]
    return RescaleResult(old_partitions, new_partitions, batch, time.monotonic() - began)


def _is_unfinished(files: Files) -> bool:
    sizes = files.list_sizes()
    return (
        layout.parse_batches(sizes, "offsets")[-1:] != layout.parse_batches(sizes, "commits")[-1:]
    )


def _format_error(error: Any) -> str:
    text = str(error.java_exception.getMessage())
    for error_class, message in _REFUSAL_MESSAGES.items():
        if error_class in text:
            return message
    if _ABANDONED_PATTERN.search(text):
        return f"an earlier rescaling was not finished; call it again with its number ({text})"
    return text


def _update_definition(files: Files, new_partitions: int) -> None:
    """Store the number in the definition of the checkpoint, so that the job is not refused."""
    name = "definition.json"
    if name in files.list_sizes():
        with refuse_damaged(files.location, name):
            content = json.loads(files.read(name)) | {"partitions": new_partitions}
        files.write(name, json.dumps(content, indent=2).encode() + b"\n")
