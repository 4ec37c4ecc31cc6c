from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.config.sections.sidecar import Consumer
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.consumer.instance_options import (
    InstanceOptions,
    build_base_uri,
    compile_topic_pattern,
)
from gateway.sidecar.http.status import StatusError


@pytest.mark.parametrize(
    "body",
    [
        {"autoOffsetReset": "earliest", "autoCommitEnable": "false", "responseMinBytes": 7},
        {"auto.offset.reset": "earliest", "auto.commit.enable": False, "fetch.min.bytes": "7"},
        {"auto_offset_reset": "earliest", "enable_auto_commit": "False", "response_min_bytes": 7},
    ],
)
def test_a_field_means_the_same_in_every_spelling(body):
    wishes = InstanceOptions.from_body(body, Consumer())
    assert (wishes.auto_offset_reset, wishes.auto_commit, wishes.min_bytes) == (
        "earliest",
        False,
        7,
    )


def test_missing_options_are_those_of_the_section():
    wishes = InstanceOptions.from_body(
        {"format": None, "name": None}, Consumer(autoOffsetReset="none")
    )
    assert (wishes.auto_offset_reset, wishes.name, wishes.format) == ("none", "", None)
    assert (wishes.auto_commit, wishes.min_bytes, wishes.timeout_s) == (True, 1, 1.0)


def test_formats_are_names_or_numbers():
    wishes = InstanceOptions.from_body(
        {"format": 2, "keyFormat": "string", "valueFormat": "text"}, Consumer()
    )
    assert (wishes.format, wishes.key_format) == (
        SerializationFormat.JSON,
        SerializationFormat.STRING,
    )
    assert wishes.value_format is SerializationFormat.STRING


def test_times_are_milliseconds_and_bounded_and_minus_one_is_no_minimum():
    wishes = InstanceOptions.from_body(
        {"consumer.request.timeout.ms": "999999999", "fetch.min.bytes": -1}, Consumer()
    )
    assert (wishes.timeout_s, wishes.min_bytes) == (300.0, 1)


@pytest.mark.parametrize(
    "body",
    [
        {"name": "a/b"},
        {"name": ".."},
        {"format": "xml"},
        {"fetch.min.bytes": -2},
        {"fetch.min.bytes": True},
        {"requestWaitMs": "soon"},
        {"autoOffsetReset": "begin"},
    ],
)
def test_the_error_names_the_invalid_field(body):
    (field,) = body
    with pytest.raises(StatusError, match=field):
        InstanceOptions.from_body(body, Consumer())


@pytest.mark.parametrize("text", ["orders-.*", "(a|b)?-[0-9]+", "x{2,3}", "orders"])
def test_patterns_that_are_matched_in_no_time_are_taken(text):
    assert compile_topic_pattern(text).pattern == text


@pytest.mark.parametrize(
    "text", ["(a+)+", "(?:.?){40}!", "(a*b?)*c", ".*.*.*.*", "(?:x{1,40}){1,40}", "(", "a" * 201]
)
def test_patterns_that_could_take_hours_are_refused(text):
    with pytest.raises(StatusError, match="topic_pattern"):
        compile_topic_pattern(text)


@pytest.mark.parametrize(
    "text",
    [
        ".?" * 30 + "!", "a{0,9}" * 30, "(a|ab|b)*!", "(a+)+", ".*" * 4, ".*.*.*!",
        ".*.*" + "(?:.|..)" * 4 + "(?=.)" * 24 + "!", ".*.*" + "." * 20 + "!", r"(.*).*\1\1!",
    ],
)  # fmt: skip
def test_a_pattern_that_could_be_tried_for_ever_is_refused(text: str):
    """`.?` thirty times took minutes for one name, and the loop of everybody with it. `.*` three
    times took 1.5 ms for each of thousands of names, and many steps behind two of them 0.2 s."""
    with pytest.raises(StatusError):
        compile_topic_pattern(text)


@pytest.mark.parametrize(
    "text",
    ["orders-.*", ".*a.*b.*", "[a-z]+-(eu|us)-[a-z]+", r".*\.orders\..*\.v1", "t[0-9]{3}", "x?y"],
)
def test_a_pattern_of_names_is_taken(text: str):
    assert compile_topic_pattern(text).pattern == text


def build_request(**headers: str) -> Request:
    raw = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
    scope = {"type": "http", "scheme": "http", "path": "/", "query_string": b"", "headers": raw}
    return Request({**scope, "server": ("10.0.0.1", 81)})


PATH = "/consumers/g/instances/i"


@pytest.mark.parametrize(
    ("headers", "begins"),
    [
        ({"host": "here:8080"}, "http://here:8080"),
        ({}, "http://10.0.0.1:81"),
        ({"host": "a b"}, "http://10.0.0.1:81"),
        ({"host": "h", "forwarded": "host=out:443;proto=https, host=in"}, "https://out:443"),
        ({"host": "h", "forwarded": 'for=1.2.3.4;host="[::1]:443"'}, "http://[::1]:443"),
        ({"host": "h", "x_forwarded_host": "out, in", "x_forwarded_proto": "https"}, "https://out"),
        ({"host": "h", "forwarded": "host=out;proto=mqtt"}, "http://out"),
        ({"host": "h", "x_forwarded_path": "/bridge/consumers/g"}, "http://h/bridge"),
        ({"host": "h", "x_forwarded_prefix": "/bridge/"}, "http://h/bridge"),
        ({"host": "h", "x_forwarded_host": "bad/host"}, "http://h"),
        ({"host": "h", "x_forwarded_path": "/<x>/consumers/g"}, "http://h"),
    ],
)
def test_the_base_uri_is_what_the_client_asked(headers, begins):
    assert build_base_uri(build_request(**headers), None, "g", "i") == begins + PATH


def test_the_configured_one_beats_all_and_names_are_quoted():
    uri = build_base_uri(build_request(host="h"), "https://this.example/", "a group", "i")
    assert uri == "https://this.example/consumers/a%20group/instances/i"
