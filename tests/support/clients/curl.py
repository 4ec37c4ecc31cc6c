"""curl -N: what everyone tries first. It reads once; what it prints is parsed strictly here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from support.clients.client import Event, ProcessClient
from support.sse import Parser


class CurlClient(ProcessClient):
    """options: further options of curl, such as --compressed."""

    name: ClassVar[str] = "curl"
    reconnects: ClassVar[bool] = False
    options: Sequence[str] = ()
    _parser = Parser()

    async def command(self) -> Sequence[str]:
        headers = dict(self.headers)
        if self.last_event_id:
            headers["Last-Event-ID"] = self.last_event_id
        self._parser = Parser(self.last_event_id)
        told = [word for name, value in headers.items() for word in ("-H", f"{name}: {value}")]
        quiet = ("-q", "-N", "-sS", "--fail", "--noproxy", "*")
        return ["curl", *quiet, *self.options, *told, self.url]

    def heard(self, piece: bytes) -> None:
        for event in self._parser.feed(piece):
            self.events.append(Event(event=event.type, id=event.last_event_id, data=event.data))
