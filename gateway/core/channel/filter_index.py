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

from .filters import Filters, IndexTerm, LazyValue, Path, TermTarget

MAX_CHEAP_BUCKET_SIZE = 8  # under one value: asked as fast as another field is looked up

T = TypeVar("T", bound=Hashable)
Matches: TypeAlias = Callable[[Record, LazyValue], bool]
Bucket: TypeAlias = dict[T, Matches | None]  # None: who is found here needs no more asking
BucketsByValue: TypeAlias = dict[Any, Bucket[T]]  # by value


class FilterIndex(Generic[T]):
    """From filters to whom they stand for. Adding and removing costs the values of the filter,
    not how many others there are."""

    def __init__(self) -> None:
        self._keys: BucketsByValue[T] = {}
        self._headers: dict[str, BucketsByValue[T]] = {}
        self._fields: dict[Path, BucketsByValue[T]] = {}
        self._unindexed: dict[T, Matches] = {}
        self._terms: dict[T, tuple[IndexTerm, ...]] = {}

    def __len__(self) -> int:
        return len(self._terms)

    def __iter__(self) -> Iterator[T]:
        return iter(self._terms)

    def add(self, item: T, filters: Filters) -> None:
        """Filters that let everything through are asked about everything."""
        parts = self._terms[item] = self._choose_terms(filters)
        if not parts:
            self._unindexed[item] = filters.matches
        for part in parts:
            table = self._ensure_table(part.target)
            rest = None if part.is_whole_filter and filters.within is None else filters.matches
            for value in part.values:
                bucket = table.setdefault(value, {})
                if bucket.get(item, rest) is not None:  # of two alternatives one may have no rest
                    bucket[item] = rest
                else:
                    bucket[item] = None

    def remove(self, item: T) -> None:
        """Raises KeyError for one that was not added."""
        self._unindexed.pop(item, None)
        for site, values, _ in self._terms.pop(item):
            table = self._ensure_table(site)
            for value in values:
                bucket = table.get(value, {})
                bucket.pop(item, None)
                if not bucket:
                    table.pop(value, None)
            if not table:
                self._remove_table(site)

    def find(self, record: Record) -> Collection[T]:
        """All whose filters let the record through, each once."""
        value = LazyValue(record.value)
        found: dict[T, None] = {}
        for bucket in self._find_buckets(record, value):
            for to, rest in bucket.items():
                if rest is None or (to not in found and rest(record, value)):
                    found[to] = None
        for to, matches in self._unindexed.items():
            if matches(record, value):
                found[to] = None
        return found

    def _find_buckets(self, record: Record, value: LazyValue) -> list[Bucket[T]]:
        hit = []
        bucket = self._keys.get(record.key)
        if bucket is not None:
            hit.append(bucket)
        for name, content in record.headers if self._headers else ():
            bucket = self._headers.get(name, {}).get(content)
            if bucket is not None:
                hit.append(bucket)
        for path, table in self._fields.items():
            bucket = table.get(value.get_text(path))
            if bucket is not None:
                hit.append(bucket)
        return hit

    # where a filter is kept

    def _choose_terms(self, filters: Filters) -> tuple[IndexTerm, ...]:
        """A part of each alternative; none if one has none. Of filters within others either
        will do."""
        options = []
        each: Filters | None = filters
        while each is not None:
            parts = [min(one.index_terms, key=self._cost, default=None) for one in each.filters]
            there = tuple(part for part in parts if part is not None)
            if there and len(there) == len(parts):
                options.append(there)
            each = each.within
        return min(options, key=lambda parts: max(map(self._cost, parts)), default=())

    def _cost(self, part: IndexTerm) -> tuple[int, int]:
        """How crowded its values are, then what looking there takes."""
        site, table = part.target, self._get_table(part.target)
        crowd = max((len(table.get(value, ())) for value in part.values), default=0)
        if site is None:
            return crowd // MAX_CHEAP_BUCKET_SIZE, 0
        if isinstance(site, str):
            return crowd // MAX_CHEAP_BUCKET_SIZE, 1
        return crowd // MAX_CHEAP_BUCKET_SIZE, 2 if table else 3

    def _get_table(self, site: TermTarget) -> BucketsByValue[T]:
        if site is None:
            return self._keys
        if isinstance(site, str):
            return self._headers.get(site, {})
        return self._fields.get(site, {})

    def _ensure_table(self, site: TermTarget) -> BucketsByValue[T]:
        if site is None:
            return self._keys
        if isinstance(site, str):
            return self._headers.setdefault(site, {})
        return self._fields.setdefault(site, {})

    def _remove_table(self, site: TermTarget) -> None:
        if isinstance(site, str):
            del self._headers[site]
        elif site is not None:
            del self._fields[site]
