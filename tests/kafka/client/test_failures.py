from __future__ import annotations

import ssl

import pytest
from aiokafka import errors as kafka_errors

from gateway.core.log.recovery import Cause
from gateway.kafka.client.failures import cause_from_exception, format_error


def build_closed_error(cause: BaseException) -> BaseException:
    """As aiokafka tells that a connection ended."""
    error = kafka_errors.KafkaConnectionError("Connection at b:9092 closed")
    error.__cause__ = cause
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


def test_the_innermost_reason_is_said():
    assert (
        format_error(build_closed_error(ConnectionResetError("reset by peer"))) == "reset by peer"
    )
    assert format_error(TimeoutError()) == "TimeoutError"
