"""The mark of a committed offset."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.group.topic_mark import TopicMark


@given(st.uuids(), st.none() | st.text(min_size=1), st.none() | st.integers(0))
def test_a_mark_is_read_as_it_was_written(
    topic_id: UUID, cluster_id: str | None, partitions: int | None
):
    mark = TopicMark(topic_id, cluster_id, partitions)
    assert TopicMark.parse(str(mark)) == mark


@pytest.mark.parametrize(
    "metadata",
    [None, "", "topic-id=", "topic-id=nonsense", "my topic-id=1", f"topic-id={UUID(int=1)},note=1"],
)
def test_metadata_of_others_is_no_mark(metadata: str | None):
    assert TopicMark.parse(metadata) is None


def test_only_a_mark_that_names_another_cluster_is_of_another_cluster():
    """Where one of the two is not known, a topic that was created again must be noticed."""
    named, unnamed = TopicMark(UUID(int=1), "here"), TopicMark(UUID(int=1))
    assert named.is_of_other_cluster("there")
    assert not named.is_of_other_cluster("here")
    assert not named.is_of_other_cluster(None)
    assert not unnamed.is_of_other_cluster("here")
