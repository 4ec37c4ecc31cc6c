from __future__ import annotations

import json

import pytest

from gateway.pipeline.checkpoint import damage

LOGGER = (
    "org.apache.spark.sql.execution.streaming.state.RocksDB$$anon$1 StateStoreProviderId[ storeId="
    "StateStoreId[ operatorId=0, partitionId=3, storeName={} ], "
    "queryRunId=43ec34dc-e4a0-4a3c-9371-8c8b08d15da3 ]"
)


def line(message: str, cause: str = "", store: str = "default") -> str:
    told = {"level": "ERROR", "logger": LOGGER.format(store), "message": message, "cause": cause}
    return json.dumps(told)


def test_a_file_that_is_named_is_told() -> None:
    cause = "Checksum error: file:/cp/state/0/3/SSTs/000012-48ba.sst at 1536 exp: 1 got: 2"
    found = damage.parse_line(
        line("Failed to load snapshot version 8 (uniqueId: ), attempt 1", cause)
    )
    assert found is not None
    assert found.run_id == "43ec34dc-e4a0-4a3c-9371-8c8b08d15da3"
    assert found.file == "file:/cp/state/0/3/SSTs/000012-48ba.sst"
    assert found.description == f"{cause}; an older snapshot and its changelogs are used"


@pytest.mark.parametrize(
    ("store", "file"),
    [
        ("default", "state/0/3/8.zip"),
        ("left-keyToNumValues", "state/0/3/left-keyToNumValues/8.zip"),
    ],
)
def test_else_it_is_the_snapshot_of_the_store(store: str, file: str) -> None:
    message = "Failed to load snapshot version 8 (uniqueId: ), will retry repair with the next"
    found = damage.parse_line(line(message, "Unexpected end of ZLIB input stream", store))
    assert found is not None
    assert found.file == file


def test_snapshots_that_are_never_written_are_told() -> None:
    message = "Ignoring error while performing maintenance operations with exception"
    found = damage.parse_line(line(message, "No space left on device"))
    assert found is not None
    assert "No space left on device; no snapshot is written" in found.description


def test_a_store_that_has_not_been_written_yet_is_not_damaged() -> None:
    """Spark looks after stores from the first batch's begin on, and their directories come with
    its end."""
    message = "Ignoring error while performing maintenance operations with exception"
    assert (
        damage.parse_line(line(message, "File file:/jobs/counts/1/state/0/3 does not exist"))
        is None
    )
    assert damage.parse_line(
        line(message, "File file:/jobs/counts/1/state/0/3/SSTs does not exist")
    )


@pytest.mark.parametrize(
    "text", [line("Loaded checkpoint files for version 8"), "{", "Exception in thread main"]
)
def test_all_else_is_no_damage(text: str) -> None:
    assert damage.parse_line(text) is None
