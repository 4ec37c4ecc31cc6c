"""Read an AsyncAPI document of version 2 or 3 as the same channels and operations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import unquote

from gateway.cli.migrate.report import SourceValue

MAX_REFERENCES = 32  # one after the other; more are a circle
KAFKA_PROTOCOLS = ("kafka", "kafka-secure")


@dataclass(frozen=True, slots=True)
class Operation:
    """What an application does with a channel.

    Attributes:
        source: What the document says.
        is_send: Whether the application sends, so that clients receive.
        reply: The name of the channel of replies; empty for none.
    """

    source: SourceValue
    is_send: bool
    reply: str = ""


@dataclass(slots=True)
class Channel:
    """A channel.

    Attributes:
        name: Its key in the document.
        source: What the document says.
        address: Its address, which may have parameters.
        servers: The names of its servers; empty for all.
        operations: What the application does with it.
    """

    name: str
    source: SourceValue
    address: str
    servers: list[str]
    messages: list[SourceValue] = field(default_factory=list)
    operations: list[Operation] = field(default_factory=list)

    def carry_address(self, *target: str | int) -> None:
        """Record that its address was carried, which is its key in version 2."""
        self.source.get("address").carry(*target)

    @property
    def kafka(self) -> SourceValue:
        """Its binding of Kafka."""
        return self.source.get("bindings", "kafka")


class Document:
    """A document."""

    def __init__(self, root: SourceValue, *, is_version_3: bool) -> None:
        """Create the document of a root."""
        self.root = root
        self._is_version_3 = is_version_3

    def resolve(self, source: SourceValue) -> SourceValue:
        """Return what a value refers to, or the value itself; nothing if it cannot be found."""
        for _ in range(MAX_REFERENCES):
            reference = source.get("$ref")
            if not reference.text:
                return source
            target = self._find(reference.text)
            if target is None or not target.exists:
                reference.omit(
                    "is not in this file; put all files into one first, by `asyncapi bundle`"
                )
                return SourceValue(source.report, source.loc, None)
            reference.imply("is followed")
            source = target
        return SourceValue(source.report, source.loc, None)

    def list_channels(self) -> list[Channel]:
        """Return the channels of the document."""
        channels = {
            name: self._read_channel(name, channel)
            for name, written in self.root.get("channels").items()
            if (channel := self.resolve(written)).exists
        }
        if self._is_version_3:
            for _, written in self.root.get("operations").items():
                self._read_operation(self.resolve(written), channels)
        return list(channels.values())

    def _find(self, reference: str) -> SourceValue | None:
        """Return the value of a JSON pointer in this document (RFC 6901 6)."""
        if not reference.startswith("#/"):
            return None
        value = self.root
        for step in reference[2:].split("/"):
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            value = value.get(int(key) if isinstance(value.value, list) and key.isdigit() else key)
        return value

    def _read_channel(self, name: str, source: SourceValue) -> Channel:
        if self._is_version_3:
            servers = [each.get("$ref").text.split("/")[-1] for each in source.get("servers")]
            channel = Channel(name, source, source.get("address").text or name, servers)
            for _, message in source.get("messages").items():
                channel.messages.append(self.resolve(message))
            return channel
        servers = source.get("servers").list_texts()
        channel = Channel(name, source, name, servers)
        for key, is_send in (("subscribe", True), ("publish", False)):
            operation = self.resolve(source.get(key))
            if operation.exists:
                channel.operations.append(Operation(operation, is_send))
                channel.messages += self._iter_messages(operation.get("message"))
        return channel

    def _iter_messages(self, written: SourceValue) -> Iterator[SourceValue]:
        message = self.resolve(written)
        if isinstance(message.get("oneOf").value, list):
            for each in message.get("oneOf"):
                yield self.resolve(each)
        elif message.exists:
            yield message

    def _read_operation(self, source: SourceValue, channels: dict[str, Channel]) -> None:
        action = source.get("action")
        channel = channels.get(_read_name(source.get("channel")))
        if channel is None or action.text not in ("send", "receive"):
            source.omit("is of no channel, or neither send nor receive")
            return
        reply = _read_name(self.resolve(source.get("reply")).get("channel"))
        is_send = action.text == "send"
        channel.operations.append(Operation(source, is_send, "" if is_send else reply))


def _read_name(channel: SourceValue) -> str:
    """Return the name of the channel that is referred to."""
    reference = channel.get("$ref").text
    return unquote(reference.split("/")[-1]).replace("~1", "/").replace("~0", "~")
