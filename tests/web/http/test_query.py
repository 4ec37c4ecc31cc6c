"""What a request asks for, as tables: where to start, where to end, which token to go on from."""

from __future__ import annotations

from typing import Literal

import pytest
from starlette.requests import Request

from gateway.core.token.resume_token import TokenWriter, TopicPositions, seal_token
from gateway.errors import RequestError, TokenCorrupt
from gateway.hub.reads.position_resolver import StreamStart
from gateway.web.http import query
from gateway.web.http.query import is_event_source, parse_start_request

NOW = 1_800_000_000_000  # 2027-01-15T08:00:00Z, in ms
HOUR = 3_600_000
TOKEN = seal_token(
    TokenWriter("c", [TopicPositions("t", "", [5], [0])]).to_text(), b"view-"
).decode()
OTHER = seal_token(
    TokenWriter("c", [TopicPositions("t", "", [6], [0])]).to_text(), b"view-"
).decode()
BROWSER = {"accept": "text/event-stream", "sec-fetch-mode": "cors"}


@pytest.fixture(autouse=True)
def stopped_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(query, "now_ms", lambda: NOW)


def build_request(target: str = "", **headers: str) -> Request:
    named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    return Request({"type": "http", "query_string": target.encode(), "headers": named})


def parse_start(
    target: str,
    default: Literal["live", "earliest"] = "live",
    history: query.History = "all",
    **headers: str,
) -> StreamStart:
    return parse_start_request(
        build_request(target, **headers), default=default, history=history
    ).start


@pytest.mark.parametrize(
    ("target", "origin"),
    [
        ("", "live"),
        ("from=", "live"),
        ("from=live", "live"),
        ("from=latest", "live"),
        ("from=earliest", "earliest"),
        ("from=-5m", NOW - 300_000),
        ("from=-250ms", NOW - 250),
        ("from=-2h", NOW - 2 * HOUR),
        ("from=-7d", NOW - 7 * 24 * HOUR),
        ("from=-99999d", 0),
        ("from=2027-01-15T07:00:00Z", NOW - HOUR),
        ("from=2027-01-15T09:00:00+02:00", NOW - HOUR),  # a browser's + is a space by now
        ("from=1795122400000", 1_795_122_400_000),  # was read as a day of 1795: everything
        ("from=2027-01-15T08:04:59Z", "live"),  # the clocks of clients differ
    ],
)
def test_where_to_start(target: str, origin: object):
    assert parse_start(target) == StreamStart(origin=origin)


@pytest.mark.parametrize(
    ("target", "until", "count"),
    [
        ("", None, None),
        ("until=", None, None),
        ("until=latest", "latest", None),
        ("until=1", None, 1),
        ("until=100000", None, 100_000),
        ("until=-5m", NOW - 300_000, None),
        ("until=2027-01-15T07:00:00Z", NOW - HOUR, None),
        ("until=1795122400000", 1_795_122_400_000, None),
        ("until=2027-01-15T08:04:59Z", "latest", None),
    ],
)
def test_where_to_end(target: str, until: object, count: int | None):
    assert parse_start(target) == StreamStart(until=until, max_records=count)


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("from=yesterday", r"\?from=yesterday is no time; use live, earliest, -5m, one such as"),
        ("from=5m", "is no time"),
        ("from=-5y", "is no time"),
        ("from=-5", "is no time"),
        ("from=12", "is no time"),
        ("from=1969-12-31", "lies before 1970; use live"),
        ("from=2027-01-15T09:00:00Z", "lies in the future; leave it out"),
        ("from=live&from=earliest", r"\?from= is given 2 times; give it once"),
        ("until=soon", r"\?until=soon is no time; use latest, a number of records, -5m, one such"),
        ("until=0", "asks for no record at all"),
        ("until=-1", "is no time"),
        ("until=1.5", "is no time"),
        ("until=9999999999999", "lies in the future"),
        ("until=2030-01-01", "lies in the future; end at latest"),
        ("until=1&until=2", "is given 2 times"),
        (f"lastEventId={TOKEN}&lastEventId={TOKEN}", "is given 2 times"),
    ],
)
def test_what_is_not_understood_is_a_400_that_says_what_is(target: str, said: str):
    with pytest.raises(RequestError, match=said) as refused:
        parse_start(target)
    assert refused.value.status == 400
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize("name", ["from", "until"])
def test_a_long_text_is_not_sent_back_whole(name: str):
    with pytest.raises(RequestError) as refused:
        parse_start(f"{name}={'x' * 5000}")
    assert len(str(refused.value)) < 200


@pytest.mark.parametrize(
    ("history", "default", "origin"),
    [
        ("all", "live", "live"),
        ("all", "earliest", "earliest"),
        (3600.0, "live", "live"),
        (3600.0, "earliest", NOW - HOUR),
        ("none", "live", "live"),
        ("none", "earliest", "live"),
    ],
)
def test_a_default_goes_back_as_far_as_the_route_lets_anyone(history, default, origin):
    assert parse_start("", default=default, history=history).origin == origin


@pytest.mark.parametrize(
    ("history", "target", "origin"),
    [
        ("none", "from=live", "live"),
        (3600.0, "from=earliest", NOW - HOUR),
        ("none", "from=earliest", "live"),
        (3600.0, "from=-1h", NOW - HOUR),
        (3600.0, "from=2027-01-15T06:59:57Z", NOW - HOUR - 3000),  # clocks differ a little
        ("all", "from=1970-01-02", 24 * HOUR),
    ],
)
def test_history_that_the_route_has_may_be_asked_for(history, target: str, origin: object):
    assert parse_start(target, history=history).origin == origin


@pytest.mark.parametrize(
    ("history", "target", "said"),
    [
        (3600.0, "from=-2h", "this route goes back 3600 s; ask for less of it"),
        (3600.0, "from=2027-01-15T06:59:54Z", "goes back 3600 s"),
        ("none", "from=-1s", "does not go back at all"),
    ],
)
def test_more_history_than_the_route_has_is_a_403(history, target: str, said: str):
    with pytest.raises(RequestError, match=said) as refused:
        parse_start(target, history=history)
    assert refused.value.status == 403


@pytest.mark.parametrize(
    ("target", "headers", "offset"),
    [
        (f"lastEventId={TOKEN}", {}, 5),
        ("", {"last_event_id": TOKEN}, 5),
        (f"lastEventId={OTHER}", {"last_event_id": TOKEN}, 5),
        (f"lastEventId={TOKEN}", {"last_event_id": ""}, 5),
    ],
    ids=["query", "header", "the header beats the query", "an empty header is none"],
)
def test_which_token_to_go_on_from(target: str, headers: dict[str, str], offset: int):
    token = parse_start(target, **headers).token
    assert token is not None
    assert token.topics[0].offsets == [offset]


@pytest.mark.parametrize(("history", "reach"), [("none", 0.0), (3600.0, 3600.0), ("all", None)])
def test_a_token_is_read_whatever_the_history_of_the_route_and_held_to_that_later(history, reach):
    """Its places tell nothing of when they were: the hub finds out."""
    read = parse_start(f"lastEventId={TOKEN}", history=history)
    assert read.token is not None
    assert read.max_age == reach


@pytest.mark.parametrize(
    ("history", "origin"), [("none", "live"), (3600.0, NOW - HOUR), ("all", "earliest")]
)
def test_who_asked_for_more_and_cannot_hear_of_it_begins_at_the_limit(history, origin):
    assert query.get_oldest_origin(history) == origin


def test_a_count_and_a_token_go_together():
    given = parse_start("until=3", last_event_id=TOKEN)
    assert (given.max_records, given.token is not None) == (3, True)


DAMAGED = TOKEN[:-1] + ("A" if TOKEN[-1] != "A" else "B")


@pytest.mark.parametrize(
    ("target", "headers"),
    [
        ("", {"last_event_id": DAMAGED}),
        ("", {"last_event_id": TOKEN[:-3]}),
        ("", {"last_event_id": "2" + TOKEN[1:]}),
        ("", {"last_event_id": "*"}),
        (f"lastEventId={DAMAGED}", {}),
        ("lastEventId=%C3%A4", {}),
    ],
)
def test_a_token_that_cannot_be_read_is_refused_with_what_to_do(target: str, headers):
    with pytest.raises(TokenCorrupt, match=r"connect without"):
        parse_start_request(build_request(target, **headers), default="live", history="all")


@pytest.mark.parametrize(
    ("target", "headers"),
    [("", {"last-event-id": DAMAGED}), (f"lastEventId={DAMAGED}", {})],
)
def test_an_event_source_that_brings_such_a_token_is_served_and_told(target: str, headers):
    """Any answer but 200 would end it for good, and nobody could take the token from it."""
    request = build_request(target, **BROWSER, **headers)
    given = parse_start_request(request, default="earliest", history="all")
    assert given.start == StreamStart(origin="earliest")
    assert isinstance(given.token_error, TokenCorrupt)


@pytest.mark.parametrize(
    ("headers", "browser"),
    [
        (BROWSER, True),
        ({"accept": "text/event-stream", "user-agent": "Mozilla/5.0"}, True),
        ({"accept": "text/event-stream", "user-agent": "python-httpx/0.28"}, False),
        ({"accept": "*/*", "sec-fetch-mode": "navigate", "user-agent": "Mozilla/5.0"}, False),
        ({"accept": "*/*", "user-agent": "curl/8"}, False),
        ({}, False),
    ],
)
def test_who_is_an_event_source(headers: dict[str, str], browser: bool):
    assert is_event_source(build_request("", **headers)) is browser


@pytest.mark.parametrize(
    ("target", "seconds"),
    [
        ("", None),
        ("wait=", None),
        ("wait=0", 0),
        ("wait=0s", 0),
        ("wait=30s", 30),
        ("wait=30", 30),
        ("wait=250ms", 0.25),
        ("wait=5m", 300),
    ],
)
def test_how_long_to_wait_for_a_page(target: str, seconds: float | None):
    assert query.get_wait(build_request(target)) == seconds


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("wait=301s", r"\?wait=301s is longer than 5m"),
        ("wait=1h", "is not understood; use 30s, 500ms, 5m or 0"),
        ("wait=-1s", "is not understood"),
        ("wait=1.5s", "is not understood"),
        ("wait=9999999999", "is not understood"),
        ("wait=1s&wait=2s", "is given 2 times"),
    ],
)
def test_a_wait_that_is_none_is_a_400(target: str, said: str):
    with pytest.raises(RequestError, match=said):
        query.get_wait(build_request(target))


@pytest.mark.parametrize(
    ("target", "wanted"),
    [
        ("", False),
        ("positions", True),
        ("positions=", True),
        ("positions=true", True),
        ("positions=1", True),
        ("positions=FALSE", False),
        ("positions=0", False),
    ],
)
def test_who_asks_for_positions(target: str, wanted: bool):
    assert query.wants_positions(build_request(target)) is wanted


@pytest.mark.parametrize("target", ["positions=yes", "positions=1&positions=0"])
def test_positions_that_are_neither_wanted_nor_not_are_a_400(target: str):
    with pytest.raises(RequestError, match=r"\?positions="):
        query.wants_positions(build_request(target))
