"""Turn errors into the dialect's: `{"error_code", "message"}`.

The code is the HTTP status, or the status and two more digits where the dialect distinguishes more.
An error for which it has no number has its status as the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.errors import (
    AccessDenied,
    FormatError,
    KafkaError,
    NotGranted,
    PartitionUnreadable,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.sidecar.http.status import StatusError, describe_error

KAFKA_AUTHENTICATION, KAFKA_AUTHORIZATION = 40101, 40301
TOPIC_NOT_FOUND, PARTITION_NOT_FOUND, INSTANCE_NOT_FOUND = 40401, 40402, 40403
FORMAT_MISMATCH, NOT_ACCEPTABLE = 40601, 40602
REGISTRY_UNAVAILABLE = 40801
INSTANCE_EXISTS, ILLEGAL_STATE = 40902, 40903
OFFSET_OUT_OF_RANGE = 41601
UNSUPPORTED_MEDIA_TYPE = 41501
(
    KEY_SCHEMA_MISSING,
    VALUE_SCHEMA_MISSING,
    CONVERSION_FAILED,
    INVALID_CONFIGURATION,
) = 42201, 42202, 42203, 42204
RETRIABLE = 50003

# By the code of a StatusError.
ERROR_CODES: Mapping[str, int] = {
    "UNKNOWN_PARTITION": PARTITION_NOT_FOUND,
    "INSTANCE_NOT_FOUND": INSTANCE_NOT_FOUND,
    "FORMAT_MISMATCH": FORMAT_MISMATCH,
    "NOT_ACCEPTABLE": NOT_ACCEPTABLE,
    "INSTANCE_EXISTS": INSTANCE_EXISTS,
    "OTHER_SUBSCRIPTION": ILLEGAL_STATE,
    "NOT_SUBSCRIBED": ILLEGAL_STATE,
    "NOT_ASSIGNED": ILLEGAL_STATE,
    "INSTANCE_BUSY": ILLEGAL_STATE,
    "NO_OFFSET": ILLEGAL_STATE,
    "GROUP_FAILED": ILLEGAL_STATE,
    "OFFSET_OUT_OF_RANGE": OFFSET_OUT_OF_RANGE,
    "UNSUPPORTED_MEDIA_TYPE": UNSUPPORTED_MEDIA_TYPE,
    "KEY_SCHEMA_MISSING": KEY_SCHEMA_MISSING,
    "VALUE_SCHEMA_MISSING": VALUE_SCHEMA_MISSING,
    "INVALID_CONFIGURATION": INVALID_CONFIGURATION,
}


class InvalidJson(StatusError):
    """Report that a body cannot be parsed, which is 400 in either dialect."""

    def __init__(self, detail: str) -> None:
        super().__init__(400, detail)


def to_unprocessable(exc: StatusError, code: str = "INVALID_BODY") -> StatusError:
    """Turn an invalid body that is JSON into a 422; the contract answers 400."""
    is_invalid = exc.status in (400, 422) and not isinstance(exc, InvalidJson)
    return StatusError(422, str(exc), code=code) if is_invalid else exc


def to_invalid_configuration(exc: StatusError) -> StatusError:
    return to_unprocessable(exc, "INVALID_CONFIGURATION")


def get_error_code(exc: Exception) -> tuple[int, int, str]:
    status, _, detail = describe_error(exc)
    match exc:
        case StatusError():
            return status, ERROR_CODES.get(exc.code, status), detail
        case UnknownTopic():
            return 404, TOPIC_NOT_FOUND, detail
        case AccessDenied():
            return 403, KAFKA_AUTHORIZATION, detail
        case NotGranted():
            codes = {401: KAFKA_AUTHENTICATION, 403: KAFKA_AUTHORIZATION}
            return status, codes.get(status, status), detail
        case FormatError():
            return 422, CONVERSION_FAILED, detail
        case RegistryUnavailable():
            return 408, REGISTRY_UNAVAILABLE, detail
        case PartitionUnreadable():
            return status, ILLEGAL_STATE, detail
        case KafkaError():
            return 503, RETRIABLE, detail
    return status, status, detail


def build_error_body(exc: Exception) -> tuple[int, dict[str, Any]]:
    status, code, message = get_error_code(exc)
    return status, {"error_code": code, "message": message}
