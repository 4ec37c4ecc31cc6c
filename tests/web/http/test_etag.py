"""What is the same document, and what is another."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.core.channel.filters import Filters
from gateway.core.log.record import Record, TopicPartition
from gateway.hub.reads.view import View
from gateway.web.http.content import build_etag, build_record_id, lists_record

RECORD = Record(TopicPartition("orders", 3), 42, 7, 0, b"k", b"v")
VIEW = View(("orders",), Filters(), "value", "error")


def test_a_tag_is_of_one_record_of_one_topic():
    others = [
        RECORD._replace(tp=TopicPartition("orders", 4)),
        RECORD._replace(offset=43),
        RECORD._replace(epoch=8),
    ]
    tags = {build_etag(each, "id", VIEW) for each in (RECORD, *others)}
    assert len(tags | {build_etag(RECORD, "another id", VIEW)}) == 5
    assert build_etag(RECORD, "id", VIEW) == build_etag(RECORD._replace(value=b"w"), "id", VIEW)


def test_what_is_shown_of_it_is_in_its_tag_and_compared_all_the_same():
    place = build_record_id(RECORD, "id")
    views = [VIEW, replace(VIEW, fields=("/a",)), replace(VIEW, format="envelope")]
    tags = [build_etag(RECORD, "id", view) for view in views]
    assert len(set(tags)) == 3
    assert all(lists_record(tag, place) for tag in tags)


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ('"{}"', True),
        ('"x", "{}"', True),
        ('"{}/view"', True),
        ("*", True),
        ("{}", False),
        ('W/"{}"', False),
        ('"x"', False),
        ('"{}x"', False),
        ('"', False),
        ("", False),
    ],
)
def test_only_a_strong_tag_of_the_record_matches(condition: str, found: bool):
    place = build_record_id(RECORD, "id")
    assert lists_record(condition.format(place), place) is found
    assert not lists_record(condition.format(place), None)


def test_if_none_match_compares_weakly():
    """A write with the tag that nginx had made weak was done although it named the document."""
    place = build_record_id(RECORD, "id")
    assert lists_record(f'"x", W/"{place}"', place, weakly=True)
    assert not lists_record('W/"x"', place, weakly=True)
