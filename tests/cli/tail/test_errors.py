"""Answers that are no stream."""

from __future__ import annotations

import json
import ssl

import pytest

from gateway.cli.tail.source import (
    ConnectionLost,
    StreamRefused,
    build_error,
    describe_cause,
)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_what_the_client_did_wrong_stays_wrong(status):
    error = build_error(status, {}, json.dumps({"detail": "no; do this"}).encode())
    assert isinstance(error, StreamRefused)
    assert str(error) == f"{status}: no; do this"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_waited_for(status):
    error = build_error(status, {"retry-after": "7"}, b"<html>")
    assert isinstance(error, ConnectionLost)
    assert error.was_reached and error.retry_after == 7.0


def test_a_hint_is_for_what_was_not_found():
    assert str(build_error(404, {}, b"", hint="; did you mean /x?")).endswith("; did you mean /x?")
    assert "mean" not in str(build_error(403, {}, b"", hint="; did you mean /x?"))
    body = json.dumps({"detail": "no route has this path; did you mean '/x'?"}).encode()
    assert str(build_error(404, {}, body, hint="; did you mean /x?")).count("mean") == 1
    assert str(build_error(404, {}, b"", shows_status=False)) == "Not Found"


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"{}", b'"x"', b"<html>"])
def test_an_answer_without_a_detail_is_told_by_its_phrase(body):
    assert str(build_error(404, {}, body)) == "404: Not Found"
    assert str(build_error(499, {}, body)) == "499: the response is not a stream"


def test_a_detail_does_not_command_the_terminal():
    assert "\x1b" not in str(build_error(400, {}, b'{"detail": "\\u001b[31m"}'))


def test_the_cause_is_what_the_system_said():
    wrapped = RuntimeError("all attempts failed")
    wrapped.__cause__ = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    assert describe_cause(wrapped) == "Connection refused"
    refused = ssl.SSLCertVerificationError(1, "")
    refused.verify_message = "self-signed certificate"
    assert "self-signed certificate" in describe_cause(refused) and "--cacert" in describe_cause(
        refused
    )
    assert describe_cause(RuntimeError()) == "RuntimeError"
