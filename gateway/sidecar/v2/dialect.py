"""How the consumer is asked and answers in Confluent's words. See `dialect.Dialect`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.consumer.dialect import format_partitions
from gateway.sidecar.consumer.instance import ConsumerInstance
from gateway.sidecar.consumer.record_json import Headers, paired_headers
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import ApiOperation
from gateway.sidecar.http.status import StatusError, build_error_headers, build_json_response

from . import media
from .errors import InvalidJson, build_error_body, to_unprocessable

log = logging.getLogger(__name__)


class ConfluentDialect:
    name = "v2"
    omits_empty_headers = True

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        parse_content_type(content_type)
        value = parse_json(operation, data)
        try:
            operation.validate_body(value)
        except StatusError as exc:
            raise to_unprocessable(exc) from None
        return value

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        return set_content_type(build_json_response(body, status), negotiate_content_type(request))

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response:
        format = _get_format(instance)
        kind = negotiate_content_type(request)
        return set_content_type(
            build_json_response(body),
            media.build_media_type(format) if kind == media.KAFKA_V2_TYPE else kind,
        )

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        if not isinstance(exc, (GatewayError, HTTPException)):
            log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        status, body = build_error_body(exc)
        made = build_json_response(body, status, build_error_headers(exc, status))
        return set_content_type(made, negotiate_content_type(request, strict=False))

    def format_created(self, name: str, base_uri: str) -> Any:
        return {"instance_id": name, "base_uri": base_uri}

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any:
        return {"topics": list(topics)}

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return {"partitions": format_partitions(tps)}

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]:
        """An instance has one; a client that names only others gets none of its records."""
        format = _get_format(instance)
        named = [
            media.parse_media_type(each) for each in media.iter_accepted_types(request.headers)
        ]
        wanted = {each.format for each in named if each is not None and each.format is not None}
        if wanted and format not in wanted:
            has = format.name.lower()
            what = f"{instance.name} reads {has}, and Accept names others; accept that, or PLAIN"
            what = what.replace("PLAIN", media.KAFKA_V2_TYPE)
            raise StatusError(406, what, code="FORMAT_MISMATCH")
        return lambda topic: (format, format)

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        return paired_headers


def _get_format(instance: ConsumerInstance) -> SerializationFormat:
    return instance.options.format or SerializationFormat.BINARY


def parse_json(operation: ApiOperation, data: bytes) -> Any:
    """A body as JSON. Raises NotJson."""
    try:
        return operation.parse_json(data, None)
    except StatusError as exc:
        raise InvalidJson(str(exc)) from None


def parse_content_type(content_type: str | None) -> media.MediaType:
    """What a request's body is. Raises Refusal 415."""
    text = (content_type or "").partition(";")[0].strip().lower()
    found = media.parse_media_type(text)
    if found is None and text not in media.UNSPECIFIED_TYPES:
        what = f"the body is {text[:80]}; send {media.KAFKA_V2_TYPE}, or application/json"
        raise StatusError(415, what)
    return found or media.MediaType(None)


def negotiate_content_type(request: Request, *, strict: bool = True) -> str:
    """The content type of an answer. Raises Refusal 406, where it is taken strictly."""
    names = list(media.iter_accepted_types(request.headers))
    for name in names:
        if media.parse_media_type(name) is not None:
            return media.KAFKA_V2_TYPE
        if name in media.WILDCARD_TYPES:
            return media.JSON_TYPE if name == media.JSON_TYPE else media.KAFKA_V2_TYPE
    if names and strict:
        what = f"nothing of Accept can be given; accept {media.KAFKA_V2_TYPE} or application/json"
        raise StatusError(406, what)
    return media.KAFKA_V2_TYPE


def set_content_type(response: Response, content_type: str) -> Response:
    response.headers["Content-Type"] = content_type
    return response


CONFLUENT = ConfluentDialect()
