from __future__ import annotations

import pytest

from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    FormatError,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.sidecar.http.status import Refusal
from gateway.sidecar.v2.errors import CODES, body_of, invalid, misconfigured


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UnknownTopic("no", topic="t"), 404, 40401),
        (AccessDenied("no", topic="t"), 403, 40301),
        (FormatError("no"), 422, 42203),
        (RegistryUnavailable("away", retry_after=1.0), 408, 40801),
        (BrokerUnavailable("away"), 503, 50003),
        (Refusal(404, "gone", code="INSTANCE_NOT_FOUND"), 404, 40403),
        (Refusal(413, "large"), 413, 413),
        (RuntimeError("secret"), 500, 500),
    ],
)
def test_an_error_has_the_dialects_number(error, status, code):
    said, body = body_of(error)
    assert (said, body["error_code"]) == (status, code)
    assert "secret" not in body["message"]


def test_every_number_begins_with_its_status():
    assert all(400 <= code // 100 < 600 for code in CODES.values())


def test_a_body_that_is_wrong_is_unprocessable_and_an_instances_has_a_number():
    wrong = Refusal(400, "records: is missing")
    assert body_of(invalid(wrong)) == (422, {"error_code": 422, "message": "records: is missing"})
    assert body_of(misconfigured(wrong))[1]["error_code"] == 42204
    assert invalid(Refusal(409, "other")).status == 409
