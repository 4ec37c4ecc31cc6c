"""What a request becomes for the hub."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from gateway.client_memory import ClientMemory
from gateway.config import Settings
from gateway.hub.fanout.client import ClientOptions
from gateway.hub.wires.sse import SseWire
from gateway.web.access import Grant, Granted
from gateway.web.routing.messages import build_request
from gateway.web.routing.routes import Routes


async def test_one_identity_of_two_guards_is_two_clients():
    """They shared turns, reads and the share of one client, unlike their connections."""
    kafka = {"servers": ["a:1"], "topics": [{"name": "orders"}]}
    routes = [{"when": [{"path": "/orders"}], "with": {"topic": "orders"}}]
    settings = Settings.model_validate({"kafka": kafka, "routes": routes})
    client_keys: list[object] = []

    class FakeHub:
        topics = SimpleNamespace(get_settings=lambda name: settings.clusters[""].topics[0])

        async def subscribe(self, *args: Any) -> Any:
            (options,) = (each for each in args if isinstance(each, ClientOptions))
            client_keys.append(options.client_key)
            return SimpleNamespace(number=1)

    hubs: Any = SimpleNamespace(
        client_memory=ClientMemory(), started=True, get_hub=lambda name: FakeHub()
    )
    served: Any = Routes(hubs, settings, None, None)  # type: ignore[arg-type]
    for guard in ("users", "partners"):
        match = served.match("/orders")._replace(granted=Granted([Grant(guard, "ada")]))
        await served.open_client(match, build_request("/orders", []), SseWire())
    assert client_keys == ["users:ada", "partners:ada"]
