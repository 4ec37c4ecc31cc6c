"""Define the two APIs for consumers: the contract's own, and Confluent's REST v2 (`v2`).

Both work on the same instances. The content types of a request select one; if they do not, it is
the one with which the instance was created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from gateway.core.log.record import TopicPartition
from gateway.formats.codec import SerializationFormat
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import ApiOperation
from gateway.sidecar.http.status import (
    StatusError,
    build_error_response,
    build_json_response,
    build_status,
    describe_error,
)
from gateway.sidecar.lookups import Formats, get_formats

from .instance_options import InstanceOptions
from .record_json import Headers, base64_headers, text_headers


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
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(tps)]


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
