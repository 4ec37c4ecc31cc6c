from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.errors import (
    AccessDenied,
    BrokerUnavailable,
    FormatError,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.sidecar.consumer.dialect import (
    CONFLUENT,
    ERROR_CODES,
    build_error_body,
    build_media_type,
    is_confluent_request,
    iter_accepted_types,
    parse_media_type,
)
from gateway.sidecar.http.status import StatusError


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
    assert build_error_body(CONFLUENT.translate_invalid(wrong)) == (
        422,
        {"error_code": 422, "message": "records: is missing"},
    )
    assert (
        build_error_body(CONFLUENT.translate_invalid(wrong, "INVALID_CONFIGURATION"))[1][
            "error_code"
        ]
        == 42204
    )
    assert CONFLUENT.translate_invalid(StatusError(409, "other")).status == 409


@pytest.mark.parametrize("format", SERIALIZATION_FORMATS.values())
def test_a_format_is_what_its_type_says(format):
    assert parse_media_type(build_media_type(format)) == (format,)


@pytest.mark.parametrize(
    "text", ["application/vnd.kafka.v2+json", "application/vnd.kafka+json; charset=utf-8"]
)
def test_nothing_may_be_embedded(text):
    assert parse_media_type(text) == (None,)


@pytest.mark.parametrize(
    "text",
    ["application/json", "application/vnd.kafka.v3+json", "application/vnd.kafka.v2+xml", ""],
)
def test_others_are_none_of_the_dialect(text):
    assert parse_media_type(text) is None


def test_a_client_speaks_it_by_either_header():
    assert is_confluent_request(Headers({"accept": "application/vnd.kafka.v2+json, */*"}))
    assert is_confluent_request(Headers({"content-type": "application/vnd.kafka.json.v2+json"}))
    assert not is_confluent_request(Headers({"content-type": "application/json", "accept": "*/*"}))


def test_what_is_accepted_comes_best_first_and_refused_types_not_at_all():
    headers = Headers({"accept": "a/a;q=0.1, b/b, c/c;q=0, d/d;q=0.5"})
    assert list(iter_accepted_types(headers)) == ["b/b", "d/d", "a/a"]
