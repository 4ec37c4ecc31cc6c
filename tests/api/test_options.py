from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from gateway.api.options import build_start, build_view
from gateway.errors import TokenCorrupt

THEN = datetime(2024, 5, 1, tzinfo=UTC)


def test_a_start_is_a_word_a_time_or_a_time_back_from_now():
    assert build_start("live", None, None).origin == "live"
    assert build_start("earliest", None, None).origin == "earliest"
    assert build_start(THEN, None, None).origin == int(THEN.timestamp() * 1000)
    back = build_start(timedelta(hours=1), None, None).origin
    assert isinstance(back, int)
    assert abs(back - (time.time() - 3600) * 1000) < 60_000
    assert build_start(-timedelta(hours=1), None, None).origin == pytest.approx(back, abs=60_000)


def test_a_time_just_ahead_is_now():
    soon = datetime.now(UTC) + timedelta(minutes=4)
    assert build_start(soon, None, soon) == build_start("live", None, "latest")


def test_an_end_is_the_end_of_now_a_time_or_a_number_of_records():
    assert build_start("live", None, "latest").until == "latest"
    assert build_start("live", None, THEN).until == int(THEN.timestamp() * 1000)
    assert build_start("live", None, 10).max_records == 10


@pytest.mark.parametrize(
    ("start", "until", "says"),
    [
        ("soon", None, "start='soon' is not understood; use 'live', 'earliest', a timedelta"),
        (17, None, "start=17 is not understood"),
        (datetime(2024, 5, 1), None, "has no timezone; add one"),
        (datetime.now(UTC) + timedelta(days=1), None, "lies in the future"),
        (datetime(1969, 5, 1, tzinfo=UTC), None, "lies before 1970"),
        ("live", "end", "until='end' is not understood; use 'latest', a number or a datetime"),
        ("live", 0, "until=0 asks for no record at all"),
        ("live", True, "until=True asks for no record"),
        ("live", datetime(2024, 5, 1), "has no timezone"),
    ],
)
def test_what_cannot_be_is_refused_with_what_to_write(start: Any, until: Any, says: str):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        build_start(start, None, until)


def test_a_position_that_is_none_is_refused_at_once():
    with pytest.raises(TokenCorrupt):
        build_start("live", "nonsense", None)


def test_a_view_is_of_one_topic_or_several_each_once():
    assert build_view("a", None, ()).topics == ("a",)
    assert build_view(iter(["a", "b", "a"]), None, ()).topics == ("a", "b")
    for nothing in ("", [], ["a", ""]):
        with pytest.raises(ValueError, match="no topic is named"):
            build_view(nothing, None, ())


def test_filters_and_fields_are_those_of_every_other_client():
    view = build_view("a", [{"key": "ada"}, {"value": {"/n": {"gte": 2}}}], ["/b", "/a"])
    assert len(view.filters.filters) == 2
    assert view.fields == ("/a", "/b")
    assert build_view("a", None, "/b,/a") == build_view("a", None, ["/a", "/b"])
    with pytest.raises(ValueError, match="unknown key 'kee'; did you mean 'key'"):
        build_view("a", {"kee": "ada"}, ())
