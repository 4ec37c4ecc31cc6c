"""Define the two APIs for consumers: the contract's own, and Confluent's REST v2 (`v2`).

Both work on the same instances. The content types of a request select one; if they do not, it is
the one with which the instance was created.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from gateway.core.log.record import TopicPartition
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import ApiOperation
from gateway.sidecar.http.status import (
    build_error_response,
    build_json_response,
    build_status,
    describe_error,
)

from .instance import ConsumerInstance
from .record_json import Headers, base64_headers, text_headers


class Dialect(Protocol):
    """Parse the requests and format the responses of one API.

    An instance remembers the `name` of the dialect with which it was created.
    """

    name: str
    omits_empty_headers: bool

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Return the validated body, None where none is needed; raises StatusError."""

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        """Build a successful response; bytes are JSON already."""

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response: ...

    def build_error_response(self, request: Request, exc: Exception) -> Response: ...

    def format_created(self, name: str, base_uri: str) -> Any: ...

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any: ...

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any: ...

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]: ...

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]: ...


class ContractDialect:
    name = "contract"
    omits_empty_headers = False

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        return operation.parse_body(data, content_type)

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        return build_json_response(body, status)

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response:
        return build_json_response(body)

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        return build_error_response(exc)

    def format_created(self, name: str, base_uri: str) -> Any:
        return {"instanceId": name, "baseUri": base_uri}

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any:
        return [{"topics": list(topics)}]

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return [{"partitions": format_partitions(tps)}]

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]:
        """Return a function from a topic to the formats of its keys and values.

        A format of keys, or of values, takes precedence over `format`, which is for both. The
        request takes precedence over the instance, the instance over the topic's settings, and
        these over the section's.
        """
        settings = context.section
        consumer = settings.consumer
        assert consumer is not None
        key, value = get_named_formats(request, instance)

        # What neither says depends on the topic, and a poll may return records of several.
        def get_formats(topic: str) -> tuple[SerializationFormat, SerializationFormat]:
            key_format = key or SerializationFormat.parse(
                settings.get_key_format(topic, consumer.key_format)
            )
            return key_format, value or SerializationFormat.parse(
                settings.get_value_format(topic, consumer.value_format)
            )

        return get_formats

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        is_binary = request.query_params.get("headerFormat") == "binary"
        return base64_headers if is_binary else text_headers


class TrailingSlashRoute(Route):
    """Match a path with or without a slash at its end, and answer no HEAD.

    Starlette answers HEAD by the endpoint of GET, which would move the position of a consumer.
    """

    def __init__(self, path: str, endpoint: Callable[..., Any], method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}
        # Starlette compiles the path to a pattern that ends in `$`.
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + "/?$")


def format_partitions(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(tps)]


def build_ambiguous_response(exc: Exception, error_code: int) -> Response:
    """Build an error for a client whose dialect is unknown: a Status with Confluent's number."""
    status, code, detail = describe_error(exc)
    return build_json_response(
        {**build_status(status, code, detail), "error_code": error_code}, status
    )


def get_named_formats(
    request: Request, instance: ConsumerInstance
) -> tuple[SerializationFormat | None, SerializationFormat | None]:
    options = instance.options
    key, value = (_parse_format(request, name) for name in ("keyFormat", "valueFormat"))
    both = _parse_format(request, "format") or options.format
    return key or options.key_format or both, value or options.value_format or both


def _parse_format(request: Request, name: str) -> SerializationFormat | None:
    text = request.query_params.get(name)
    return None if text is None else SerializationFormat.parse(text)
