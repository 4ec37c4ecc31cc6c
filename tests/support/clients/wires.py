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

WireName: TypeAlias = Literal["sse", "ndjson", "websocket"]
ClientT = TypeVar("ClientT", bound=RawClient)

CLIENT_BY_WIRE: Mapping[WireName, type[RawClient]] = {
    "sse": RawClient,
    "ndjson": NdjsonClient,
    "websocket": WebSocketClient,
}
every_wire = pytest.mark.parametrize("wire", CLIENT_BY_WIRE)


def client_for_wire(wire: WireName, base_client: type[ClientT]) -> type[ClientT]:
    """That client, speaking that wire."""
    speaks = CLIENT_BY_WIRE[wire]
    return (
        base_client
        if issubclass(base_client, speaks)
        else type(base_client.name, (speaks, base_client), {})
    )
