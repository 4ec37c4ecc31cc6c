"""Define the APIs that a consumer is used by: the contract's own, and Confluent's REST v2 (`v2`).

Both work on the same instances. The content types of a request say which one it uses; if they do
not, it is the one with which the instance was created.
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

    Attributes:
        name: What an instance remembers of the dialect with which it was created.
        omits_empty_headers: Whether a record without headers has no member `headers`.
    """

    name: str
    omits_empty_headers: bool

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Return the body, parsed and validated; None where none is needed.

        Raises:
            StatusError: The body is invalid, or has another content type.
        """

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        """Build a successful response; bytes are JSON already."""

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response:
        """Build the response to a poll."""

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        """Build the response for an error."""

    def format_created(self, name: str, base_uri: str) -> Any:
        """Format the answer about a new instance."""

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any:
        """Format the topics that an instance is subscribed to."""

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        """Format the partitions that an instance is assigned."""

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]:
        """Return a function from a topic to the formats of its keys and values.

        Raises:
            StatusError: The request wants a format that cannot be had.
        """

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        """Return how the headers of records are rendered."""


class ContractDialect:
    """Speak the sidecar's own API."""

    name = "contract"
    omits_empty_headers = False

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Parse and validate a JSON body."""
        return operation.parse_body(data, content_type)

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        """Build a JSON response."""
        return build_json_response(body, status)

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response:
        """Build a JSON response."""
        return build_json_response(body)

    def build_error_response(self, request: Request, exc: Exception) -> Response:
        """Build a Status."""
        return build_error_response(exc)

    def format_created(self, name: str, base_uri: str) -> Any:
        """Format the names of a new instance."""
        return {"instanceId": name, "baseUri": base_uri}

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any:
        """Format topics as a list with one object, as the contract has it."""
        return [{"topics": list(topics)}]

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any:
        """Format partitions as a list with one object, as the contract has it."""
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
        """Return the renderer that the query parameter `headerFormat` selects."""
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
    """Return partitions as JSON, in order."""
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(tps)]


def build_ambiguous_response(exc: Exception, error_code: int) -> Response:
    """Build an error for a client whose dialect is unknown.

    It is a Status that also has the number by which clients of the other dialect recognize the
    error.

    Args:
        error_code: Confluent's number of it.
    """
    status, code, detail = describe_error(exc)
    return build_json_response(
        {**build_status(status, code, detail), "error_code": error_code}, status
    )


def get_named_formats(
    request: Request, instance: ConsumerInstance
) -> tuple[SerializationFormat | None, SerializationFormat | None]:
    """Return the formats of keys and values that a request names, or else its instance."""
    options = instance.options
    key, value = (_parse_format(request, name) for name in ("keyFormat", "valueFormat"))
    both = _parse_format(request, "format") or options.format
    return key or options.key_format or both, value or options.value_format or both


def _parse_format(request: Request, name: str) -> SerializationFormat | None:
    """Return the format that a query parameter names, or None; its name was validated before."""
    text = request.query_params.get(name)
    return None if text is None else SerializationFormat.parse(text)
