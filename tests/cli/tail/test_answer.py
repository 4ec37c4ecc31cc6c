"""Answers that are no stream."""

from __future__ import annotations

import json
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from gateway.cli.tail.answer import cause, refusal, retry_after
from gateway.cli.tail.item import Lost, Refused


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 451])
def test_what_the_client_did_wrong_stays_wrong(status):
    error = refusal(status, {}, json.dumps({"detail": "no; do this"}).encode())
    assert isinstance(error, Refused)
    assert str(error) == f"{status}: no; do this"


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504])
def test_what_may_pass_is_waited_for(status):
    error = refusal(status, {"retry-after": "7"}, b"<html>")
    assert isinstance(error, Lost)
    assert error.answered and error.after == 7.0


def test_a_hint_is_for_what_was_not_found():
    assert str(refusal(404, {}, b"", hint="; did you mean /x?")).endswith("; did you mean /x?")
    assert "mean" not in str(refusal(403, {}, b"", hint="; did you mean /x?"))


@pytest.mark.parametrize("body", [b"", b"\xff", b"[]", b"{}", b'"x"', b"<html>"])
def test_an_answer_without_a_detail_is_told_by_its_phrase(body):
    assert str(refusal(404, {}, body)) == "404: Not Found"
    assert str(refusal(499, {}, body)) == "499: an answer that is no stream"


def test_a_detail_does_not_command_the_terminal():
    assert "\x1b" not in str(refusal(400, {}, b'{"detail": "\\u001b[31m"}'))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(None, None), ("0", 0), ("12", 12), ("99999", 3600), ("soon", None), ("-1", None)],
)
def test_retry_after_in_seconds(text, seconds):
    assert retry_after(text) == seconds


def test_retry_after_as_a_date():
    later = datetime.now(UTC) + timedelta(seconds=100)
    found = retry_after(format_datetime(later, usegmt=True))
    assert found is not None and 50 < found <= 100
    assert retry_after("Thu, 01 Jan 1970 00:00:00 GMT") == 0


def test_the_cause_is_what_the_system_said():
    wrapped = RuntimeError("all attempts failed")
    wrapped.__cause__ = ConnectionRefusedError(111, "Connect call failed ('127.0.0.1', 1)")
    assert cause(wrapped) == "Connection refused"
    refused = ssl.SSLCertVerificationError(1, "")
    refused.verify_message = "self-signed certificate"
    assert "self-signed certificate" in cause(refused) and "--cacert" in cause(refused)
    assert cause(RuntimeError()) == "RuntimeError"
