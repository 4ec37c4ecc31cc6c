"""Speak the two APIs for consumers: the contract's own, and Confluent's REST Proxy v2.

Both work on the same instances. The content types of a request select one; if they do not, it is
the one with which the instance was created. `create_endpoint` and `parse_partition` are for the
endpoints of v2 that need no instance: those of `topics` and of `producer.confluent`.

v2 is the API as its clients use it and as its documentation has it:
https://docs.confluent.io/platform/current/kafka-rest/api.html. Media types are
`application/vnd.kafka[.FORMAT][.v2]+json`. Errors are `{"error_code", "message"}`: the code is the
HTTP status, or the status and two more digits where the dialect distinguishes more.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from starlette.datastructures import Headers as HttpHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from gateway.config.types.formats import SERIALIZATION_FORMATS
from gateway.core.log.record import TopicPartition
from gateway.errors import (
    AccessDenied,
    FormatError,
    GatewayError,
    KafkaError,
    NotGranted,
    PartitionUnreadable,
    RegistryUnavailable,
    UnknownTopic,
)
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import ApiOperation
from gateway.sidecar.http.status import (
    StatusError,
    build_error_headers,
    build_error_response,
    build_json_response,
    build_status,
    describe_error,
)
from gateway.sidecar.lookups import Formats, describe_partition, get_formats

from .instance_options import InstanceOptions
from .record_json import (
    Headers,
    base64_headers,
    paired_headers,
    text_headers,
)


class Dialect:
    """Parse the requests and format the responses of the contract's API; a subclass, of another.

    An instance remembers the `name` of the dialect with which it was created.
    """

    name = "contract"
    omits_empty_headers = False

    def translate_invalid(self, exc: StatusError, code: str = "INVALID_BODY") -> StatusError:
        """Return the error of a request whose parameters or body are invalid."""
        return exc

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Return the validated body, None where none is needed; raises StatusError."""
        return operation.parse_body(data, content_type)

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        """Build a successful response; bytes are JSON already."""
        return build_json_response(body, status)

    def build_records_response(
        self, request: Request, options: InstanceOptions, body: bytes
    ) -> Response:
        return build_json_response(body)

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        return build_error_response(exc)

    def format_created(self, name: str, base_uri: str) -> Any:
        return {"instanceId": name, "baseUri": base_uri}

    def format_topics(self, topics: Sequence[str]) -> Any:
        return [{"topics": list(topics)}]

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return [{"partitions": format_partitions(tps)}]

    def resolve_formats(
        self, request: Request, options: InstanceOptions, context: Context
    ) -> Callable[[str], Formats]:
        """Return a function from a topic to the formats of its keys and values.

        A format of keys, or of values, takes precedence over `format`, which is for both. The
        request takes precedence over the instance, the instance over the topic's settings, and
        these over the section's.
        """
        section, named = context.section, get_named_formats(request, options)
        assert section.consumer is not None
        defaults = section.consumer

        # What neither says depends on the topic, and a poll may return records of several.
        def choose_formats(topic: str) -> Formats:
            key, value = get_formats(section, topic, defaults)
            return named[0] or key, named[1] or value

        return choose_formats

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        is_binary = request.query_params.get("headerFormat") == "binary"
        return base64_headers if is_binary else text_headers


CONTRACT = Dialect()


def format_partitions(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [tp._asdict() for tp in sorted(tps)]


def build_ambiguous_response(exc: Exception, error_code: int) -> Response:
    """Build an error for a client whose dialect is unknown: a Status with Confluent's number."""
    status, code, detail = describe_error(exc)
    return build_json_response(
        {**build_status(status, code, detail), "error_code": error_code}, status
    )


def get_named_formats(
    request: Request, options: InstanceOptions
) -> tuple[SerializationFormat | None, SerializationFormat | None]:
    key, value = (_parse_format(request, name) for name in ("keyFormat", "valueFormat"))
    both = _parse_format(request, "format") or options.format
    return key or options.key_format or both, value or options.value_format or both


def _parse_format(request: Request, name: str) -> SerializationFormat | None:
    text = request.query_params.get(name)
    return None if text is None else SerializationFormat.parse(text)


log = logging.getLogger(__name__)

KAFKA_V2_TYPE = "application/vnd.kafka.v2+json"
JSON_TYPE = "application/json"
WILDCARD_TYPES = frozenset({JSON_TYPE, "application/*", "*/*", "*/json"})
# What old clients and curl send with a body in JSON.
UNSPECIFIED_TYPES = frozenset(
    {"", JSON_TYPE, "application/octet-stream", "application/x-www-form-urlencoded"}
)
_TYPE_PATTERN = re.compile(r"application/vnd\.kafka(\.(?!v2[.+])([a-z0-9]+))?(\.v2)?\+json")

NOT_AUTHORIZED, ILLEGAL_STATE, RETRIABLE = 40301, 40903, 50003
# By the code of a StatusError.
ERROR_CODES: Mapping[str, int] = {
    "UNKNOWN_PARTITION": 40402,
    "INSTANCE_NOT_FOUND": 40403,
    "FORMAT_MISMATCH": 40601,
    "NOT_ACCEPTABLE": 40602,
    "INSTANCE_EXISTS": 40902,
    "OTHER_SUBSCRIPTION": ILLEGAL_STATE,
    "NOT_SUBSCRIBED": ILLEGAL_STATE,
    "NOT_ASSIGNED": ILLEGAL_STATE,
    "INSTANCE_BUSY": ILLEGAL_STATE,
    "NO_OFFSET": ILLEGAL_STATE,
    "GROUP_FAILED": ILLEGAL_STATE,
    "OFFSET_OUT_OF_RANGE": 41601,
    "UNSUPPORTED_MEDIA_TYPE": 41501,
    "KEY_SCHEMA_MISSING": 42201,
    "VALUE_SCHEMA_MISSING": 42202,
    "INVALID_CONFIGURATION": 42204,
}


class ConfluentDialect(Dialect):
    name = "v2"
    omits_empty_headers = True

    def translate_invalid(self, exc: StatusError, code: str = "INVALID_BODY") -> StatusError:
        """Return a 422 for an invalid body that is JSON; the contract answers 400."""
        is_invalid = exc.status in (400, 422) and not isinstance(exc, InvalidJson)
        return StatusError(422, str(exc), code=code) if is_invalid else exc

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        parse_content_type(content_type)
        value = parse_json(operation, data)
        try:
            operation.validate_body(value)
        except StatusError as exc:
            raise self.translate_invalid(exc) from None
        return value

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        return set_content_type(build_json_response(body, status), negotiate_content_type(request))

    def build_records_response(
        self, request: Request, options: InstanceOptions, body: bytes
    ) -> Response:
        format = get_named_formats(request, options)[1] or SerializationFormat.BINARY
        content_type = negotiate_content_type(request)
        # A client that accepts the dialect's types learns the format; plain JSON stays that.
        return set_content_type(
            build_json_response(body),
            build_media_type(format) if content_type == KAFKA_V2_TYPE else content_type,
        )

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        if not isinstance(exc, (GatewayError, HTTPException)):
            log.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        status, body = build_error_body(exc)
        response = build_json_response(body, status, build_error_headers(exc, status))
        return set_content_type(response, negotiate_content_type(request, strict=False))

    def format_created(self, name: str, base_uri: str) -> Any:
        return {"instance_id": name, "base_uri": base_uri}

    def format_topics(self, topics: Sequence[str]) -> Any:
        return {"topics": list(topics)}

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return {"partitions": format_partitions(tps)}

    def resolve_formats(
        self, request: Request, options: InstanceOptions, context: Context
    ) -> Callable[[str], Formats]:
        """Return the same formats for all topics; raises StatusError 406 if `Accept` has others."""
        key, format = (
            named or SerializationFormat.BINARY for named in get_named_formats(request, options)
        )
        types = map(parse_media_type, iter_accepted_types(request.headers))
        formats = {type.format for type in types if type is not None and type.format is not None}
        if formats and format not in formats:
            name = request.path_params["instance"]
            problem = f"{name} reads {format.name.lower()}, and Accept names others"
            detail = f"{problem}; accept that, or {KAFKA_V2_TYPE}"
            raise StatusError(406, detail, code="FORMAT_MISMATCH")
        return lambda topic: (key, format)

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        is_text = request.query_params.get("headerFormat") == "text"
        return text_headers if is_text else paired_headers


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


# Requests


def parse_json(operation: ApiOperation, data: bytes) -> Any:
    """Parse a body as JSON; raises InvalidJson."""
    try:
        return operation.parse_json(data, None)
    except StatusError as exc:
        raise InvalidJson(400, str(exc)) from None


def parse_content_type(content_type: str | None) -> MediaType:
    """Return the media type of a body; raises StatusError 415, but not for those of old clients."""
    text = (content_type or "").partition(";")[0].strip().lower()
    media_type = parse_media_type(text)
    if media_type is None and text not in UNSPECIFIED_TYPES:
        problem = f"the body is {text[:80]}; send {KAFKA_V2_TYPE}, or application/json"
        raise StatusError(415, problem)
    return media_type or MediaType(None)


def negotiate_content_type(request: Request, *, strict: bool = True) -> str:
    """Return the content type of a response.

    If `Accept` has none that can be returned, a strict negotiation raises StatusError 406.
    """
    # In the client's order of preference: the first one that can be returned counts.
    names = list(iter_accepted_types(request.headers))
    for name in names:
        if parse_media_type(name) is not None:
            return KAFKA_V2_TYPE
        if name in WILDCARD_TYPES:
            return JSON_TYPE if name == JSON_TYPE else KAFKA_V2_TYPE
    if names and strict:
        problem = f"no type in Accept can be returned; accept {KAFKA_V2_TYPE} or application/json"
        raise StatusError(406, problem)
    return KAFKA_V2_TYPE


def set_content_type(response: Response, content_type: str) -> Response:
    response.headers["Content-Type"] = content_type
    return response


async def parse_partition(context: Context, request: Request) -> TopicPartition:
    """Return the partition of a path; raises StatusError 404, or as `describe_partition`."""
    topic, text = request.path_params["topic"], request.path_params["partition"]
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise StatusError(404, f"{text[:40]!r} is no partition; use a number")
    tp = TopicPartition(topic, int(text))
    await describe_partition(context, tp)
    return tp


# Errors


class InvalidJson(StatusError):
    """Report that a body cannot be parsed, which is 400 in either dialect."""


def build_error_body(exc: Exception) -> tuple[int, dict[str, Any]]:
    status, _, message = describe_error(exc)
    code = status
    match exc:
        case StatusError():
            code = ERROR_CODES.get(exc.code, status)
        case UnknownTopic():
            code = 40401
        case AccessDenied():
            code = NOT_AUTHORIZED
        case NotGranted():
            code = {401: 40101, 403: NOT_AUTHORIZED}.get(status, status)
        case FormatError():
            status, code = 422, 42203
        case RegistryUnavailable():
            status, code = 408, 40801
        case PartitionUnreadable():
            code = ILLEGAL_STATE
        case KafkaError():
            status, code = 503, RETRIABLE
    return status, {"error_code": code, "message": message}


# Media types


class MediaType(NamedTuple):
    """A media type of the dialect, with the format of embedded keys and values if it names one."""

    format: SerializationFormat | None


def parse_media_type(text: str) -> MediaType | None:
    match = _TYPE_PATTERN.fullmatch(text.partition(";")[0].strip().lower())
    if match is None:
        return None
    if match[2] is None:
        return MediaType(None)
    format = SERIALIZATION_FORMATS.get("string" if match[2] == "text" else match[2])
    return None if format is None else MediaType(format)


def build_media_type(format: SerializationFormat) -> str:
    return f"application/vnd.kafka.{format.name}.v2+json"


def is_confluent_request(headers: HttpHeaders) -> bool:
    """Return whether the content types of a request select the dialect."""
    values = headers.get("content-type", ""), headers.get("accept", "")
    return any("vnd.kafka" in value for value in values)


def iter_accepted_types(headers: HttpHeaders) -> Iterator[str]:
    """Yield the media types that a client accepts, best first; none if it does not say."""
    ranges = [range_.strip().lower() for range_ in headers.get("accept", "").split(",")]
    weighted = [
        (_parse_quality(range_), range_.partition(";")[0].strip()) for range_ in ranges if range_
    ]
    for quality, name in sorted(weighted, key=lambda entry: -entry[0]):
        if quality > 0:
            yield name


def _parse_quality(range_: str) -> float:
    """Return the weight of a media range (RFC 9110 12.4.2), which is 1 if it has none."""
    match = re.search(r";\s*q=([01](\.[0-9]{0,3})?)\s*(;|$)", range_)
    return float(match[1]) if match else 1.0
