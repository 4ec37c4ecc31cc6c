"""Lines as they are written, and which are."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from gateway.telemetry import logs
from gateway.telemetry.logs import log_context

log = logging.getLogger("gateway.kafka.fetch.broker_fetch_loop")
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhZGEifQ.Sfl-KxwRJSMeKKF2QT4"


@pytest.fixture
def out(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    """What is logged; all is as it was after the test."""
    root = logging.getLogger()
    level, handlers = root.level, list(root.handlers)
    uvicorn_loggers = [logging.getLogger(name) for name in ("uvicorn", "uvicorn.error")]
    levels = [each.level for each in uvicorn_loggers]
    for each in uvicorn_loggers:  # a server that another test ran here may have set them
        each.setLevel(logging.NOTSET)
        monkeypatch.setattr(each, "propagate", True)
    yield StringIO()
    for each, level_before in zip(uvicorn_loggers, levels, strict=True):
        each.setLevel(level_before)
    logs.set_levels("info", {})
    root.handlers[:] = handlers
    root.setLevel(level)


def objects(out: StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_json_is_an_object_a_line_with_what_it_is_about_as_members(out: StringIO):
    logs.configure("json", stream=out, worker=2)
    with log_context(route="/events/{c}", stream=7, trace=None):
        log.info("FETCH resumed %s", "it", extra={"topic": "orders", "partition": 3})
    (line,) = objects(out)
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "info",
        "logger": "gateway.kafka.fetch.broker_fetch_loop",
        "message": "FETCH resumed it",
        "worker": 2,
        "route": "/events/{c}",
        "stream": 7,
        "topic": "orders",
        "partition": 3,
    }


def test_the_lines_about_a_start_are_of_the_format_of_the_log(out, capsys):
    """They were text among JSON, which those who read a container's log could not parse."""
    logs.configure("json", "error", stream=out, worker=2)
    logs.announce("listening on http://127.0.0.1:8080")
    line = json.loads(capsys.readouterr().out)
    assert line["message"] == "listening on http://127.0.0.1:8080"
    assert (line["level"], line["logger"], line["worker"]) == ("info", "gateway", 2)
    logs.configure("console", "error", stream=out)
    logs.announce("listening on http://127.0.0.1:8080")
    assert capsys.readouterr().out == "listening on http://127.0.0.1:8080\n"


@pytest.mark.parametrize("format", ["console", "json"])
def test_a_logger_whose_name_has_error_is_shown_by_another(out: StringIO, format: Any):
    """`INFO uvicorn.error: Started server process` read like an error of each start."""
    logs.configure(format, stream=out)
    logging.getLogger("uvicorn.error").info("Started server process [7]")
    assert "uvicorn" in out.getvalue() and "uvicorn.error" not in out.getvalue()


def test_a_traceback_and_a_line_break_stay_within_their_object(out: StringIO):
    logs.configure("json", stream=out)
    try:
        raise ValueError("a\nb")
    except ValueError:
        log.exception("it\nfailed")
    (line,) = objects(out)
    assert line["message"] == "it\nfailed"
    assert line["error"].startswith("Traceback") and line["error"].endswith("ValueError: a\nb")


def test_the_console_keeps_the_phrases_and_says_what_they_are_about_behind_them(out: StringIO):
    logs.configure("console", "info", {"kafka": "debug"}, stream=out, worker=3)
    phrase = "FETCH reconnect in %.3fs topic=%s partition=%s cause=%s"
    with log_context(stream=7):
        log.debug(phrase, 0.4, "orders", 3, "timeout")
    log.debug("partition ready after %.3fs", 0.2)
    first, second = out.getvalue().splitlines()
    text = "FETCH reconnect in 0.400s topic=orders partition=3 cause=timeout [stream=7]"
    assert first.endswith(f"DEBUG worker 3 gateway.kafka.fetch.broker_fetch_loop: {text}")
    assert second.endswith("gateway.kafka.fetch.broker_fetch_loop: partition ready after 0.200s")


@pytest.mark.parametrize("format", ["console", "json"])
def test_no_secret_is_in_any_part_of_a_line(out: StringIO, format: Any):
    logs.configure(format, stream=out)
    with log_context(route=f"/a?token={JWT}"):
        try:
            raise ValueError(f"Bearer {JWT}")
        except ValueError:
            log.exception("GET /events?token=s3cret&x=%s", JWT, extra={"topic": JWT})
    assert "eyJ" not in out.getvalue() and "s3cret" not in out.getvalue()
    assert "GET /events?token=***" in out.getvalue()


def levels(name: str) -> str:
    return logging.getLevelName(logging.getLogger(name).getEffectiveLevel()).lower()


def test_levels_of_rooms_and_libraries_can_be_changed_at_any_time(out: StringIO):
    logs.configure(level="warning", levels={"kafka": "debug", "uvicorn": "error"}, stream=out)
    assert levels("gateway.kafka.fetch.broker_fetch_loop") == "debug"
    assert levels("gateway.web.app.app") == "warning"
    assert levels("uvicorn.error") == "error"
    assert logs.get_levels() == {
        "": "warning", "aiokafka": "warning", "httpx": "warning", "kafka": "debug",
        "uvicorn": "error",
    }  # fmt: skip
    logs.set_levels("info", {"hub": "debug"})
    assert (levels("gateway.kafka.fetch.broker_fetch_loop"), levels("gateway.hub.fanout.hub")) == (
        "info",
        "debug",
    )
    assert levels("uvicorn.error") == "info"


def test_of_the_names_that_cover_a_logger_the_longest_decides(out: StringIO):
    logs.configure(level="info", levels={"kafka": "error", "kafka.fetch": "debug"}, stream=out)
    assert levels("gateway.kafka.fetch.broker_fetch_loop") == "debug"
    assert levels("gateway.kafka.client.metadata") == "error"


def test_a_level_that_is_none_changes_nothing(out: StringIO):
    logs.configure(levels={"kafka": "debug"}, stream=out)
    before = logs.get_levels()
    with pytest.raises(ValueError, match="'loud' is no level; use one of debug, info"):
        logs.set_levels("info", {"kafka": "loud"})
    assert logs.get_levels() == before


def test_lines_are_counted_by_level_and_written_once_however_often_it_is_configured(out: StringIO):
    logs.configure(stream=out)
    logs.configure(stream=out)
    before = logs.line_counts["warning"]
    log.warning("once")
    assert out.getvalue().count("once") == 1
    assert logs.line_counts["warning"] == before + 1


FORGED = "a\r\n2026-11-21 10:00:00,000 INFO gateway.web.admin: admin: revoke"
ODD = [
    *("\n", "\r", "\x1b[2J", "\x00", "\x7f", "\x85", "\x9b", "\u2028", "\u2029", "\u202e"),
    *("\u2066", "\u200f", "\ufeff", "\U000e0041", "\x0b", "\x0c", "\x1c"),
]


@pytest.mark.parametrize("format", ["console", "json"])
@pytest.mark.parametrize("odd", [FORGED, *ODD])
def test_what_a_client_writes_stays_within_its_line(out: StringIO, format: Any, odd: str):
    """A path with %0a or %1b in it forged lines of the log, those of operators among them."""
    logs.configure(format, stream=out)
    library = logging.getLogger("aiokafka")  # uvicorn's may have handlers of their own by now
    for each in (log, library):
        with log_context(route=odd):
            each.warning("stream asked url=%s", odd, extra={"topic": odd})
    text = out.getvalue()
    assert len(text.splitlines()) == text.count("\n") == 2
    assert all(char == "\n" or char.isprintable() for char in text)
    if format == "json":
        assert {line["message"] for line in objects(out)} == {f"stream asked url={odd}"}


@pytest.mark.parametrize("format", ["console", "json"])
def test_half_a_surrogate_pair_is_written_as_text(out: StringIO, format: Any):
    """No stream can encode one. It is handed to our handler alone: pytest keeps what is logged, and
    cannot send it to its other processes."""
    logs.configure(format, stream=out)
    (ours,) = [each for each in logging.getLogger().handlers if getattr(each, "stream", 0) is out]
    ours.handle(logging.LogRecord("gateway", logging.INFO, "", 0, "path %s", ("\ud800",), None))
    assert out.getvalue().encode().count(b"\\ud800") == 1


def test_no_line_of_a_traceback_looks_like_one_of_the_log(out: StringIO):
    logs.configure(stream=out)
    try:
        raise ValueError(f"{FORGED} \x1b[31m")
    except ValueError:
        log.exception("it failed", stack_info=True)
    first, *others = out.getvalue().removesuffix("\n").split("\n")
    assert first.endswith("it failed")
    assert others[0] == "  Traceback (most recent call last):"
    assert all(line.startswith("  ") and line.isprintable() for line in others)


def test_letters_of_all_languages_are_as_they_were(out: StringIO):
    logs.configure(stream=out)
    log.warning("Größe 10 € \u05e9\u05dc\u05d5\u05dd \N{GRINNING FACE}")
    assert "Größe 10 € \u05e9\u05dc\u05d5\u05dd \N{GRINNING FACE}" in out.getvalue()


@pytest.mark.needs("process")
def test_an_error_that_nobody_caught_is_an_object(tmp_path: Path):
    """Its traceback was text, of many lines, in a log that is JSON."""
    program = (
        "import threading, warnings\n"
        "from gateway.telemetry import logs\n"
        "logs.configure('json')\n"
        "logs.capture_stray_lines()\n"
        "warnings.warn('a warning of Python')\n"
        "thread = threading.Thread(target=lambda: 1 / 0)\n"
        "thread.start()\n"
        "thread.join()\n"
        "raise ValueError('at the end')\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert ended.returncode == 1
    warned, divided, last = [json.loads(line) for line in ended.stderr.splitlines()]
    assert "a warning of Python" in warned["message"] and "ZeroDivisionError" in divided["error"]
    assert "at the end" in last["error"] and last["level"] == "critical"


@pytest.mark.needs("process")
def test_a_line_is_escaped_without_a_free_descriptor():
    """The codec was loaded by the first line that needed it, and that line was lost."""
    script = (
        "import resource\n"
        "from gateway.telemetry.logs import escape_line\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))\n"
        "print(escape_line('\\x1b[2J'))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("\\x1b[2J\n", "")
