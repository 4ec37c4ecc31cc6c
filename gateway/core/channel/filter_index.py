"""Find the filters that a record passes by the record's content, not by asking every filter.

A filter is kept under the values that one of its equalities (or an `in`) requires of the key, a
header, or a field of the value. A record is looked up by its key, by its headers, and by each of
its fields that is in use. The filters found are then asked about the rest of their conditions.
Filters without such a part are asked about every record.

If several parts would do, one whose values have few filters is taken: under a route's `type:
order`, which all of its clients share, every lookup would find all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeAlias, TypeVar

from gateway.core.log.record import Record

from .filters import MISSING, Filters, IndexTerm, LazyValue, Path, TermTarget, get_child

MAX_CHEAP_BUCKET_SIZE = 8  # asking so many filters takes as long as looking up another field

T = TypeVar("T", bound=Hashable)
Matches: TypeAlias = Callable[[Record, LazyValue], bool]
# An item, and what is left to ask its filters. None: the value alone decides.
Candidate: TypeAlias = tuple[T, Matches | None]
# Most keys have one item, and a dict of one takes 170 bytes more than the candidate alone.
Bucket: TypeAlias = Candidate[T] | dict[T, Matches | None]
BucketsByValue: TypeAlias = dict[Any, Bucket[T]]


class FilterIndex(Generic[T]):
    """A map from filters to items, looked up by record.

    Adding and removing cost time in proportion to the values of the filter, not to the number of
    other filters. Owned by a `ChannelDispatcher`, whose items are channels. `on_unreadable` is
    called with a record that is no JSON, if filters looked into its value.

    Invariant between calls: each item of `_items` is either in `_unindexed` or in one bucket for
    every value of the terms that `add` chose. No table of a header is empty, and no field without
    a table and fields below it is kept.
    """

    def __init__(self, on_unreadable: Callable[[Record], None] = lambda record: None) -> None:
        self._on_unreadable = on_unreadable
        self._keys: BucketsByValue[T] = {}
        self._headers: dict[str, BucketsByValue[T]] = {}
        self._fields: _FieldNode[T] = _FieldNode()
        self._unindexed: dict[T, Matches] = {}
        self._items: dict[T, None] = {}

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items)

    def add(self, item: T, filters: Filters) -> None:
        self._items[item] = None
        terms = self._choose_terms(filters)
        if not terms:
            self._unindexed[item] = filters.matches
        for term in terms:
            table = self._ensure_table(term.target)
            remaining = None if term.is_whole_filter and filters.within is None else filters.matches
            for value in term.values:
                table[value] = _add_candidate(table.get(value), item, remaining)

    def remove(self, item: T, filters: Filters) -> None:
        del self._items[item]
        self._unindexed.pop(item, None)
        # Which terms were chosen is not kept: that would take 160 bytes of each item.
        for level in _iter_levels(filters):
            for filter_ in level.filters:
                for term in filter_.index_terms:
                    self._remove_from_table(item, term)

    def _remove_from_table(self, item: T, term: IndexTerm) -> None:
        table = self._get_table(term.target)
        for value in term.values:
            bucket = table.get(value)
            if bucket is not None:
                bucket = _remove_candidate(bucket, item)
                if bucket is None:
                    del table[value]
        if not table:
            self._remove_table(term.target)

    def find(self, record: Record) -> Collection[T]:
        value = LazyValue(record.value)
        matching: dict[T, None] = {}
        for bucket in self._find_buckets(record, value):
            candidates = bucket.items() if isinstance(bucket, dict) else (bucket,)
            for item, remaining in candidates:
                if remaining is None or (item not in matching and remaining(record, value)):
                    matching[item] = None
        for item, matches in self._unindexed.items():
            if matches(record, value):
                matching[item] = None
        if value.is_unreadable:
            self._on_unreadable(record)
        return matching

    def _find_buckets(self, record: Record, value: LazyValue) -> list[Bucket[T]]:
        buckets = []
        bucket = self._keys.get(record.key)
        if bucket is not None:
            buckets.append(bucket)
        for name, content in record.headers if self._headers else ():
            bucket = self._headers.get(name, {}).get(content)
            if bucket is not None:
                buckets.append(bucket)
        root = self._fields
        if not (root.buckets or root.children):
            return buckets
        present: list[tuple[_FieldNode[T], Any]] = [(root, value.get_value(()))]
        for node, content in present:  # which grows by the fields below
            if node.buckets:
                bucket = node.buckets.get(value.format_text(node.path, content))
                if bucket is not None:
                    buckets.append(bucket)
            if node.children:
                node.add_present(content, present)
        return buckets

    # Where a filter is kept.

    def _choose_terms(self, filters: Filters) -> tuple[IndexTerm, ...]:
        """Return one term of each alternative, under which the filters are found.

        If an alternative has none, there are none: a lookup would miss its records.
        """
        options = []
        for level in _iter_levels(filters):
            best = [
                min(filter_.index_terms, key=self._cost, default=None) for filter_ in level.filters
            ]
            terms = tuple(term for term in best if term is not None)
            if terms and len(terms) == len(best):
                options.append(terms)
        return min(options, key=lambda terms: max(map(self._cost, terms)), default=())

    def _cost(self, term: IndexTerm) -> tuple[int, int]:
        """Return a sort key: how many items share a value of the term, then the lookup's cost."""
        # Sizes are compared in steps, so that a few items more do not outweigh a cheaper lookup.
        target, table = term.target, self._get_table(term.target)
        largest = max((_count_candidates(table.get(value)) for value in term.values), default=0)
        if target is None:
            return largest // MAX_CHEAP_BUCKET_SIZE, 0
        if isinstance(target, str):
            return largest // MAX_CHEAP_BUCKET_SIZE, 1
        # A field in use is cheaper than a new one, which every record would be looked up by.
        return largest // MAX_CHEAP_BUCKET_SIZE, 2 if table else 3

    def _get_table(self, target: TermTarget) -> BucketsByValue[T]:
        if target is None:
            return self._keys
        if isinstance(target, str):
            return self._headers.get(target, {})
        node: _FieldNode[T] | None = self._fields
        for step in target:
            node = None if node is None else node.children.get(step)
        return {} if node is None else node.buckets

    def _ensure_table(self, target: TermTarget) -> BucketsByValue[T]:
        if target is None:
            return self._keys
        if isinstance(target, str):
            return self._headers.setdefault(target, {})
        node = self._fields
        for step in target:
            child = node.children.get(step)
            if child is None:
                child = node.children[step] = _FieldNode()
            node = child
        node.path = target
        return node.buckets

    def _remove_table(self, target: TermTarget) -> None:
        if isinstance(target, str):
            self._headers.pop(target, None)
        elif target is not None:
            self._fields.prune(target)


@dataclass(slots=True)
class _FieldNode(Generic[T]):
    """A field of the values: the filters that require a text of it, and the fields below it.

    Its path is set if there are such filters: one for each step of a pointer took 3 KB more.

    A record is compared with the fields that it has, however many others are in use: 64,000 took
    40 ms of each record.
    """

    path: Path = ()
    buckets: BucketsByValue[T] = field(default_factory=dict)
    children: dict[str, _FieldNode[T]] = field(default_factory=dict)

    def add_present(self, content: Any, present: list[tuple[_FieldNode[T], Any]]) -> None:
        """Add the children that a value has, with what it has there."""
        children = self.children
        if isinstance(content, dict):
            if len(children) < len(content):
                for step, child in children.items():
                    if step in content:
                        present.append((child, content[step]))
            else:
                for step, found in content.items():
                    if step in children:
                        present.append((children[step], found))
        elif isinstance(content, list):
            has_few = len(children) < len(content)
            for step in children if has_few else map(str, range(len(content))):
                found = get_child(content, step)
                if step in children and found is not MISSING:
                    present.append((children[step], found))

    def prune(self, path: Path) -> None:
        """Remove the nodes on the way to a field that nothing is left of."""
        if path:
            child = self.children.get(path[0])
            if child is not None:
                child.prune(path[1:])
                if not (child.buckets or child.children):
                    del self.children[path[0]]


def _iter_levels(filters: Filters) -> Iterator[Filters]:
    level: Filters | None = filters
    while level is not None:
        yield level
        level = level.within


def _add_candidate(bucket: Bucket[T] | None, item: T, remaining: Matches | None) -> Bucket[T]:
    if bucket is None:
        return item, remaining
    candidates = bucket if isinstance(bucket, dict) else dict([bucket])
    # Two alternatives of one item may share a value. If one of them has nothing left to ask, the
    # value alone decides.
    candidates[item] = None if candidates.get(item, remaining) is None else remaining
    return candidates


def _remove_candidate(bucket: Bucket[T], item: T) -> Bucket[T] | None:
    if not isinstance(bucket, dict):
        return None if bucket[0] == item else bucket
    bucket.pop(item, None)
    return bucket or None


def _count_candidates(bucket: Bucket[T] | None) -> int:
    return 0 if bucket is None else len(bucket) if isinstance(bucket, dict) else 1
