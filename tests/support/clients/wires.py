"""The wires of a stream: one test of the core runs over each of them.

    @every_wire
    async def test_...(wire: Wire):
        async with over(wire, Hasty)(url) as client:

A wire is a `RawClient` that speaks it; a client that adds something else is combined with it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, TypeVar

import pytest
from support.clients.ndjson import NdjsonClient
from support.clients.raw import RawClient
from support.clients.websocket import WebSocketClient

Wire: TypeAlias = Literal["sse", "ndjson", "websocket"]
C = TypeVar("C", bound=RawClient)

WIRES: Mapping[Wire, type[RawClient]] = {
    "sse": RawClient,
    "ndjson": NdjsonClient,
    "websocket": WebSocketClient,
}
every_wire = pytest.mark.parametrize("wire", WIRES)


def over(wire: Wire, client: type[C]) -> type[C]:
    """That client, speaking that wire."""
    speaks = WIRES[wire]
    return client if issubclass(client, speaks) else type(client.name, (speaks, client), {})
