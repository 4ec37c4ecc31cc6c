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
from gateway.formats.codec import Format
from gateway.sidecar.context import Context
from gateway.sidecar.http.spec import Operation
from gateway.sidecar.http.status import answer, response, status_of, told

from .instance import Instance
from .record_json import Headers, base64_headers, text_headers


class Dialect(Protocol):
    """name: what an instance remembers. bare: records without headers have no such member."""

    name: str
    bare: bool

    def body(self, operation: Operation, data: bytes, kind: str | None) -> Any:
        """Parsed and validated; None where none is needed. Raises Refusal."""

    def answer(self, request: Request, body: Any, status: int = 200) -> Response:
        """body: bytes are JSON already."""

    def records(self, request: Request, instance: Instance, body: bytes) -> Response:
        """The answer to a poll."""

    def refusal(self, request: Request, exc: Exception) -> Response: ...

    def created(self, name: str, base_uri: str) -> Any: ...

    def topics(self, instance: Instance, topics: Sequence[str]) -> Any: ...

    def partitions(self, tps: Iterable[TopicPartition]) -> Any: ...

    def formats(
        self, request: Request, instance: Instance, context: Context
    ) -> Callable[[str], tuple[Format, Format]]:
        """Of a topic's keys and values. Raises Refusal for what cannot be had."""

    def headers(self, request: Request) -> Callable[[Headers], Any]: ...


class Contract:
    """The sidecar's own."""

    name = "contract"
    bare = False

    def body(self, operation: Operation, data: bytes, kind: str | None) -> Any:
        return operation.body(data, kind)

    def answer(self, request: Request, body: Any, status: int = 200) -> Response:
        return answer(body, status)

    def records(self, request: Request, instance: Instance, body: bytes) -> Response:
        return answer(body)

    def refusal(self, request: Request, exc: Exception) -> Response:
        return response(exc)

    def created(self, name: str, base_uri: str) -> Any:
        return {"instanceId": name, "baseUri": base_uri}

    def topics(self, instance: Instance, topics: Sequence[str]) -> Any:
        return [{"topics": list(topics)}]

    def partitions(self, tps: Iterable[TopicPartition]) -> Any:
        return [{"partitions": listed(tps)}]

    def formats(
        self, request: Request, instance: Instance, context: Context
    ) -> Callable[[str], tuple[Format, Format]]:
        """What is said of keys, or of values, counts before `format`, which is of both; the call
        before the instance, that before the topic's settings, those before the section's."""
        settings, wishes = context.section, instance.wishes
        consumer = settings.consumer
        assert consumer is not None
        key, value = (_asked(request, name) for name in ("keyFormat", "valueFormat"))
        both = _asked(request, "format") or wishes.format
        key, value = key or wishes.key_format or both, value or wishes.value_format or both

        def of(topic: str) -> tuple[Format, Format]:
            of_keys = key or Format.of(settings.key_format(topic, consumer.key_format))
            return of_keys, value or Format.of(settings.value_format(topic, consumer.value_format))

        return of

    def headers(self, request: Request) -> Callable[[Headers], Any]:
        binary = request.query_params.get("headerFormat") == "binary"
        return base64_headers if binary else text_headers


class Slashed(Route):
    """A route whose path may end in a slash, and that answers no HEAD: to ask for records moves
    the position."""

    def __init__(self, path: str, endpoint: Callable[..., Any], method: str) -> None:
        super().__init__(path, endpoint, methods=[method])
        self.methods = {method}
        self.path_regex = re.compile(self.path_regex.pattern.removesuffix("$") + "/?$")


def listed(tps: Iterable[TopicPartition]) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for topic, partition in sorted(tps)]


def ambiguous(exc: Exception, error_code: int) -> Response:
    """Nobody knows who asks: the Status, with the number that the other dialect looks for."""
    status, code, what = status_of(exc)
    return answer({**told(status, code, what), "error_code": error_code}, status)


def _asked(request: Request, name: str) -> Format | None:
    """Validated before."""
    text = request.query_params.get(name)
    return None if text is None else Format.of(text)
