"""Errors of the dialect: `{"error_code", "message"}`.

The code is the HTTP status, or that and two more digits where the dialect knows more. What it has
no number for keeps its status alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import (
    AccessDenied,
    FormatError,
    KafkaError,
    NotGranted,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.sidecar.http.status import Refusal, status_of

TOPIC, PARTITION, INSTANCE = 40401, 40402, 40403
FORMAT_MISMATCH, NOT_ACCEPTABLE = 40601, 40602
REGISTRY = 40801
SUBSCRIBED, EXISTS, ILLEGAL_STATE = 40901, 40902, 40903
OUT_OF_RANGE = 41601
MEDIA_TYPE = 41501
KEY_SCHEMA, VALUE_SCHEMA, CONVERSION, CONFIGURATION, SCHEMA = 42201, 42202, 42203, 42204, 42205
RETRIABLE = 50003

CODES: Mapping[str, int] = {
    "UNKNOWN_PARTITION": PARTITION,
    "INSTANCE_NOT_FOUND": INSTANCE,
    "FORMAT_MISMATCH": FORMAT_MISMATCH,
    "NOT_ACCEPTABLE": NOT_ACCEPTABLE,
    "INSTANCE_EXISTS": EXISTS,
    "OTHER_SUBSCRIPTION": ILLEGAL_STATE,
    "NOT_SUBSCRIBED": ILLEGAL_STATE,
    "NOT_ASSIGNED": ILLEGAL_STATE,
    "INSTANCE_BUSY": ILLEGAL_STATE,
    "NO_OFFSET": ILLEGAL_STATE,
    "GROUP_FAILED": ILLEGAL_STATE,
    "OFFSET_OUT_OF_RANGE": OUT_OF_RANGE,
    "UNSUPPORTED_MEDIA_TYPE": MEDIA_TYPE,
    "KEY_SCHEMA_MISSING": KEY_SCHEMA,
    "VALUE_SCHEMA_MISSING": VALUE_SCHEMA,
    "INVALID_CONFIGURATION": CONFIGURATION,
}
"""By the word of a Refusal."""


class NotJson(Refusal):
    """A body that cannot be read: 400, in either dialect."""

    def __init__(self, what: str) -> None:
        super().__init__(400, what)


def invalid(exc: Refusal, word: str = "INVALID_BODY") -> Refusal:
    """A body that is JSON and not what it should be: 422, where the contract says 400."""
    given = exc.status in (400, 422) and not isinstance(exc, NotJson)
    return Refusal(422, str(exc), code=word) if given else exc


def misconfigured(exc: Refusal) -> Refusal:
    """As `invalid`, of an instance that is to be made."""
    return invalid(exc, "INVALID_CONFIGURATION")


def code_of(exc: Exception) -> tuple[int, int, str]:
    """HTTP status, error code and message."""
    status, _, what = status_of(exc)
    match exc:
        case Refusal():
            return status, CODES.get(exc.code, status), what
        case UnknownTopic():
            return 404, TOPIC, what
        case AccessDenied():
            return 403, 40301, what
        case NotGranted():
            return status, {401: 40101, 403: 40301}.get(status, status), what
        case FormatError():
            return 422, CONVERSION, what
        case RegistryUnavailable():
            return 408, REGISTRY, what
        case KafkaError():
            return 503, RETRIABLE, what
    return status, status, what


def body_of(exc: Exception) -> tuple[int, dict[str, Any]]:
    status, code, message = code_of(exc)
    return status, {"error_code": code, "message": message}
