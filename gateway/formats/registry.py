"""Schemas, as a schema registry has them (Confluent's API), and a memory of them.

What an id or a version names never changes and is kept; which schema is the latest is asked
again after `maxAge`, and believed for longer while the registry is away. That there is none
is kept for a moment only: it may be registered next. Who asks for what is being asked for
waits for the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping
from time import monotonic
from typing import Any, NamedTuple
from urllib.parse import quote

from gateway.config import SchemaRegistry
from gateway.config.source.expression import closest
from gateway.errors import FormatError, RegistryUnavailable
from gateway.telemetry.about import apart

from .asked import Asked, NotThere, Rejected
from .named import Format, Reference

MISSING = 5.0  # seconds for which nobody asks again for what is not there
MOST_MISSING = 1_000  # that are kept
DEEPEST = 32  # references of references
MAX_REFERENCES = 1_000  # of one schema, and theirs

_KINDS = {Format.AVRO: "AVRO", Format.PROTOBUF: "PROTOBUF", Format.JSONSCHEMA: "JSON"}
_FORMATS = {kind: format for format, kind in _KINDS.items()}


class Schema(NamedTuple):
    """A schema, and those it refers to by their names there, the innermost first."""

    id: int
    format: Format
    text: str
    used: Mapping[str, str]


class _Kept(NamedTuple):
    found: Schema | FormatError
    until: float


class Registry:
    """One registry; `close` it in the loop that asked."""

    def __init__(self, catalog: SchemaRegistry, now: Callable[[], float] = monotonic) -> None:
        self._asked = Asked(catalog)
        self._catalog = catalog
        self._now = now
        self._kept: dict[Hashable, _Kept] = {}
        self._asking: dict[Hashable, asyncio.Task[Schema]] = {}

    async def close(self) -> None:
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._asked.close()

    def known(self, key: Hashable) -> Schema | None:
        """What is kept under a key: an id, `(subject, version)`, or what `written` was given.
        None where the registry is to be asked. Raises FormatError for what is not there."""
        kept = self._kept.get(key)
        if kept is None or kept.until <= self._now():
            return None
        if isinstance(kept.found, FormatError):
            raise kept.found.with_traceback(None)
        return kept.found

    async def by_id(self, id: int) -> Schema:
        """Raises FormatError, RegistryUnavailable; so do the next ones."""
        return await self._once(id, lambda: self._by_id(id))

    async def by_version(self, subject: str, version: int | None) -> Schema:
        """version: None for the latest."""
        age = self._catalog.max_age if version is None else None
        return await self._once((subject, version), lambda: self._by_version(subject, version), age)

    async def written(
        self, subject: str, format: Format, text: str, references: tuple[Reference, ...]
    ) -> Schema:
        """The schema of that text under a subject, registered where `autoRegister` says so."""
        key = (subject, format, text, references)
        return await self._once(key, lambda: self._written(*key))

    async def _once(
        self,
        key: Hashable,
        ask: Callable[[], Coroutine[Any, Any, Schema]],
        age: float | None = None,
    ) -> Schema:
        if (found := self.known(key)) is not None:
            return found
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = apart(self._ask(key, ask, age))
            task.add_done_callback(lambda done: self._answered(key, done))
        return await asyncio.shield(task)

    def _answered(self, key: Hashable, done: asyncio.Task[Schema]) -> None:
        self._asking.pop(key, None)
        if not done.cancelled():
            done.exception()  # who asked may have gone

    async def _ask(
        self, key: Hashable, ask: Callable[[], Coroutine[Any, Any, Schema]], age: float | None
    ) -> Schema:
        try:
            found = await ask()
        except FormatError as exc:
            self._mind_room()
            self._kept[key] = _Kept(exc, self._now() + MISSING)
            raise
        except RegistryUnavailable:
            before = self._kept.get(key)
            if before is None or isinstance(before.found, FormatError):
                raise
            self._kept[key] = before._replace(until=self._now() + MISSING)
            return before.found
        self._kept[key] = _Kept(found, float("inf") if age is None else self._now() + age)
        return found

    def _mind_room(self) -> None:
        missing = [key for key, kept in self._kept.items() if isinstance(kept.found, FormatError)]
        for key in missing[: max(0, len(missing) - MOST_MISSING)]:
            del self._kept[key]

    # what is asked

    async def _by_id(self, id: int) -> Schema:
        try:
            said = await self._asked.ask("GET", f"/schemas/ids/{id}")
        except NotThere:
            what = f"the registry has no schema with the id {id}"
            raise FormatError(f"{what}; write with one of its schemas") from None
        except Rejected as exc:
            raise FormatError(f"the registry gives no schema with the id {id}: {exc}") from None
        return await self._schema(id, said)

    async def _by_version(self, subject: str, version: int | None) -> Schema:
        said = await self._version(subject, version)
        return await self._schema(said["id"], said)

    async def _version(self, subject: str, version: int | None) -> Any:
        at = "latest" if version is None else str(version)
        try:
            said = await self._asked.ask("GET", f"/subjects/{quote(subject, '')}/versions/{at}")
        except NotThere as exc:
            if exc.code == 40402 and version is not None:
                what = f"subject '{subject}' has no version {version}"
                raise FormatError(f"{what}; use one that it has, or leave it out") from None
            raise await self._unknown(subject) from None
        except Rejected as exc:
            raise FormatError(f"the registry gives no {at} of '{subject}': {exc}") from None
        if not isinstance(said, dict) or not isinstance(said.get("id"), int):
            raise FormatError(f"the registry's {at} of '{subject}' has no id; correct url")
        return said

    async def _written(
        self, subject: str, format: Format, text: str, references: tuple[Reference, ...]
    ) -> Schema:
        named = quote(subject, "")
        path = (
            f"/subjects/{named}/versions" if self._catalog.auto_register else f"/subjects/{named}"
        )
        body: dict[str, Any] = {"schema": text}
        if format is not Format.AVRO:
            body["schemaType"] = _KINDS[format]
        if references:
            body["references"] = [each._asdict() for each in references]
        try:
            said = await self._asked.ask("POST", path, body)
        except NotThere as exc:
            if exc.code == 40401:
                raise await self._unknown(subject) from None
            what = f"subject '{subject}' has no such schema"
            raise FormatError(f"{what}; register it, or use one that it has") from None
        except Rejected as exc:
            why = "incompatible with earlier ones" if exc.status == 409 else "refused"
            raise FormatError(f"the schema for subject '{subject}' is {why}: {exc}") from None
        used = await self._used([each._asdict() for each in references], {})
        return Schema(said["id"], format, text, used)

    async def _schema(self, id: int, said: Any) -> Schema:
        kind = said.get("schemaType", "AVRO") if isinstance(said, dict) else None
        if kind not in _FORMATS or not isinstance(said.get("schema"), str):
            raise FormatError(f"schema {id} is of a kind that is not known here: {kind}")
        used = await self._used(said.get("references") or [], {})
        return Schema(id, _FORMATS[kind], said["schema"], used)

    async def _used(
        self, references: Any, asked: dict[tuple[str, int], Any], depth: int = 0
    ) -> dict[str, str]:
        """The texts of references and theirs, the innermost first.

        asked: what the registry said of each, which is asked for once: two references to the same
        two, and so on, are 2**32 at a depth of 32.
        """
        if depth > DEEPEST:
            raise FormatError(f"references of schemas go deeper than {DEEPEST}; flatten them")
        found: dict[str, str] = {}
        for each in references:
            place = each["subject"], each["version"]
            if (said := asked.get(place)) is not None:
                found.setdefault(each["name"], said["schema"])
                continue
            if len(asked) >= MAX_REFERENCES:
                raise FormatError(f"a schema has over {MAX_REFERENCES} references; merge them")
            said = asked[place] = await self._version(*place)
            inner = await self._used(said.get("references") or [], asked, depth + 1)
            found |= {name: text for name, text in inner.items() if name not in found}
            found.setdefault(each["name"], said["schema"])
        return found

    async def _unknown(self, subject: str) -> FormatError:
        """That there is no such subject, with the one that is most like it."""
        try:
            said = await self._asked.ask("GET", "/subjects")
        except (NotThere, Rejected, RegistryUnavailable):
            said = []
        names = [name for name in said if isinstance(name, str)] if isinstance(said, list) else []
        near = closest(subject, names)
        hint = f"did you mean '{near}'?" if near else "register a schema for it"
        return FormatError(f"the registry has no subject '{subject}'; {hint}")
