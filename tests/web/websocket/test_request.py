from __future__ import annotations

import json

from gateway.web.routing.messages import (
    ChangeMessage,
    SubscribeMessage,
    build_request,
    build_selection_query,
    build_target,
    merge_query,
    parse_target,
)


def build_subscribe(**members: object) -> SubscribeMessage:
    return SubscribeMessage.model_validate({"type": "subscribe", "id": "a", **members})


def test_members_of_a_message_beat_the_query_of_its_path():
    path, query = build_target(
        build_subscribe(path="/orders?from=live&key=1&key=2", **{"from": "earliest"})
    )
    assert path == "/orders"
    assert query == [("key", "1"), ("key", "2"), ("from", "earliest")]


def test_a_credit_of_none_at_all_is_one():
    assert dict(build_target(build_subscribe(path="/orders", credit=0))[1]) == {"credit": "0"}


def test_a_filter_keeps_the_digits_of_its_numbers():
    large = 2**70
    query = build_selection_query(build_subscribe(path="/orders", filter={"/id": large}))
    assert json.loads(query["filter"]) == {"/id": large}


def test_what_is_null_is_taken_back_and_what_is_absent_stays():
    change = ChangeMessage.model_validate({"type": "change", "filter": None, "fields": []})
    assert build_selection_query(change) == {"filter": "", "fields": ""}
    assert build_selection_query(ChangeMessage.model_validate({"type": "change"})) == {}


def test_what_is_told_takes_the_place_of_all_under_its_name():
    assert merge_query([("key", "1"), ("a", "b"), ("key", "2")], {"key": "3"}) == [
        ("a", "b"), ("key", "3")
    ]  # fmt: skip


def test_a_query_may_have_names_without_a_text():
    assert parse_target("/orders?until=&from=live") == (
        "/orders",
        [("until", ""), ("from", "live")],
    )


def test_a_request_of_a_path_and_a_query_says_nothing_else():
    request = build_request("/orders", [("a", "b c"), ("a", "d")])
    assert request.scope["type"] == "http"
    assert (request.url.path, request.query_params.getlist("a")) == ("/orders", ["b c", "d"])
    assert not request.headers
