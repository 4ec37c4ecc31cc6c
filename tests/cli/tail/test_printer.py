"""Records as lines; nothing in them commands a terminal."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cli.output import COLOURS, NO_COLOURS, escape_controls, paint_json, select_colours
from gateway.cli.tail.printer import Printer
from gateway.cli.tail.source import StreamEvent
from gateway.cli.tail.target import OutputFormat
from gateway.core.log.record import Record, TopicPartition
from gateway.formats import create_format

EVIL = '\x1b]0;owned\x07\x9b31m\u202egnp.exe\u2066\x7f\r\n{"'
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def item(value: bytes | None, key: bytes | None = b"ada", format: str = "envelope") -> StreamEvent:
    tp = TopicPartition("orders", 3)
    record = Record(tp, 1042, 1043, 0, key, value, ())
    name, data = create_format(format)(record)
    return StreamEvent(name or "message", data)


def printer(
    style: OutputFormat, *, tty: bool = False, topics: tuple[str, ...] = ("orders",)
) -> Printer:
    made = Printer(style, tty=tty)
    made.start_stream(list(topics))
    return made


def line(style: OutputFormat, item: StreamEvent, **options) -> str:
    return printer(style, **options).format_line(item).decode()


def test_pretty_tells_time_place_key_and_value():
    text = line(OutputFormat.PRETTY, item(b'{\n  "n": 1.0\n}'))
    assert re.fullmatch(r'\d\d-\d\d \d\d:\d\d:\d\d\.000 3:1042 ada \{ "n": 1\.0 \}\n', text)


def test_pretty_names_the_topic_where_there_are_several():
    assert " orders/3:1042 " in line(OutputFormat.PRETTY, item(b"1"), topics=("orders", "payments"))


@pytest.mark.parametrize(
    ("value", "key", "shown"),
    [
        (None, b"ada", "ada (deleted)"),
        (b"text", None, "- text"),
        (b"", b"", '"" ""'),
        (b"\xff", b"\xfe", "base64:/g== base64:/w=="),
        (b"a\nb", b"k\tl", "k\\u0009l a\\u000ab"),
    ],
)
def test_pretty_shows_every_kind_of_key_and_value(value, key, shown):
    assert line(OutputFormat.PRETTY, item(value, key)).endswith(f" 3:1042 {shown}\n")


def test_pretty_has_of_a_value_only_the_value():
    assert line(OutputFormat.PRETTY, item(b"text", format="value")) == "text\n"
    assert line(OutputFormat.PRETTY, item(None, format="value")) == "ada (deleted)\n"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{"n": 1.0}', '{"n": 1.0}\n'),
        (b'{\r\n "n": 100000000000000000000.10}', '{   "n": 100000000000000000000.10}\n'),
        (b"text\nmore", '"text\\nmore"\n'),
        (b"NaN", '"NaN"\n'),
        (b"", '""\n'),
        (None, '{"@delete":{"key":"ada"}}\n'),
    ],
)
def test_json_is_a_line_each_and_as_it_was_written(value, shown):
    assert line(OutputFormat.JSON, item(value, format="value")) == shown


def test_json_of_an_envelope_is_the_envelope():
    assert json.loads(line(OutputFormat.JSON, item(b"x")))["offset"] == 1042
    assert json.loads(line(OutputFormat.JSON, item(None)))["@delete"]["offset"] == 1042


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b'{\n"n": 100000000000000000000.10}', b'{ "n": 100000000000000000000.10}'),
        (b" [1]", b" [1]"),
        (b"{1}", b'"{1}"'),
        (b"null", b'"null"'),
        (b"1", b'"1"'),
    ],
)
def test_json_of_an_envelope_has_objects_and_arrays_as_json(value, shown):
    """`gateway tail orders | jq .value.total` had to be `.value | fromjson | .total`."""
    assert b'"value":' + shown in printer(OutputFormat.JSON).format_line(item(value))


@pytest.mark.parametrize("value", [b"a\nb\x1b\x00", b"\xff\xfe", "ä".encode(), b""])
def test_value_is_exact_to_the_byte_of_an_envelope(value):
    assert printer(OutputFormat.VALUE).format_line(item(value)) == value + b"\n"


def test_value_has_nothing_of_a_tombstone():
    assert (
        line(OutputFormat.VALUE, item(None))
        == line(OutputFormat.VALUE, item(None, format="value"))
        == ""
    )


@pytest.mark.parametrize(
    "value",
    [
        b'{"topic":"orders"}',
        item(b"x").data.replace(b'"orders"', b'"elsewhere"'),
        b'{"topic":"orders","partition":',
    ],
)
def test_what_only_looks_like_an_envelope_is_a_value(value):
    assert printer(OutputFormat.VALUE).format_line(item(value, format="value")) == value + b"\n"


@pytest.mark.parametrize("style", OutputFormat)
@pytest.mark.parametrize("format", ["value", "envelope"])
@pytest.mark.parametrize("value", [EVIL, json.dumps({EVIL: EVIL}, ensure_ascii=False)])
def test_no_record_commands_a_terminal(style, format, value):
    made = Printer(style, tty=True, colours=COLOURS)
    made.start_stream(["orders"])
    text = made.format_line(item(value.encode(), EVIL.encode(), format)).decode()
    own = re.sub(r"\x1b\[\d*m", "", text)
    assert not OBEYED.search(own)
    assert "\\u009b31m" in own or "\\\\u009b31m" in own


@given(st.text())
def test_safe_text_is_what_it_was_but_for_what_is_obeyed(text):
    assert not OBEYED.search(escape_controls(text))
    assert escape_controls(escape_controls(text)) == escape_controls(text)
    if not re.search(r"[\x00-\x1f\x7f-\x9f\u061c\u200e-\u2069\ufeff\ud800-\udfff]", text):
        assert escape_controls(text) == text


@given(st.dictionaries(st.text(), st.none() | st.booleans() | st.floats(allow_nan=False)))
def test_json_made_safe_and_coloured_is_the_same_json(told):
    text = json.dumps(told, ensure_ascii=False)
    coloured = paint_json(escape_controls(text), COLOURS)
    assert json.loads(re.sub("\x1b\\[\\d*m", "", coloured)) == told


def test_colours_tell_names_strings_numbers_and_words_apart():
    text = paint_json('{"a": "b", "n": [-1.5e3, true]}', COLOURS)
    for tone, part in (("key", '"a"'), ("text", '"b"'), ("number", "-1.5e3"), ("word", "true")):
        assert f"\x1b[{COLOURS[tone]}m{part}\x1b[0m" in text


class Stream:
    def __init__(self, tty: bool) -> None:
        self.isatty = lambda: tty


@pytest.mark.parametrize(
    ("tty", "environ", "coloured"),
    [
        (True, {"TERM": "xterm"}, True),
        (True, {"NO_COLOR": ""}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colours_are_for_terminals_that_have_and_people_who_want_them(tty, environ, coloured):
    assert select_colours(Stream(tty), environ) is (COLOURS if coloured else NO_COLOURS)
