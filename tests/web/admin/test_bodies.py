from __future__ import annotations

from gateway.web.admin.app import RevocationBody
from gateway.web.admin.listing import format_time


def test_a_time_is_that_of_its_time_zone():
    body = RevocationBody.model_validate_json(
        '{"identity": "ada", "until": "2999-01-01T00:00:00+02:00"}'
    )
    assert body.until is not None
    assert format_time(body.until) == "2998-12-31T22:00:00+00:00"
