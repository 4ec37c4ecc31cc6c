from __future__ import annotations

import socket
import ssl
from asyncio import IncompleteReadError

import pytest
from aiokafka import errors as kafka_errors

from gateway.core.log.recovery import Cause
from gateway.errors import AuthenticationFailed
from gateway.kafka.client.outages import (
    FailedAttempt,
    OptionNames,
    SecurityOptions,
    cause_from_exception,
    describe_failure,
)


def build_closed_error(cause: BaseException) -> BaseException:
    """As aiokafka tells that a connection ended."""
    error = kafka_errors.KafkaConnectionError("Connection at b:9092 closed")
    error.__cause__ = cause
    return error


def build_verification_error(code: int, message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, message)
    error.verify_code, error.verify_message = code, message
    return error


def build_tls_alert() -> ssl.SSLError:
    error = ssl.SSLError(1, "tlsv13 alert certificate required")
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    return error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (TimeoutError(), Cause.TIMEOUT),
        (ConnectionRefusedError(), Cause.CONNECTION),
        (kafka_errors.KafkaConnectionError("gone"), Cause.CONNECTION),
        (build_closed_error(ConnectionResetError()), Cause.CONNECTION),
        (kafka_errors.SaslAuthenticationFailed("no"), Cause.AUTHENTICATION),
        (kafka_errors.UnsupportedSaslMechanismError("no"), Cause.AUTHENTICATION),
        (ssl.SSLCertVerificationError("who"), Cause.AUTHENTICATION),
        (build_closed_error(build_tls_alert()), Cause.AUTHENTICATION),
        (ssl.SSLError(1, "wrong version number"), Cause.CONNECTION),
    ],
)
def test_what_was_raised_has_a_cause(error: BaseException, cause: Cause):
    assert cause_from_exception(error) is cause


BOOTSTRAP, BROKER = FailedAttempt("kafka.example"), FailedAttempt("kafka.example", False)


@pytest.mark.parametrize(
    ("error", "attempt", "text"),
    [
        (
            ConnectionRefusedError(111, "Connect call failed ('::1', 9092)"),
            BOOTSTRAP,
            "cannot be reached: connection refused; start the broker, or correct kafka.servers",
        ),
        (
            OSError(
                "Multiple exceptions: [Errno 111] Connect call failed ('::1', 9092), "
                "[Errno 111] Connect call failed ('127.0.0.1', 9092)"
            ),
            BOOTSTRAP,
            "cannot be reached: connection refused; start the broker, or correct kafka.servers",
        ),
        (
            socket.gaierror(-2, "Name or service not known"),
            BOOTSTRAP,
            "cannot be reached: its host name is unknown; correct kafka.servers",
        ),
        (TimeoutError(), FailedAttempt("kafka.example", has_answered=True), "gave no answer in"),
        (ConnectionRefusedError(111, "refused"), BROKER, "advertised.listeners"),
        (socket.gaierror(-2, "unknown"), BROKER, "advertised.listeners"),
        (build_closed_error(IncompleteReadError(b"abc", 0x48545450)), BOOTSTRAP, "an HTTP server"),
        (build_verification_error(9, "not yet valid"), BOOTSTRAP, "check the clocks"),
        (build_verification_error(23, "certificate revoked"), BOOTSTRAP, "(certificate revoked)"),
        (build_verification_error(62, "mismatch"), BROKER, "advertised.listeners"),
        (AuthenticationFailed("no token"), BOOTSTRAP, "is not connected to: no token"),
        (build_closed_error(ConnectionResetError(104, "reset")), FailedAttempt("a", True, True),
         "cannot be reached: connection reset by peer"),
    ],
)  # fmt: skip
def test_a_failure_is_a_sentence_with_what_to_do(error, attempt, text):
    assert text in describe_failure(error, attempt)


def test_a_sentence_has_no_text_of_python():
    """A login at a listener without SASL was refused by `<AIOKafkaConnection host=...>`."""
    error = kafka_errors.IllegalSaslStateError(object())
    sentence = describe_failure(error, BOOTSTRAP, SecurityOptions(mechanism="PLAIN"))
    assert "remove kafka.security.sasl" in sentence
    assert "<" not in sentence and "Error" not in sentence


def test_options_of_one_of_several_clusters_are_named_with_it():
    options = SecurityOptions(OptionNames("kafka.east"), mechanism="PLAIN")
    error = kafka_errors.SaslAuthenticationFailed("wrong")
    assert "kafka.east.security.sasl.username" in describe_failure(error, BOOTSTRAP, options)
