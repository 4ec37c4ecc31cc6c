from __future__ import annotations

from gateway.core.error_code import ErrorCode, code_from_error
from gateway.errors import (
    AccessDenied,
    AuthenticationFailed,
    BrokerUnavailable,
    GroupFailed,
    KafkaError,
    PartitionFailed,
    UnknownTopic,
)

UNKNOWN_CODE = 12345  # of a broker that is newer than this gateway


def test_an_error_without_an_answer_has_the_code_of_kafkas_clients():
    codes = {
        BrokerUnavailable("", timeout=True): ErrorCode.REQUEST_TIMED_OUT,
        BrokerUnavailable(""): ErrorCode.NETWORK_EXCEPTION,
        AuthenticationFailed(""): ErrorCode.SASL_AUTHENTICATION_FAILED,
        AccessDenied(""): ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        UnknownTopic("", topic="orders"): ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        KafkaError(""): ErrorCode.UNKNOWN_SERVER_ERROR,
    }
    assert {error: code_from_error(error) for error in codes} == codes


def test_an_answered_error_has_the_code_of_the_broker_even_if_it_is_unknown():
    partition = PartitionFailed("", topic="orders", partition=0, code=UNKNOWN_CODE)
    group = GroupFailed("", group="billing", code=ErrorCode.GROUP_ID_NOT_FOUND)
    assert code_from_error(partition) == UNKNOWN_CODE
    assert code_from_error(group) == 69


def test_a_code_is_shown_as_its_number():
    """Texts and JSON that users see have the number, as before there were names."""
    assert f"(code {ErrorCode.OFFSET_OUT_OF_RANGE})" == "(code 1)"
