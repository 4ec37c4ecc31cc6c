from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.errors import PipelineError
from gateway.pipeline.checkpoint.checkpoint import (
    BatchOffsets,
    Checkpoint,
    Sources,
    StoreId,
    is_always_needed,
    parse_batches,
    parse_stores,
    read_query_id,
)
from gateway.pipeline.checkpoint.files import LocalFiles

ID = "0f70c16a-b938-4a30-8499-2120ac1acb06"


@pytest.fixture
def checkpoint(tmp_path: Path) -> Checkpoint:
    """Two batches, the second under way."""
    write(tmp_path / "metadata", json.dumps({"id": ID}))
    write(tmp_path / "sources" / "0" / "0", '\0v1\n{"orders":{"0":5,"1":7}}')
    write(tmp_path / "offsets" / "0", offsets(0, {"0": 100, "1": 80}))
    write(tmp_path / "offsets" / "1", offsets(60_000, {"0": 150, "1": 80}))
    write(tmp_path / "offsets" / ".1.crc", "")
    write(tmp_path / "commits" / "0", 'v1\n{"nextBatchWatermarkMs":60000}')
    return Checkpoint(str(tmp_path))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def offsets(watermark: int, ends: dict[str, int]) -> str:
    head = json.dumps({"batchWatermarkMs": watermark, "batchTimestampMs": 1, "conf": {}})
    return f"v1\n{head}\n{json.dumps({'orders': ends})}"


def test_a_checkpoint_knows_its_query_and_how_far_it_is(checkpoint: Checkpoint):
    files = LocalFiles(checkpoint.location)
    assert (read_query_id(files), checkpoint.read_last_committed()) == (ID, 0)


def test_a_batch_begins_where_the_one_before_ended_the_first_where_its_source_began(checkpoint):
    batch = checkpoint.read_batch(1)
    assert batch.start == ({("orders", 0): 100, ("orders", 1): 80},)
    assert batch.end == ({("orders", 0): 150, ("orders", 1): 80},)
    assert checkpoint.read_batch(0).start == ({("orders", 0): 5, ("orders", 1): 7},)


def test_late_events_are_held_against_the_watermark_of_the_batch_before(checkpoint, tmp_path):
    write(tmp_path / "offsets" / "2", offsets(90_000, {"0": 150, "1": 90}))
    assert [checkpoint.read_batch(number).watermark_ms for number in range(3)] == [0, 0, 60_000]


def test_the_offsets_of_an_input_are_those_of_its_sources():
    """They were found by their topic, so those of two clusters, or of both sides of a join, were
    taken for one another's."""
    ends = tuple({("orders", 0): offset} for offset in (1, 2, 3))
    sources = Sources(lines=("eu", "us", "us"), directories=("eu", "us"))
    first = BatchOffsets(0, ends[:2], ends, 0)
    assert sources.select(first, "eu") == BatchOffsets(0, ends[:1], ends[:1], 0)
    assert sources.select(first, "us") == BatchOffsets(0, ends[1:2], ends[1:], 0)
    assert sources.select(BatchOffsets(1, ends, ends, 0), "us").start == ends[1:]


def test_an_input_is_read_on_where_the_last_finished_batch_ended(tmp_path: Path):
    new, sources = Checkpoint(str(tmp_path)), Sources(("eu", "us"), ("us", "eu"))
    for number, start in enumerate((5, 7)):
        initial = "\0v1\n" + json.dumps({"orders": {"0": start}})
        write(tmp_path / "sources" / str(number) / "0", initial)
    for number, (eu, us) in enumerate(((10, 20), (30, 40))):
        lines = "\n".join(json.dumps({"orders": {"0": end}}) for end in (eu, us))
        write(tmp_path / "offsets" / str(number), f"v1\n{{}}\n{lines}")
    assert new.read_positions(sources, "eu") == {("orders", 0): 7}
    write(tmp_path / "commits" / "0", "v1\n{}")
    assert new.read_positions(sources, "eu") == {("orders", 0): 10}
    assert new.read_positions(sources, "us") == {("orders", 0): 20}


def test_a_new_directory_has_nothing(tmp_path: Path):
    new = Checkpoint(str(tmp_path / "none"))
    assert new.read_last_committed() is None
    assert new.compute_digest(0) == ""


def test_two_ranges_under_one_number_have_different_marks(checkpoint: Checkpoint, tmp_path: Path):
    before = checkpoint.compute_digest(1)
    write(tmp_path / "offsets" / "1", offsets(60_000, {"0": 151, "1": 80}))
    assert before != checkpoint.compute_digest(1) != ""


def test_a_batch_that_spark_has_forgotten_and_a_format_of_another_version_are_told(
    checkpoint, tmp_path
):
    with pytest.raises(PipelineError, match="no offsets of batch 9"):
        checkpoint.read_batch(9)
    write(tmp_path / "offsets" / "2", "v2\n{}\n{}")
    with pytest.raises(PipelineError, match="'v2', not v1"):
        checkpoint.read_batch(2)
    write(tmp_path / "offsets" / "2", 'v1\n{}\n{"orders": {"0"')
    with pytest.raises(PipelineError, match="offsets/2 is damaged"):
        checkpoint.read_batch(2)


NAMES = [
    "metadata",
    "offsets/9",
    "offsets/10",
    "commits/9",
    "state/0/0/8.zip",
    "state/0/0/9.changelog",
    "state/0/0/10.changelog",
    "state/0/0/10.zip",
    "state/0/0/SSTs/000009-uuid.sst",
    "state/0/1/10.changelog",
    "state/0/1/left-keyToNumValues/3_0a1b-2c.changelog",
    "state/0/_metadata/metadata",
]


def test_stores_are_found_by_operator_partition_and_name() -> None:
    assert list(parse_stores(NAMES)) == [
        StoreId(0, 0, "default"),
        StoreId(0, 1, "default"),
        StoreId(0, 1, "left-keyToNumValues"),
    ]


def test_ways_to_a_version_begin_with_the_newest_snapshot() -> None:
    store = parse_stores(NAMES)[StoreId(0, 0, "default")]
    assert list(store.iter_chains(10)) == [
        ["state/0/0/10.zip"],
        ["state/0/0/8.zip", "state/0/0/9.changelog", "state/0/0/10.changelog"],
    ]


def test_no_way_leads_over_a_missing_changelog() -> None:
    store = parse_stores(NAMES)[StoreId(0, 1, "default")]
    assert not list(store.iter_chains(10))
    assert not list(store.iter_chains(11))


def test_changelogs_from_the_first_version_on_need_no_snapshot() -> None:
    names = ["state/0/0/1.changelog", "state/0/0/2.changelog"]
    store = parse_stores(names)[StoreId(0, 0, "default")]
    assert list(store.iter_chains(2)) == [names]


def test_batches_are_numbers_in_their_order() -> None:
    assert parse_batches([*NAMES, "offsets/.10.crc"], "offsets") == [9, 10]


def test_schemas_and_identity_are_always_needed_and_state_is_not() -> None:
    assert [name for name in NAMES if is_always_needed(name)] == [
        "metadata",
        "state/0/_metadata/metadata",
    ]
