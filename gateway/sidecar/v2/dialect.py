"""Translate requests and responses to Confluent's API.

`CONFLUENT` does it for consumer instances; `create_endpoint` and `parse_partition` are for the
endpoints that need no instance.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.errors import GatewayError
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.consumer.dialect import format_partitions, get_named_formats
from gateway.sidecar.consumer.instance import ConsumerInstance
from gateway.sidecar.consumer.record_json import Headers, paired_headers, text_headers
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import ApiOperation
from gateway.sidecar.http.status import StatusError, build_error_headers, build_json_response
from gateway.sidecar.topics import describe_partition

from . import media
from .errors import InvalidJson, build_error_body, to_unprocessable

log = logging.getLogger(__name__)


class ConfluentDialect:
    name = "v2"
    omits_empty_headers = True

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Parse and validate a JSON body; one that is JSON but invalid is a 422 here."""
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
        format = get_named_formats(request, instance)[1] or SerializationFormat.BINARY
        content_type = negotiate_content_type(request)
        # A client that accepts the dialect's types learns the format; plain JSON stays that.
        return set_content_type(
            build_json_response(body),
            media.build_media_type(format) if content_type == media.KAFKA_V2_TYPE else content_type,
        )

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        if not isinstance(exc, (GatewayError, HTTPException)):
            log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        status, body = build_error_body(exc)
        response = build_json_response(body, status, build_error_headers(exc, status))
        return set_content_type(response, negotiate_content_type(request, strict=False))

    def format_created(self, name: str, base_uri: str) -> Any:
        return {"instance_id": name, "base_uri": base_uri}

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any:
        return {"topics": list(topics)}

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return {"partitions": format_partitions(tps)}

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]:
        """Return the same formats for all topics; raises StatusError 406 if `Accept` has others."""
        key, format = (
            named or SerializationFormat.BINARY for named in get_named_formats(request, instance)
        )
        types = [
            media.parse_media_type(name) for name in media.iter_accepted_types(request.headers)
        ]
        formats = {type.format for type in types if type is not None and type.format is not None}
        if formats and format not in formats:
            problem = f"{instance.name} reads {format.name.lower()}, and Accept names others"
            detail = f"{problem}; accept that, or {media.KAFKA_V2_TYPE}"
            raise StatusError(406, detail, code="FORMAT_MISMATCH")
        return lambda topic: (key, format)

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        is_text = request.query_params.get("headerFormat") == "text"
        return text_headers if is_text else paired_headers


def parse_json(operation: ApiOperation, data: bytes) -> Any:
    """Parse a body as JSON; raises InvalidJson."""
    try:
        return operation.parse_json(data, None)
    except StatusError as exc:
        raise InvalidJson(str(exc)) from None


def parse_content_type(content_type: str | None) -> media.MediaType:
    """Return the media type of a body; raises StatusError 415, but not for those of old clients."""
    text = (content_type or "").partition(";")[0].strip().lower()
    media_type = media.parse_media_type(text)
    if media_type is None and text not in media.UNSPECIFIED_TYPES:
        problem = f"the body is {text[:80]}; send {media.KAFKA_V2_TYPE}, or application/json"
        raise StatusError(415, problem)
    return media_type or media.MediaType(None)


def negotiate_content_type(request: Request, *, strict: bool = True) -> str:
    """Return the content type of a response.

    If `Accept` has none that can be returned, a strict negotiation raises StatusError 406.
    """
    # In the client's order of preference: the first one that can be returned counts.
    names = list(media.iter_accepted_types(request.headers))
    for name in names:
        if media.parse_media_type(name) is not None:
            return media.KAFKA_V2_TYPE
        if name in media.WILDCARD_TYPES:
            return media.JSON_TYPE if name == media.JSON_TYPE else media.KAFKA_V2_TYPE
    if names and strict:
        problem = (
            f"no type in Accept can be returned; accept {media.KAFKA_V2_TYPE} or application/json"
        )
        raise StatusError(406, problem)
    return media.KAFKA_V2_TYPE


def set_content_type(response: Response, content_type: str) -> Response:
    response.headers["Content-Type"] = content_type
    return response


CONFLUENT = ConfluentDialect()


Handler = Callable[[Request], Awaitable[Response]]


def create_endpoint(handler: Handler) -> Handler:
    """Wrap an endpoint so that all its errors are answered in the dialect."""

    async def endpoint(request: Request) -> Response:
        try:
            negotiate_content_type(request)
            return await handler(request)
        except Exception as exc:
            return CONFLUENT.build_error_response(request, exc)

    return endpoint


async def parse_partition(context: Context, request: Request) -> TopicPartition:
    """Return the partition of a path; raises StatusError 404, or as `describe_partition`."""
    topic, text = request.path_params["topic"], request.path_params["partition"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise StatusError(404, f"{text[:40]!r} is no partition; use a number")
    tp = TopicPartition(topic, int(text))
    await describe_partition(context, tp)
    return tp
