"""What is followed, and what is asked of it."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest

from gateway.cli.tail.target import StreamQuery, Target

TOKEN = "1uF5G6BrAOhUmLWMKB1azr6JoweV-tXDCBBDBF_GDrxATv"


@pytest.mark.parametrize(
    ("text", "scheme", "place", "path"),
    [
        ("http://a:80/events/x", "http", "a:80", "/events/x"),
        ("https://a", "https", "a", "/"),
        ("HTTP://a/x", "http", "a", "/x"),
        ("orders", "", "orders", ""),
        ("orders,payments.v2", "", "orders,payments.v2", ""),
    ],
)
def test_an_address_or_topics_are_understood(text, scheme, place, path):
    target = Target.parse(text)
    assert (target.scheme, target.location, target.path) == (scheme, place, path)


@pytest.mark.parametrize(
    "text", ["", "ftp://a/x", "http:///x", "http://a:0/x", "ws://a/x", "a:80/x", "a,,b", "a b"]
)
def test_what_is_neither_is_refused(text):
    with pytest.raises(ValueError):
        Target.parse(text)


def test_credentials_are_not_shown():
    assert Target.parse("http://user:secret@a:1/x").display_name == "a:1"


def test_what_an_address_asks_for_counts_as_an_option_and_an_option_beats_it():
    query = Target.parse("http://a/x?from=earliest&until=10&filter=key=a&y=").query
    assert query == StreamQuery("earliest", None, None, 10, (("filter", "key=a"), ("y", "")))
    query = query.with_start("-5m").with_end("latest").with_selection(["/n>=1", "/n<2"], "/id")
    assert parse_qsl(query.encode(None), keep_blank_values=True) == [
        ("filter", "key=a"), ("y", ""), ("filter", "/n>=1"), ("filter", "/n<2"),
        ("fields", "/id"), ("from", "-5m"), ("until", "latest"),
    ]  # fmt: skip


def test_a_position_is_told_from_a_time_and_beats_it():
    assert StreamQuery().with_start(TOKEN) == StreamQuery(position=TOKEN)
    for time in ("live", "earliest", "-5m", "2026-01-01T00:00:00Z", "20260101T000000-0500"):
        assert StreamQuery().with_start(time) == StreamQuery(start=time)
    assert StreamQuery.parse(f"lastEventId={TOKEN}&from=live") == StreamQuery("live", TOKEN)
    assert StreamQuery.parse(f"lastEventId={TOKEN}").with_start("live") == StreamQuery("live", None)


def test_where_to_begin_is_not_asked_again_once_there_is_a_position():
    query = StreamQuery.parse("from=-5m&until=latest")
    assert query.encode(None) == "from=-5m&until=latest"
    assert query.encode(TOKEN) == "until=latest"


def test_a_count_is_ours_to_count_for_it_is_of_all_connections():
    assert StreamQuery().with_end("10") == StreamQuery(count=10)
    assert StreamQuery().with_end("10").encode(None) == ""
