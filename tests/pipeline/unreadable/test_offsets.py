from __future__ import annotations

import json
from pathlib import Path

import pytest

from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.exactly_once.recreated_topics import rewind_input
from gateway.pipeline.exactly_once.side_output import iter_contiguous_spans, offset_ranges
from gateway.pipeline.state.files import LocalFiles
from gateway.pipeline.state.repair import find_batches_to_replay, isolate_batch
from gateway.pipeline.topics import TopicDescription
from gateway.pipeline.unreadable.offsets import (
    PartitionRange,
    UnfinishedBatch,
    find_unfinished_batch,
)

pytestmark = pytest.mark.night

ONE = Sources(("t",), ("t",))
INITIAL = b'\0v1\n{"orders":{"0":5,"1":7}}'


@pytest.fixture
def held(tmp_path: Path) -> LocalFiles:
    """A checkpoint of a query that reads `orders`; no batch was begun."""
    held = LocalFiles(tmp_path)
    held.write("sources/0/0", INITIAL)
    return held


def write_batch(held: LocalFiles, number: int, *ends: dict[str, int], done: bool = True) -> None:
    lines = [json.dumps({"orders": each}, separators=(",", ":")) if each else "-" for each in ends]
    held.write(f"offsets/{number}", "\n".join(["v1", "{}", *lines]).encode())
    if done:
        held.write(f"commits/{number}", b"v1\n{}")


def checkpoint_of(held: LocalFiles) -> Checkpoint:
    return Checkpoint(held.location)


def unfinished_of(held: LocalFiles, sources: Sources = ONE) -> UnfinishedBatch:
    found = find_unfinished_batch(held, checkpoint_of(held), sources)
    assert found is not None
    return found


def test_a_checkpoint_whose_batches_are_all_finished_has_none_to_edit(held: LocalFiles):
    assert find_unfinished_batch(held, checkpoint_of(held), ONE) is None
    write_batch(held, 0, {"0": 9})
    assert find_unfinished_batch(held, checkpoint_of(held), ONE) is None


def test_a_batch_is_cut_to_end_before_a_record(held: LocalFiles):
    write_batch(held, 0, {"0": 100, "1": 80})
    write_batch(held, 1, {"0": 150, "1": 90}, done=False)
    marks = [checkpoint_of(held).compute_digest(number) for number in (0, 1)]
    for _ in range(2):
        unfinished_of(held).truncate(0, "orders", 0, 120)
    assert unfinished_of(held).find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 100, 120)
    ]
    assert unfinished_of(held).find_ranges("orders", 1) == [
        PartitionRange(0, "t", "orders", 1, 80, 90)
    ]
    assert checkpoint_of(held).compute_digest(0) == marks[0]
    assert (
        checkpoint_of(held).compute_digest(1) != marks[1]
    )  # it is another batch, and none was written
    assert held.read("sources/0/0") == INITIAL


def test_the_start_of_a_batch_is_moved_and_the_one_before_keeps_its_end_and_its_mark(held):
    """Killed after any of the steps, the next start does all of them again."""
    write_batch(held, 0, {"0": 100, "1": 80})
    write_batch(held, 1, {"0": 150, "1": 90}, done=False)
    mark = checkpoint_of(held).compute_digest(0)
    for _ in range(2):
        unfinished_of(held).move_start(0, "orders", 0, 103)
    assert unfinished_of(held).find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 103, 150)
    ]
    before, batch = (checkpoint_of(held).read_batch(number) for number in (0, 1))
    assert before.end == ({("orders", 0): 100, ("orders", 1): 80},)
    assert batch.start == ({("orders", 0): 103, ("orders", 1): 80},)
    assert checkpoint_of(held).compute_digest(0) == mark


def test_a_batch_of_unreadable_records_alone_becomes_empty(held: LocalFiles):
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 101}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 140)
    assert unfinished_of(held).find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 140, 140)
    ]


def test_the_first_batch_is_moved_by_where_its_source_begins(held: LocalFiles):
    write_batch(held, 0, {"0": 100, "1": 80}, done=False)
    unfinished_of(held).move_start(0, "orders", 1, 9)
    assert held.read("sources/0/0") == b'\0v1\n{"orders":{"0":5,"1":9}}'
    assert checkpoint_of(held).read_batch(0).start == ({("orders", 0): 5, ("orders", 1): 9},)


def test_a_partition_that_is_new_begins_at_0(held: LocalFiles):
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 100, "1": 4}, done=False)
    assert unfinished_of(held).find_ranges("orders", 1) == [
        PartitionRange(0, "t", "orders", 1, 0, 4)
    ]
    unfinished_of(held).move_start(0, "orders", 1, 1)
    assert unfinished_of(held).find_ranges("orders", 1) == [
        PartitionRange(0, "t", "orders", 1, 1, 4)
    ]
    assert checkpoint_of(held).read_batch(0).end == ({("orders", 0): 100, ("orders", 1): 0},)


def test_sources_that_read_one_topic_are_edited_each_for_itself(held: LocalFiles):
    sources = Sources(("left", "right", "late"), ("left", "right", "late"))
    held.write("sources/1/0", INITIAL)
    held.write("sources/2/0", INITIAL)
    write_batch(held, 0, {"0": 100}, {"0": 60}, {})
    write_batch(held, 1, {"0": 150}, {"0": 90}, {"0": 20}, done=False)
    found = unfinished_of(held, sources)
    assert found.find_ranges("orders", 0) == [
        PartitionRange(0, "left", "orders", 0, 100, 150),
        PartitionRange(1, "right", "orders", 0, 60, 90),
        PartitionRange(2, "late", "orders", 0, 5, 20),  # it had no offsets before this batch
    ]
    found.move_start(1, "orders", 0, 61)
    found.truncate(0, "orders", 0, 120)
    found.move_start(2, "orders", 0, 6)
    assert found.find_ranges("orders", 0) == [
        PartitionRange(0, "left", "orders", 0, 100, 120),
        PartitionRange(1, "right", "orders", 0, 61, 90),
        PartitionRange(2, "late", "orders", 0, 6, 20),
    ]
    assert held.read("sources/2/0") == b'\0v1\n{"orders":{"0":6,"1":7}}'
    assert [held.read(f"sources/{each}/0") for each in range(2)][1:] == [INITIAL]


def test_a_table_that_is_read_twice_has_two_lines_and_one_directory(held: LocalFiles):
    sources = Sources(("t", "t"), ("t",))
    write_batch(held, 0, {"0": 100}, {"0": 100}, done=False)
    found = unfinished_of(held, sources)
    assert found.find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 5, 100),
        PartitionRange(1, "t", "orders", 0, 5, 100),
    ]
    for each in found.find_ranges("orders", 0):
        found.move_start(each.line, "orders", 0, 6)
    assert found.find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 6, 100),
        PartitionRange(1, "t", "orders", 0, 6, 100),
    ]


def test_a_start_that_is_moved_again_leaves_the_first_end(held: LocalFiles):
    """The run of records went on after its end was read."""
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 101}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 103)
    unfinished_of(held).move_start(0, "orders", 0, 110)
    assert checkpoint_of(held).read_batch(0).end == ({("orders", 0): 100},)
    assert unfinished_of(held).find_ranges("orders", 0) == [
        PartitionRange(0, "t", "orders", 0, 110, 110)
    ]


def test_what_a_cut_batch_left_of_its_state_is_removed(held: LocalFiles):
    """Spark would go on from a snapshot of records that the batch no longer has."""
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 150}, done=False)
    for version in (1, 2):
        held.write(f"state/0/0/{version}.changelog", b"")
    held.write("state/0/0/2.zip", b"")
    unfinished_of(held).truncate(0, "orders", 0, 120)
    assert [name for name in sorted(held.list_sizes()) if name.startswith("state/")] == [
        "state/0/0/1.changelog"
    ]


def test_ranges_that_are_read_again_leave_out_what_no_batch_has_read(held: LocalFiles):
    for number, end in enumerate((100, 150, 200)):
        write_batch(held, number, {"0": end}, done=number < 2)
        if number == 1:
            continue
        unfinished = find_unfinished_batch(held, checkpoint_of(held), ONE)
        if unfinished is not None:
            unfinished.move_start(0, "orders", 0, 153)
    batches = [checkpoint_of(held).read_batch(number) for number in range(3)]
    found = [offset_ranges("orders", *each) for each in iter_contiguous_spans(batches)]
    assert [list(each.values()) for each in found] == [[(5, 150)], [(153, 200)]]


def test_a_batch_that_is_done_again_for_its_state_has_the_records_it_had(held: LocalFiles):
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 150}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 103)
    with isolate_batch(held, 0):
        assert json.loads(held.read("offsets/0").splitlines()[2]) == {"orders": {"0": 100}}
    assert json.loads(held.read("offsets/0").splitlines()[2]) == {"orders": {"0": 103}}


def test_a_topic_that_is_made_anew_has_other_records_before_the_end(held: LocalFiles):
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 150}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 103)
    mark = checkpoint_of(held).compute_digest(0)
    for _ in range(2):
        gaps = rewind_input(held, checkpoint_of(held), ONE, "t", TopicDescription("orders", "B", 1))
        assert [(gap.start, gap.end) for gap in gaps] == [(103, 0)]
    assert checkpoint_of(held).read_batch(0).end == ({("orders", 0): 0},)
    assert checkpoint_of(held).compute_digest(0) == mark


def test_a_process_that_is_killed_as_it_does_a_batch_again_leaves_the_starts(held: LocalFiles):
    """The next start read the records again that Spark cannot read, and ended for good."""
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 150}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 103)
    with isolate_batch(held, 0):
        killed = {name: held.read(name) for name in held.list_sizes()}
    for name, data in killed.items():
        held.write(name, data)
    assert find_batches_to_replay(held) == []
    assert json.loads(held.read("offsets/0").splitlines()[2]) == {"orders": {"0": 103}}


def test_the_starts_of_a_topic_that_is_gone_do_not_come_back(held: LocalFiles):
    """The records of the new topic before them were lost."""
    write_batch(held, 0, {"0": 100})
    write_batch(held, 1, {"0": 150}, done=False)
    unfinished_of(held).move_start(0, "orders", 0, 103)
    rewind_input(held, checkpoint_of(held), ONE, "t", TopicDescription("orders", "B", 1))
    for _ in range(2):
        find_batches_to_replay(held)
        with isolate_batch(held, 0):
            pass
        assert json.loads(held.read("offsets/0").splitlines()[2]) == {"orders": {"0": 0}}
