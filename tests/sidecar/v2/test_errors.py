from __future__ import annotations

import pytest

from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    FormatError,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.v2.errors import (
    ERROR_CODES,
    build_error_body,
    to_invalid_configuration,
    to_unprocessable,
)


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownTopic("no", topic="t"), 404, 40401),
        (AccessDenied("no", topic="t"), 403, 40301),
        (FormatError("no"), 422, 42203),
        (RegistryUnavailable("away", retry_after=1.0), 408, 40801),
        (BrokerUnavailable("away"), 503, 50003),
        (StatusError(404, "gone", code="INSTANCE_NOT_FOUND"), 404, 40403),
        (StatusError(413, "large"), 413, 413),
        (RuntimeError("secret"), 500, 500),
    ],
)
def test_an_error_has_the_dialects_number(error, status, code):
    actual_status, body = build_error_body(error)
    assert (actual_status, body["error_code"]) == (status, code)
    assert "secret" not in body["message"]


def test_every_number_begins_with_its_status():
    assert all(400 <= code // 100 < 600 for code in ERROR_CODES.values())


def test_a_body_that_is_wrong_is_unprocessable_and_an_instances_has_a_number():
    wrong = StatusError(400, "records: is missing")
    assert build_error_body(to_unprocessable(wrong)) == (
        422,
        {"error_code": 422, "message": "records: is missing"},
    )
    assert build_error_body(to_invalid_configuration(wrong))[1]["error_code"] == 42204
    assert to_unprocessable(StatusError(409, "other")).status == 409
