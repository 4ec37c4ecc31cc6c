"""A program that reads lines of JSON with positions, and comes back with the last one."""

from __future__ import annotations

from typing import Any, ClassVar

from support.clients.raw import RawClient, Response
from support.lines import LineParser


class NdjsonClient(RawClient):
    """Like an EventSource, but Kafka being away for a while (503) does not end it."""

    name: ClassVar[str] = "ndjson"
    kind: ClassVar[str] = "application/x-ndjson"

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(f"{url}{'&' if '?' in url else '?'}positions", **options)

    def parser(self) -> LineParser:
        return LineParser(self._id)

    def gives_up(self, response: Response) -> bool:
        return response.status != 503
