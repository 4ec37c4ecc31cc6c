"""Stream Apache Kafka to browsers over SSE and WebSocket, and expose Kafka over HTTP.

This module is the Python API. In a program of your own:

    async with Gateway(servers="localhost:9092") as gateway:
        async for record in gateway.subscribe("orders"):
            ...

To mount the gateway in an ASGI application, use `create_app`.

Each name is imported from its module when it is first used (PEP 562), so that `import gateway` and
the commands load only the modules that they need. `gateway/README.md` describes the layers.
"""

from __future__ import annotations

import sys

from .version import __version__

if sys.version_info < (3, 11, 3):
    from .timeouts import repair_timeouts

    repair_timeouts()

# Type checkers take any name TYPE_CHECKING as true. Importing it from `typing` would take most of
# the import time of this module: 10 ms instead of 1.4 ms.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from .api.events import Begin, End, Event, Fault, Gap, Position, Ready, Record
    from .api.gateway import Gateway, Produced
    from .api.stream import Stream
    from .config import Settings, load, loads
    from .errors import (
        AccessDenied,
        AuthenticationFailed,
        BrokerTooOld,
        BrokerUnavailable,
        Busy,
        CheckpointRefused,
        ConfigError,
        ExtraMissing,
        Fenced,
        FormatError,
        GatewayError,
        GroupFailed,
        GroupInUse,
        GuardUnavailable,
        InvalidRecord,
        KafkaError,
        KeyReused,
        LocalBrokerError,
        MemoryFull,
        NotGranted,
        NotOwned,
        PartitionFailed,
        PartitionUnreadable,
        PipelineError,
        PipelineUnavailable,
        RecordRefused,
        RecordTooLarge,
        RegistryUnavailable,
        RequestError,
        SchemaNotFound,
        StreamEnded,
        TableTooLarge,
        TokenCorrupt,
        TokenError,
        TokenForeign,
        TokenTooOld,
        TransactionOpen,
        UnknownGroup,
        UnknownTopic,
        WritesFull,
    )
    from .kafka.embedded import EmbeddedKafka
    from .web.access import Access, Grant, Granted
    from .web.app.app import Application, create_app

# The names that each module exports, in step with the imports above (a test compares them).
_NAMES_BY_MODULE = {
    "api.events": "Begin End Event Fault Gap Position Ready Record",
    "api.gateway": "Gateway Produced",
    "api.stream": "Stream",
    "config": "Settings load loads",
    "errors": "AccessDenied AuthenticationFailed BrokerTooOld BrokerUnavailable Busy "
    "CheckpointRefused ConfigError ExtraMissing Fenced FormatError GatewayError "
    "GroupFailed GroupInUse GuardUnavailable InvalidRecord KafkaError KeyReused "
    "LocalBrokerError MemoryFull NotGranted NotOwned PartitionFailed "
    "PartitionUnreadable PipelineError "
    "PipelineUnavailable RecordRefused RecordTooLarge RegistryUnavailable RequestError "
    "SchemaNotFound StreamEnded TableTooLarge TokenCorrupt TokenError TokenForeign TokenTooOld "
    "TransactionOpen UnknownGroup UnknownTopic WritesFull",
    "kafka.embedded": "EmbeddedKafka",
    "web.access": "Access Grant Granted",
    "web.app.app": "Application create_app",
}
_MODULE_BY_NAME = {
    name: module for module, names in _NAMES_BY_MODULE.items() for name in names.split()
}

__all__ = [
    "Access",
    "AccessDenied",
    "Application",
    "AuthenticationFailed",
    "Begin",
    "BrokerTooOld",
    "BrokerUnavailable",
    "Busy",
    "CheckpointRefused",
    "ConfigError",
    "EmbeddedKafka",
    "End",
    "Event",
    "ExtraMissing",
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
    "InvalidRecord",
    "KafkaError",
    "KeyReused",
    "LocalBrokerError",
    "MemoryFull",
    "NotGranted",
    "NotOwned",
    "PartitionFailed",
    "PartitionUnreadable",
    "PipelineError",
    "PipelineUnavailable",
    "Position",
    "Produced",
    "Ready",
    "Record",
    "RecordRefused",
    "RecordTooLarge",
    "RegistryUnavailable",
    "RequestError",
    "SchemaNotFound",
    "Settings",
    "Stream",
    "StreamEnded",
    "TableTooLarge",
    "TokenCorrupt",
    "TokenError",
    "TokenForeign",
    "TokenTooOld",
    "TransactionOpen",
    "UnknownGroup",
    "UnknownTopic",
    "WritesFull",
    "__version__",
    "create_app",
    "load",
    "loads",
]


if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts any attribute of the module

    def __getattr__(name: str) -> object:
        from importlib import import_module

        module = _MODULE_BY_NAME.get(name)
        if module is None:
            raise AttributeError(f"module 'gateway' has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{module}"), name)
        return value


def __dir__() -> list[str]:
    return [*globals(), *_MODULE_BY_NAME]
