"""The models of topics, applied where records come in and where clients' records go out.

What is behind this, logs, filters, transforms and formats, sees JSON. A record whose schema is
not known yet is not handed on: its partition waits, and is read from there again once the
registry has answered (`kafka.lane`), so nothing is lost and nothing overtakes.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from gateway.config import Settings, Topic
from gateway.config.sections.kafka import Model as Named
from gateway.core.log.record import Entry, Record, Skip
from gateway.errors import FormatError, RegistryUnavailable, RequestError
from gateway.formats.codec import Codecs
from gateway.formats.invalid_values import InvalidValue, RawValue
from gateway.formats.model import Model
from gateway.kafka.fetch.topic_model import ModelResult, TopicModel

from .transform import Transformer


class Models:
    """Of one hub; `close` it in the loop.

    topic:   the settings of a topic, by name.
    invalid: records that were none of a model, by topic and what was done.
    """

    def __init__(self, settings: Settings, get_topic_settings: Callable[[str], Topic]) -> None:
        self._get_topic_settings = get_topic_settings
        self._catalogs = settings.catalogs
        self._codecs: dict[str, Codecs] = {}
        self._retired_codecs: list[Codecs] = []
        self._topic_models: dict[str, tuple[Topic, TopicModel | None]] = {}
        self.invalid: Counter[tuple[str, str]] = Counter()

    async def close(self) -> None:
        for codecs in (*self._codecs.values(), *self._retired_codecs):
            await codecs.close()

    def apply_settings(self, settings: Settings) -> None:
        """Go by these catalogs from now on."""
        for name, codecs in list(self._codecs.items()):
            if settings.catalogs.get(name) != self._catalogs.get(name):
                self._retired_codecs.append(codecs)
                del self._codecs[name]
        self._catalogs = settings.catalogs
        self._topic_models.clear()

    def get_topic_model(self, topic: str) -> TopicModel | None:
        """How the entries of a topic are understood; None where there is nothing to do."""
        settings = self._get_topic_settings(topic)
        known = self._topic_models.get(topic)
        if known is None or known[0] is not settings:
            known = self._topic_models[topic] = (settings, self._create_topic_model(settings))
        return known[1]

    def has_model(self, topic: str) -> bool:
        """May a record of it be none of its model?"""
        settings = self._get_topic_settings(topic)
        return settings.key.is_decoded or settings.value.is_decoded

    async def encode_record(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Key and value as Kafka is to have them. Raises RequestError: 400 for what is none of the
        model, 503 while the registry is away."""
        settings = self._get_topic_settings(topic)
        try:
            if key is not None and settings.key.is_decoded:
                key = await self._create_model(settings.key, is_key=True).encode(topic, key)
            if value is not None and settings.value.is_decoded:
                value = await self._create_model(settings.value, is_key=False).encode(topic, value)
        except FormatError as exc:
            raise RequestError(400, "Not of the model", str(exc)) from None
        except RegistryUnavailable as exc:
            after = exc.retry_after
            raise RequestError(503, "Registry away", f"{exc}", retry_after=after) from None
        return key, value

    async def preview(self, record: Record) -> Record | None:
        """Return what streams show of a record that is about to be written, as Kafka will have it:
        decoded and transformed, before any filter. None if they skip it."""
        understand, shown = self.get_topic_model(record.tp.topic), [record]
        while understand is not None:
            understood = understand([record])
            if understood.load_schemas is None:
                shown = [each for each in understood.entries if type(each) is Record]
                break
            await understood.load_schemas()
        transforms = self._get_topic_settings(record.tp.topic).transforms
        if shown and transforms:
            transformed = Transformer(transforms)(shown[0])
            assert type(transformed) is Record
            return transformed
        return shown[0] if shown else None

    def _create_topic_model(self, settings: Topic) -> TopicModel | None:
        key = self._create_field_model(settings, settings.key, is_key=True)
        value = self._create_field_model(settings, settings.value, is_key=False)
        parts = [part for part in (key, value) if part is not None]
        return _RecordModel(parts) if parts else None

    def _create_field_model(
        self, topic: Topic, named: Named, *, is_key: bool
    ) -> _FieldModel | None:
        if not named.is_decoded:
            return None
        return _FieldModel(
            topic.name, self._create_model(named, is_key=is_key), named, is_key, self.invalid
        )

    def _create_model(self, named: Named, *, is_key: bool) -> Model:
        if named.catalog is None:
            return Model(named.model, is_key=is_key)
        codecs = self._codecs.get(named.catalog)
        if codecs is None:
            codecs = self._codecs[named.catalog] = Codecs(self._catalogs[named.catalog])
        return Model(named.model, codecs, is_key=is_key)


class _FieldModel:
    """Keys or values of a topic."""

    __slots__ = ("_invalid_counts", "_is_key", "_on_invalid", "_topic", "model")

    def __init__(
        self,
        topic: str,
        model: Model,
        named: Named,
        is_key: bool,
        invalid: Counter[tuple[str, str]],
    ) -> None:
        self.model = model
        self._topic = topic
        self._is_key = is_key
        self._on_invalid = named.on_invalid
        self._invalid_counts = invalid

    def get_data(self, record: Record) -> bytes | None:
        return record.key if self._is_key else record.value

    def decode_field(self, record: Record, data: bytes) -> Record | Skip:
        try:
            shown = self.model.decode(data)
        except FormatError as exc:
            return self._handle_invalid(record, data, exc)
        return record._replace(key=shown) if self._is_key else record._replace(value=shown)

    def _handle_invalid(self, record: Record, data: bytes, exc: FormatError) -> Record | Skip:
        self._invalid_counts[self._topic, self._on_invalid] += 1
        if self._on_invalid == "skip":
            return Skip(record.tp, record.offset, record.next_offset, record.epoch)
        if self._on_invalid == "raw":
            return record if self._is_key else record._replace(value=RawValue(data))
        about = f"its key: {exc}" if self._is_key else str(exc)
        return record._replace(value=InvalidValue.create(record.value, about))


class _RecordModel:
    """Of one topic."""

    def __init__(self, parts: Sequence[_FieldModel]) -> None:
        self._fields = parts

    def __call__(self, entries: Sequence[Entry]) -> ModelResult:
        found: list[Entry] = []
        for n, entry in enumerate(entries):
            if type(entry) is Record and self._needs_schema(entry):
                return ModelResult(found, partial(self._load_schemas, entries[n:]))
            found.append(self._decode_record(entry) if type(entry) is Record else entry)
        return ModelResult(found)

    def _decode_record(self, record: Record) -> Record | Skip:
        """The key first; a record without a good one is shown, if at all, as invalid."""
        for part in self._fields:
            data = part.get_data(record)
            if not data or type(data) is InvalidValue:
                continue
            made = part.decode_field(record, data)
            if isinstance(made, Skip):
                return made
            record = made
        return record

    def _needs_schema(self, record: Record) -> bool:
        for part in self._fields:
            data = part.get_data(record)
            if data and part.model.find_missing_id(data) is not None:
                return True
        return False

    async def _load_schemas(self, entries: Sequence[Entry]) -> None:
        """For all that these need, at once."""
        asks = []
        for part in self._fields:
            datas = [part.get_data(entry) for entry in entries if type(entry) is Record]
            ids = {part.model.find_missing_id(data) for data in datas if data} - {None}
            if ids:
                asks.append(part.model.load_schema_ids({id for id in ids if id is not None}))
        await asyncio.gather(*asks)
