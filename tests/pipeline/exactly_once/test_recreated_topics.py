from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import KafkaException
from support.brokers import KafkaCluster

from gateway.pipeline.checkpoint.checkpoint import Checkpoint, Sources
from gateway.pipeline.exactly_once.gaps import InputGap
from gateway.pipeline.exactly_once.recreated_topics import (
    InputTopics,
    check_topics,
    find_recreated,
    rewind_input,
    store_topic_ids,
)
from gateway.pipeline.state.files import LocalFiles
from gateway.pipeline.topics import NO_TOPIC_ID, TopicDescription
from gateway.pipeline.unreadable.offsets import is_rewound

pytestmark = pytest.mark.night

SOURCES = Sources(("eu", "us"), ("eu", "us"))
OLD = {"eu": TopicDescription("orders", "A", 2), "us": TopicDescription("orders", "B", 1)}
NEW = OLD | {"us": TopicDescription("orders", "C", 2)}


def test_a_topic_with_another_id_was_made_anew(tmp_path: Path):
    held = LocalFiles(tmp_path)
    assert find_recreated(held, NEW) == []  # nothing is known of a checkpoint without ids
    store_topic_ids(held, OLD)
    assert find_recreated(held, OLD) == []
    assert find_recreated(held, NEW) == ["us"]
    store_topic_ids(held, NEW)
    assert find_recreated(held, NEW) == []


def test_a_topic_gets_its_id_when_its_brokers_are_updated(tmp_path: Path):
    """The zeros that brokers before 2.8 answer were an id: each topic was read from its begin."""
    held = LocalFiles(tmp_path)
    before = {name: each._replace(id=NO_TOPIC_ID) for name, each in OLD.items()}
    store_topic_ids(held, before)
    assert find_recreated(held, OLD) == []
    store_topic_ids(held, OLD)
    assert find_recreated(held, before) == []


def test_an_input_is_sent_back_to_the_begin_and_its_batches_keep_their_marks(tmp_path: Path):
    """Killed before the gap was told, the next start finds the same."""
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    for number, us in enumerate((5, 10, 20)):  # the last one was interrupted
        ends = "\n".join(json.dumps({"orders": {"0": each}}) for each in (us * 2, us))
        held.write(f"offsets/{number}", f"v1\n{{}}\n{ends}".encode())
        held.write(f"sources/{number}/0", b'\0v1\n{"orders":{"0":0}}')
    for number in range(2):
        held.write(f"commits/{number}", b"v1\n{}")
    for version in (2, 3):
        held.write(f"state/0/0/{version}.zip", b"")
    marks = [checkpoint.compute_digest(number) for number in range(3)]
    for _ in range(2):
        found = rewind_input(held, checkpoint, SOURCES, "us", NEW["us"])
        assert found == [InputGap("orders", 0, 10, 0)]
        assert found[0].build_record("job")["reason"] == "recreated"
    batch, begin = checkpoint.read_batch(2), {("orders", 0): 0, ("orders", 1): 0}
    assert batch.start == ({("orders", 0): 20}, begin)
    assert batch.end == ({("orders", 0): 40}, begin)
    assert [checkpoint.compute_digest(number) for number in range(3)] == marks
    state = [name for name in held.list_sizes() if name.startswith("state/")]
    assert state == ["state/0/0/2.zip"]  # the interrupted batch made the other of what is gone


def write_initial(held: LocalFiles, *offsets: dict[str, int]) -> None:
    for number, each in enumerate(offsets):
        held.write(f"sources/{number}/0", b"\0v1\n" + json.dumps({"orders": each}).encode())


def test_an_input_of_which_no_batch_is_done_begins_where_the_new_topic_does(tmp_path: Path):
    """The first batch read the offsets of the old topic in the new one."""
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    write_initial(held, {"0": 7}, {"0": 5, "1": 3})
    held.write("offsets/0", b'v1\n{}\n{"orders":{"0":70}}\n{"orders":{"0":50,"1":30}}')
    for _ in range(2):
        found = rewind_input(held, checkpoint, SOURCES, "us", NEW["us"])
        batch, begin = checkpoint.read_batch(0), {("orders", 0): 0, ("orders", 1): 0}
        assert batch.start == ({("orders", 0): 7}, begin)
        assert batch.end == ({("orders", 0): 70}, begin)
    assert [each.partition for each in found] == [0, 1]


def test_a_gap_begins_where_the_topic_was_read_to_before_it_was_missing(tmp_path: Path):
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    for number, us in enumerate(('{"orders":{"0":10}}', "{}", "{}")):
        held.write(f"offsets/{number}", f'v1\n{{}}\n{{"orders":{{"0":4}}}}\n{us}'.encode())
        held.write(f"commits/{number}", b"v1\n{}")
    found = rewind_input(held, checkpoint, SOURCES, "us", NEW["us"])
    assert found == [InputGap("orders", 0, 10, 0)]


def test_a_topic_that_is_recreated_twice_has_the_gap_of_each(tmp_path: Path):
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    write_initial(held, {"0": 0}, {"0": 0})
    for number, us, known in ((0, 10, "B"), (1, 6, "C")):
        ends = "\n".join(json.dumps({"orders": {"0": each}}) for each in (4, us))
        held.write(f"offsets/{number}", f"v1\n{{}}\n{ends}".encode())
        held.write(f"commits/{number}", b"v1\n{}")
        store_topic_ids(held, OLD | {"us": TopicDescription("orders", known, 1)})
        for _ in range(2):
            found = rewind_input(
                held, checkpoint, SOURCES, "us", TopicDescription("orders", "D", 1)
            )
            assert found == [InputGap("orders", 0, us, 0)]
    store_topic_ids(held, OLD | {"us": TopicDescription("orders", "D", 1)})  # nothing of it is read
    assert rewind_input(held, checkpoint, SOURCES, "us", NEW["us"]) == [InputGap("orders", 0, 0, 0)]


def test_a_gap_that_was_not_told_before_the_next_one_keeps_its_begin(tmp_path: Path):
    """The topic was recreated, empty, and again, with more partitions: the gap began at 0."""
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    write_initial(held, {"0": 0}, {"0": 0})
    held.write("offsets/0", b'v1\n{}\n{"orders":{"0":4}}\n{"orders":{"0":10}}')
    held.write("commits/0", b"v1\n{}")
    store_topic_ids(held, OLD)
    for topic in (TopicDescription("orders", "C", 1), TopicDescription("orders", "D", 3)):
        assert rewind_input(held, checkpoint, SOURCES, "us", topic) == [
            InputGap("orders", 0, 10, 0)
        ]
    assert checkpoint.read_batch(0).end[1] == {("orders", each): 0 for each in range(3)}


def test_a_batch_of_a_topic_that_was_recreated_since_cannot_be_done_again(tmp_path: Path):
    held, checkpoint = LocalFiles(tmp_path), Checkpoint(str(tmp_path))
    write_initial(held, {"0": 0}, {"0": 0})
    for number, us in enumerate((5, 10)):
        ends = "\n".join(json.dumps({"orders": {"0": each}}) for each in (us * 2, us))
        held.write(f"offsets/{number}", f"v1\n{{}}\n{ends}".encode())
        held.write(f"commits/{number}", b"v1\n{}")
    rewind_input(held, checkpoint, SOURCES, "us", NEW["us"])
    assert [is_rewound(held, number) for number in range(2)] == [False, True]


def test_topics_are_asked_for_with_the_credentials_of_their_own_input(kafka: KafkaCluster):
    """Inputs of one cluster shared the client of the first, whatever user they named."""
    client_config = {"bootstrap.servers": kafka.bootstrap_servers}
    inputs = InputTopics({"from": (client_config, kafka.create_unique_topic())})
    inputs.close()
    check_topics(inputs.read_topics)
    (read_topic,) = inputs.read_topics
    other = read_topic._replace(client_config={**client_config, "sasl.mechanisms": "none such"})
    with pytest.raises(KafkaException, match=r"sasl\.mechanisms|none such"):
        check_topics([other])
