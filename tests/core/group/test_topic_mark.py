"""The mark of a committed offset."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.partition_state import TopicMark


@given(
    st.uuids(),
    st.none() | st.integers(0),
    st.none() | st.just("MkU3OEVBNTcwNTJENDM2Qk"),
    st.text(max_size=20) | st.just("a note "),
)
def test_a_mark_is_read_as_it_was_written_behind_what_a_program_wrote(
    topic_id: UUID, partitions: int | None, cluster_id: str | None, own: str
):
    mark = TopicMark(topic_id, cluster_id, partitions)
    assert TopicMark.split(mark.append_to(own)) == (own, mark)


def test_a_mark_for_which_kafka_has_no_room_is_left_out():
    """Brokers refuse metadata of more than 4096 characters."""
    assert TopicMark(UUID(int=1)).append_to("x" * 4090) == "x" * 4090


@pytest.mark.parametrize(
    "metadata",
    [None, "", "topic-id=", "topic-id=nonsense", "my topic-id=1", f"topic-id={UUID(int=1)},note=1"],
)
def test_metadata_of_others_is_no_mark(metadata: str | None):
    assert TopicMark.split(metadata) == (metadata, None)


def test_only_a_mark_that_names_another_cluster_is_of_another_cluster():
    """Where one of the two is not known, a topic that was created again must be noticed."""
    named, unnamed = TopicMark(UUID(int=1), "here"), TopicMark(UUID(int=1))
    assert named.is_of_other_cluster("there")
    assert not named.is_of_other_cluster("here")
    assert not named.is_of_other_cluster(None)
    assert not unnamed.is_of_other_cluster("here")
