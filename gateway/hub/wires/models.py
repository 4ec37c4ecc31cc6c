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
from gateway.formats.invalid import Invalid, Raw
from gateway.formats.model import Model
from gateway.kafka.fetch.understanding import Understand, Understood

from .transform import Transformer


class Models:
    """Of one hub; `close` it in the loop.

    topic:   the settings of a topic, by name.
    invalid: records that were none of a model, by topic and what was done.
    """

    def __init__(self, settings: Settings, topic: Callable[[str], Topic]) -> None:
        self._topic = topic
        self._catalogs = settings.catalogs
        self._codecs: dict[str, Codecs] = {}
        self._left: list[Codecs] = []
        self._known: dict[str, tuple[Topic, Understand | None]] = {}
        self.invalid: Counter[tuple[str, str]] = Counter()

    async def close(self) -> None:
        for codecs in (*self._codecs.values(), *self._left):
            await codecs.close()

    def adopt(self, settings: Settings) -> None:
        """Go by these catalogs from now on."""
        for name, codecs in list(self._codecs.items()):
            if settings.catalogs.get(name) != self._catalogs.get(name):
                self._left.append(codecs)
                del self._codecs[name]
        self._catalogs = settings.catalogs
        self._known.clear()

    def of(self, topic: str) -> Understand | None:
        """How the entries of a topic are understood; None where there is nothing to do."""
        settings = self._topic(topic)
        known = self._known.get(topic)
        if known is None or known[0] is not settings:
            known = self._known[topic] = (settings, self._understand(settings))
        return known[1]

    def decodes(self, topic: str) -> bool:
        """May a record of it be none of its model?"""
        settings = self._topic(topic)
        return settings.key.decodes or settings.value.decodes

    async def written(
        self, topic: str, key: bytes | None, value: bytes | None
    ) -> tuple[bytes | None, bytes | None]:
        """Key and value as Kafka is to have them. Raises RequestError: 400 for what is none of the
        model, 503 while the registry is away."""
        settings = self._topic(topic)
        try:
            if key is not None and settings.key.decodes:
                key = await self._model(settings.key, is_key=True).written(topic, key)
            if value is not None and settings.value.decodes:
                value = await self._model(settings.value, is_key=False).written(topic, value)
        except FormatError as exc:
            raise RequestError(400, "Not of the model", str(exc)) from None
        except RegistryUnavailable as exc:
            after = exc.retry_after
            raise RequestError(503, "Registry away", f"{exc}", retry_after=after) from None
        return key, value

    async def preview(self, record: Record) -> Record | None:
        """Return what streams show of a record that is about to be written, as Kafka will have it:
        decoded and transformed, before any filter. None if they skip it."""
        understand, shown = self.of(record.tp.topic), [record]
        while understand is not None:
            understood = understand([record])
            if understood.ask is None:
                shown = [each for each in understood.entries if type(each) is Record]
                break
            await understood.ask()
        transforms = self._topic(record.tp.topic).transforms
        if shown and transforms:
            transformed = Transformer(transforms)(shown[0])
            assert type(transformed) is Record
            return transformed
        return shown[0] if shown else None

    def _understand(self, settings: Topic) -> Understand | None:
        key = self._part(settings, settings.key, is_key=True)
        value = self._part(settings, settings.value, is_key=False)
        parts = [part for part in (key, value) if part is not None]
        return _Understanding(parts) if parts else None

    def _part(self, topic: Topic, named: Named, *, is_key: bool) -> _Part | None:
        if not named.decodes:
            return None
        return _Part(topic.name, self._model(named, is_key=is_key), named, is_key, self.invalid)

    def _model(self, named: Named, *, is_key: bool) -> Model:
        if named.catalog is None:
            return Model(named.model, is_key=is_key)
        codecs = self._codecs.get(named.catalog)
        if codecs is None:
            codecs = self._codecs[named.catalog] = Codecs(self._catalogs[named.catalog])
        return Model(named.model, codecs, is_key=is_key)


class _Part:
    """Keys or values of a topic."""

    __slots__ = ("_count", "_invalid", "_is_key", "_topic", "model")

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
        self._invalid = named.on_invalid
        self._count = invalid

    def data(self, record: Record) -> bytes | None:
        return record.key if self._is_key else record.value

    def decoded(self, record: Record, data: bytes) -> Record | Skip:
        try:
            shown = self.model.shown(data)
        except FormatError as exc:
            return self._misfit(record, data, exc)
        return record._replace(key=shown) if self._is_key else record._replace(value=shown)

    def _misfit(self, record: Record, data: bytes, exc: FormatError) -> Record | Skip:
        self._count[self._topic, self._invalid] += 1
        if self._invalid == "skip":
            return Skip(record.tp, record.offset, record.next, record.epoch)
        if self._invalid == "raw":
            return record if self._is_key else record._replace(value=Raw(data))
        about = f"its key: {exc}" if self._is_key else str(exc)
        return record._replace(value=Invalid.of(record.value, about))


class _Understanding:
    """Of one topic."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._parts = parts

    def __call__(self, entries: Sequence[Entry]) -> Understood:
        found: list[Entry] = []
        for n, entry in enumerate(entries):
            if type(entry) is Record and self._is_unknown(entry):
                return Understood(found, partial(self._ask, entries[n:]))
            found.append(self._decoded(entry) if type(entry) is Record else entry)
        return Understood(found)

    def _decoded(self, record: Record) -> Record | Skip:
        """The key first; a record without a good one is shown, if at all, as invalid."""
        for part in self._parts:
            data = part.data(record)
            if not data or type(data) is Invalid:
                continue
            made = part.decoded(record, data)
            if isinstance(made, Skip):
                return made
            record = made
        return record

    def _is_unknown(self, record: Record) -> bool:
        for part in self._parts:
            data = part.data(record)
            if data and part.model.unknown(data) is not None:
                return True
        return False

    async def _ask(self, entries: Sequence[Entry]) -> None:
        """For all that these need, at once."""
        asks = []
        for part in self._parts:
            datas = [part.data(entry) for entry in entries if type(entry) is Record]
            ids = {part.model.unknown(data) for data in datas if data} - {None}
            if ids:
                asks.append(part.model.learn({id for id in ids if id is not None}))
        await asyncio.gather(*asks)
