"""Show a record as text: decoded by the configuration's models, or its bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Self

from gateway.cli.options import KafkaSource
from gateway.core.log.record import Record
from gateway.core.times import format_time
from gateway.errors import FormatError, RegistryUnavailable

if TYPE_CHECKING:
    from gateway.config import Model, SchemaRegistry, Topic

MAX_SHOWN_CHARS = 500
MAX_SHOWN_BYTES = 32


@dataclass(frozen=True)
class Sample:
    """A record as text. The value of a tombstone is None."""

    partition: int
    offset: int
    time: str
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...] = ()


@dataclass(frozen=True)
class SampleDecoder:
    topic: Topic | None = None
    catalogs: Mapping[str, SchemaRegistry] = field(default_factory=dict)

    @classmethod
    def create(cls, source: KafkaSource, topic: str) -> Self:
        if source.file is None:
            return cls()
        from gateway.config import load

        settings = load(source.file)
        listed = (kafka.find_topic(topic) for kafka in settings.clusters.values())
        return cls(next((each for each in listed if each is not None), None), settings.catalogs)

    async def decode(self, record: Record) -> Sample:
        key, value = (self.topic.key, self.topic.value) if self.topic else (None, None)
        return Sample(
            record.tp.partition,
            record.offset,
            format_time(max(record.timestamp, 0)),
            await self._decode_part(record, record.key, key, is_key=True),
            await self._decode_part(record, record.value, value, is_key=False),
            tuple(
                (name, None if value is None else show_bytes(value))
                for name, value in record.headers
            ),
        )

    async def _decode_part(
        self, record: Record, data: bytes | None, model: Model | None, *, is_key: bool
    ) -> str | None:
        if data is None:
            return None
        if model is None or not model.is_decoded:
            return show_bytes(data)
        from gateway.formats.codec import Codecs
        from gateway.formats.model import Model as Decoder

        codecs = None if model.catalog is None else Codecs(self.catalogs[model.catalog])
        decoder = Decoder(model.model, codecs, is_key=is_key)
        record = decoder.frame_record(record)
        framed = (record.key if is_key else record.value) or b""
        try:
            missing = decoder.find_missing_id(framed)
            if missing is not None:
                await decoder.load_schema_ids([missing])
            return _cut(decoder.decode(framed).decode())
        except (FormatError, RegistryUnavailable) as exc:
            return f"{show_bytes(data)} (not {model.model}: {exc})"
        finally:
            if codecs is not None:
                await codecs.close()


def show_bytes(data: bytes) -> str:
    """Return bytes as text, or their length and beginning if they are not text."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if text.isprintable() or "\0" not in text:
        return _cut(text)
    if data[:1] == b"\0" and len(data) > 5:
        schema_id = int.from_bytes(data[1:5], "big")
        hint = "to decode it, set model and catalog of the topic"
        return f"{len(data)} bytes, perhaps of schema {schema_id} of a registry; {hint}"
    shown = data[:MAX_SHOWN_BYTES].hex(" ")
    return f"{len(data)} bytes: {shown}{' ...' if len(data) > MAX_SHOWN_BYTES else ''}"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]} ..."
