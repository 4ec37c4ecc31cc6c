"""Whom a record concerns, found by what it holds instead of by asking every filter.

A filter is kept under the values that one of its equalities (or an `in`) wants: of the key,
a header, or a field of the value. A record is looked up by its key, by its headers, and by
each field in use; whoever is found is asked for the rest of its filter, if there is a rest.
Filters without such a part are asked about every record.

Of several parts that would do, one whose values are not crowded is taken: by a route's
`type: order`, which all of its clients share, all would be found every time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Any, Generic, TypeAlias, TypeVar

from gateway.core.log.record import Record

from .filters import Filters, LazyValue, Named, Path, Site

FEW = 8  # under one value: asked as fast as another field is looked up

T = TypeVar("T", bound=Hashable)
Matches: TypeAlias = Callable[[Record, LazyValue], bool]
Bucket: TypeAlias = dict[T, Matches | None]  # None: who is found here needs no more asking
Table: TypeAlias = dict[Any, Bucket[T]]  # by value


class Index(Generic[T]):
    """From filters to whom they stand for. Adding and removing costs the values of the filter,
    not how many others there are."""

    def __init__(self) -> None:
        self._keys: Table[T] = {}
        self._headers: dict[str, Table[T]] = {}
        self._fields: dict[Path, Table[T]] = {}
        self._asked: dict[T, Matches] = {}
        self._parts: dict[T, tuple[Named, ...]] = {}

    def __len__(self) -> int:
        return len(self._parts)

    def __iter__(self) -> Iterator[T]:
        return iter(self._parts)

    def add(self, to: T, filters: Filters) -> None:
        """Filters that let everything through are asked about everything."""
        parts = self._parts[to] = self._chosen(filters)
        if not parts:
            self._asked[to] = filters.matches
        for part in parts:
            table = self._table(part.site)
            rest = None if part.whole and filters.within is None else filters.matches
            for value in part.values:
                bucket = table.setdefault(value, {})
                if bucket.get(to, rest) is not None:  # of two alternatives one may have no rest
                    bucket[to] = rest
                else:
                    bucket[to] = None

    def remove(self, to: T) -> None:
        """Raises KeyError for one that was not added."""
        self._asked.pop(to, None)
        for site, values, _ in self._parts.pop(to):
            table = self._table(site)
            for value in values:
                bucket = table.get(value, {})
                bucket.pop(to, None)
                if not bucket:
                    table.pop(value, None)
            if not table:
                self._forget(site)

    def find(self, record: Record) -> Collection[T]:
        """All whose filters let the record through, each once."""
        value = LazyValue(record.value)
        found: dict[T, None] = {}
        for bucket in self._hit(record, value):
            for to, rest in bucket.items():
                if rest is None or (to not in found and rest(record, value)):
                    found[to] = None
        for to, matches in self._asked.items():
            if matches(record, value):
                found[to] = None
        return found

    def _hit(self, record: Record, value: LazyValue) -> list[Bucket[T]]:
        hit = []
        bucket = self._keys.get(record.key)
        if bucket is not None:
            hit.append(bucket)
        for name, content in record.headers if self._headers else ():
            bucket = self._headers.get(name, {}).get(content)
            if bucket is not None:
                hit.append(bucket)
        for path, table in self._fields.items():
            bucket = table.get(value.text(path))
            if bucket is not None:
                hit.append(bucket)
        return hit

    # where a filter is kept

    def _chosen(self, filters: Filters) -> tuple[Named, ...]:
        """A part of each alternative; none if one has none. Of filters within others either
        will do."""
        options = []
        each: Filters | None = filters
        while each is not None:
            parts = [min(one.named, key=self._cost, default=None) for one in each.filters]
            there = tuple(part for part in parts if part is not None)
            if there and len(there) == len(parts):
                options.append(there)
            each = each.within
        return min(options, key=lambda parts: max(map(self._cost, parts)), default=())

    def _cost(self, part: Named) -> tuple[int, int]:
        """How crowded its values are, then what looking there takes."""
        site, table = part.site, self._at(part.site)
        crowd = max((len(table.get(value, ())) for value in part.values), default=0)
        if site is None:
            return crowd // FEW, 0
        if isinstance(site, str):
            return crowd // FEW, 1
        return crowd // FEW, 2 if table else 3

    def _at(self, site: Site) -> Table[T]:
        if site is None:
            return self._keys
        if isinstance(site, str):
            return self._headers.get(site, {})
        return self._fields.get(site, {})

    def _table(self, site: Site) -> Table[T]:
        if site is None:
            return self._keys
        if isinstance(site, str):
            return self._headers.setdefault(site, {})
        return self._fields.setdefault(site, {})

    def _forget(self, site: Site) -> None:
        if isinstance(site, str):
            del self._headers[site]
        elif site is not None:
            del self._fields[site]
