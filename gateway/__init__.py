"""Kafka to the browser: a streaming gateway over Apache Kafka.

In a program of your own:

    async with Gateway(servers="localhost:9092") as gateway:
        async for record in gateway.subscribe("orders"):
            ...

or mounted in one that serves HTTP: `create_app`. Names are imported when they are first used.
"""

from __future__ import annotations

from .version import __version__

TYPE_CHECKING = False  # typing itself would take most of the time: 10 ms instead of 1.4
if TYPE_CHECKING:
    from .api.events import Begin, End, Event, Fault, Gap, Position, Ready, Record
    from .api.gateway import Gateway, Produced
    from .api.stream import Stream
    from .config import Settings, load, loads
    from .errors import (
        AccessDenied,
        AuthenticationFailed,
        BrokerUnavailable,
        Busy,
        CheckpointRefused,
        ConfigError,
        Fenced,
        FormatError,
        GatewayError,
        GroupFailed,
        GroupInUse,
        GuardUnavailable,
        KafkaError,
        KeyReused,
        LocalBrokerError,
        MemoryFull,
        NotGranted,
        NotOwned,
        PartitionFailed,
        PipelineError,
        PipelineUnavailable,
        RegistryUnavailable,
        RequestError,
        StreamEnded,
        TokenCorrupt,
        TokenError,
        TokenForeign,
        TokenTooOld,
        UnknownTopic,
    )
    from .kafka.embedded import EmbeddedKafka
    from .web.access import Access, Grant, Granted
    from .web.app.app import Application, create_app

_ROOMS = {
    "api.events": "Begin End Event Fault Gap Position Ready Record",
    "api.gateway": "Gateway Produced",
    "api.stream": "Stream",
    "config": "Settings load loads",
    "errors": "AccessDenied AuthenticationFailed BrokerUnavailable Busy CheckpointRefused "
    "ConfigError Fenced FormatError GatewayError GroupFailed GroupInUse GuardUnavailable "
    "KafkaError KeyReused LocalBrokerError MemoryFull NotGranted NotOwned PartitionFailed "
    "PipelineError PipelineUnavailable RegistryUnavailable RequestError StreamEnded TokenCorrupt "
    "TokenError TokenForeign TokenTooOld UnknownTopic",
    "kafka.embedded": "EmbeddedKafka",
    "web.access": "Access Grant Granted",
    "web.app.app": "Application create_app",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}

__all__ = [
    "Access",
    "AccessDenied",
    "Application",
    "AuthenticationFailed",
    "Begin",
    "BrokerUnavailable",
    "Busy",
    "CheckpointRefused",
    "ConfigError",
    "EmbeddedKafka",
    "End",
    "Event",
    "Fault",
    "Fenced",
    "FormatError",
    "Gap",
    "Gateway",
    "GatewayError",
    "Grant",
    "Granted",
    "GroupFailed",
    "GroupInUse",
    "GuardUnavailable",
    "KafkaError",
    "KeyReused",
    "LocalBrokerError",
    "MemoryFull",
    "NotGranted",
    "NotOwned",
    "PartitionFailed",
    "PipelineError",
    "PipelineUnavailable",
    "Position",
    "Produced",
    "Ready",
    "Record",
    "RegistryUnavailable",
    "RequestError",
    "Settings",
    "Stream",
    "StreamEnded",
    "TokenCorrupt",
    "TokenError",
    "TokenForeign",
    "TokenTooOld",
    "UnknownTopic",
    "__version__",
    "create_app",
    "load",
    "loads",
]


if not TYPE_CHECKING:  # or type checkers would believe in any name

    def __getattr__(name: str) -> object:
        from importlib import import_module

        room = _ROOM_OF.get(name)
        if room is None:
            raise AttributeError(f"module 'gateway' has no attribute {name!r}")
        found = globals()[name] = getattr(import_module(f"{__name__}.{room}"), name)
        return found


def __dir__() -> list[str]:
    return [*globals(), *_ROOM_OF]
