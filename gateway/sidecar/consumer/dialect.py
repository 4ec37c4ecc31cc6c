"""In whose words the consumer is asked and answers: the contract's, or Confluent's REST v2 (`v2`).

Both are over the same instances. A request says which it is by its content types, else its
instance remembers with which it was made.
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
    """name: what an instance remembers. bare: records without headers have no such member."""

    name: str
    omits_empty_headers: bool

    def parse_body(self, operation: ApiOperation, data: bytes, content_type: str | None) -> Any:
        """Parsed and validated; None where none is needed. Raises Refusal."""

    def build_response(self, request: Request, body: Any, status: int = 200) -> Response:
        """body: bytes are JSON already."""

    def build_records_response(
        self, request: Request, instance: ConsumerInstance, body: bytes
    ) -> Response:
        """The answer to a poll."""

    def build_error_response(self, request: Request, exc: Exception) -> Response: ...

    def format_created(self, name: str, base_uri: str) -> Any: ...

    def format_topics(self, instance: ConsumerInstance, topics: Sequence[str]) -> Any: ...

    def format_partitions(self, tps: Iterable[TopicPartition]) -> Any: ...

    def resolve_formats(
        self, request: Request, instance: ConsumerInstance, context: Context
    ) -> Callable[[str], tuple[SerializationFormat, SerializationFormat]]:
        """Of a topic's keys and values. Raises Refusal for what cannot be had."""

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]: ...


class ContractDialect:
    """The sidecar's own."""

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
        """What is said of keys, or of values, counts before `format`, which is of both; the call
        before the instance, that before the topic's settings, those before the section's."""
        settings, wishes = context.section, instance.options
        consumer = settings.consumer
        assert consumer is not None
        key, value = (_parse_format(request, name) for name in ("keyFormat", "valueFormat"))
        both = _parse_format(request, "format") or wishes.format
        key, value = key or wishes.key_format or both, value or wishes.value_format or both

        def get_formats(topic: str) -> tuple[SerializationFormat, SerializationFormat]:
            of_keys = key or SerializationFormat.parse(
                settings.get_key_format(topic, consumer.key_format)
            )
            return of_keys, value or SerializationFormat.parse(
                settings.get_value_format(topic, consumer.value_format)
            )

        return get_formats

    def get_header_formatter(self, request: Request) -> Callable[[Headers], Any]:
        binary = request.query_params.get("headerFormat") == "binary"
        return base64_headers if binary else text_headers


class TrailingSlashRoute(Route):
    """A route whose path may end in a slash, and that answers no HEAD: to ask for records moves
    the position."""

    def __init__(self, path: str, endpoint: Callable[..., Any], method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + "/?$")


def format_partitions(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(tps)]


def build_ambiguous_response(exc: Exception, error_code: int) -> Response:
    """Nobody knows who asks: the Status, with the number that the other dialect looks for."""
    status, code, what = describe_error(exc)
    return build_json_response(
        {**build_status(status, code, what), "error_code": error_code}, status
    )


def _parse_format(request: Request, name: str) -> SerializationFormat | None:
    """Validated before."""
    text = request.query_params.get(name)
    return None if text is None else SerializationFormat.parse(text)
