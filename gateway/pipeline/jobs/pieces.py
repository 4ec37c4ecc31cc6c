"""Sessions of many keys at once, as columns: what has been seen of them in pieces, and the cuts.

A piece is what is known to stay together: an event, or many that lie in one session whatever still
comes. Sessions are runs of pieces of a key, in the order of time, with pauses of at most the gap
(one of exactly the gap does not end it: Spark's rule), cut where they would get longer than
allowed: a session ends before the first event at or after its start + longest, which begins the
next. The result is that of all events sorted, in whatever order and steps they came, as long as
none comes that the watermark had passed.

Times are microseconds since 1970. Arrow and numpy do the work, for all keys of a table in one go.
Sans-I/O: no Spark in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

if TYPE_CHECKING:
    from collections.abc import Iterator

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

EVER = 2**62
"""A watermark that has passed everything."""


@dataclass(frozen=True, slots=True)
class Rules:
    """schema: of pieces: keys `k0`..., start, end, events, those of ORDER where some measure is
    the first or the last, and measures `m0`...

    measures: their kinds. gap, longest: microseconds; None: as long as it goes on.
    updates: tell also of open sessions.
    """

    schema: pa.Schema
    keys: int
    measures: tuple[str, ...]
    gap: int
    longest: int | None
    updates: bool

    @property
    def ordered(self) -> bool:
        return "fp" in self.schema.names


ORDER = ("fp", "fo", "lp", "lo")
"""Partition and offset of the first event and of the last."""


class Step(NamedTuple):
    """kept: pieces of open sessions. told: sessions, with a column `state`. due: the watermark at
    which the next one closes, None if none is open."""

    kept: pa.Table
    told: pa.Table
    due: int | None


def step(kept: pa.Table | None, events: pa.Table | None, rules: Rules, watermark: int) -> Step:
    """What becomes of the pieces when these events have come, and the watermark is there.

    kept: of the step before; its sessions were told, where updates are told.
    """
    old = _Cut.of(kept if kept is not None else rules.schema.empty_table(), rules)
    come = events if events is not None else rules.schema.empty_table()
    now = _Cut.of(pa.concat_tables([old.pieces, come]), rules)
    sessions = now.folded(rules)
    ends = _closing(sessions, rules)
    closed = ends <= watermark
    told = [_stated(sessions, closed, "closed")]
    if rules.updates:
        changes = _Changes.of(old, now)
        before = old.folded(rules)
        told = [
            _stated(before, changes.gone, "merged"),
            *told,
            _stated(sessions, changes.new & ~closed, "open"),
        ]
    remaining = _remaining(now, sessions, closed, rules, watermark)
    open_ends = ends[~closed]
    due = int(open_ends.min()) if len(open_ends) else None
    return Step(remaining, pa.concat_tables(told), due)


@dataclass(slots=True)
class _Cut:
    """pieces: by key and time. order: where each was before. number: of each piece's session."""

    pieces: pa.Table
    order: Ints
    ids: Ints
    number: Ints
    begins: Ints

    @classmethod
    def of(cls, pieces: pa.Table, rules: Rules) -> _Cut:
        ids = _ids(pieces, rules.keys)
        within = [_ints(pieces, name) for name in ("fo", "fp")] if rules.ordered else []
        order = np.lexsort((*within, _ints(pieces, "start"), ids))
        pieces, ids = pieces.take(pa.array(order)), ids[order]
        new = _new(ids, _ints(pieces, "start"), _ints(pieces, "end"), rules)
        return cls(pieces, order, ids, np.cumsum(new) - 1, np.flatnonzero(new))

    def folded(self, rules: Rules) -> pa.Table:
        """One piece a session."""
        if len(self.begins) == len(self.ids):
            return self.pieces
        last = self._last(rules)
        columns: dict[str, Any] = {
            "end": np.maximum.reduceat(_ints(self.pieces, "end"), self.begins),
            "events": np.add.reduceat(_ints(self.pieces, "events"), self.begins),
        }
        firsts = self.pieces.take(pa.array(self.begins))
        lasts = firsts if last is None else self.pieces.take(pa.array(last))
        columns |= {name: lasts[name] for name in ("lp", "lo") if last is not None}
        merged = self._merged(rules)
        for at, kind in enumerate(rules.measures):
            name = f"m{at}"
            columns[name] = {"last": lasts}.get(kind, firsts)[name]
            if name in merged.column_names:
                columns[name] = merged[name]
        filled = [columns.get(name, firsts[name]) for name in rules.schema.names]
        return pa.table(filled, names=rules.schema.names).cast(rules.schema)

    def _last(self, rules: Rules) -> Ints | None:
        """Of each session the piece that goes on longest."""
        if not rules.ordered:
            return None
        names = ("lo", "lp", "end")
        order = np.lexsort((*(_ints(self.pieces, name) for name in names), self.number))
        return np.asarray(order[np.append(self.begins[1:], len(order)) - 1])

    def _merged(self, rules: Rules) -> pa.Table:
        """Sums, least and greatest of each session, in the order of their numbers.

        As Spark's: a sum that overflows fails, and NaN is greater than any number.
        """
        kinds = {f"m{at}": kind for at, kind in enumerate(rules.measures) if kind in _MERGED}
        merged = [_merge(self.pieces[name], kind, self.number) for name, kind in kinds.items()]
        return pa.table(merged, names=list(kinds))


_MERGED = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def _merge(values: pa.ChunkedArray, kind: str, number: Ints) -> pa.ChunkedArray:
    """Merge the values of each number. Raises OverflowError: a sum is beyond its type."""
    wanted, how = values.type, _MERGED[kind]
    if how == "sum" and _may_overflow(values):
        scale = wanted.scale if pa.types.is_decimal(wanted) else 0
        values = values.cast(pa.decimal256(76, scale))
    merged = _aggregate(values, how, number)
    if how == "max" and pa.types.is_floating(wanted):  # Arrow passes over NaN
        nan = _aggregate(pa.compute.is_nan(values), "any", number)
        merged = pa.compute.if_else(nan, pa.scalar(float("nan"), wanted), merged)
    try:
        return merged.cast(wanted)
    except pa.ArrowInvalid as error:
        what = f"the sum of a session is out of the range of {wanted}: {error}"
        raise OverflowError(f"{what}; sum a wider type, such as decimal(38,0)") from None


def _aggregate(values: pa.ChunkedArray, how: str, number: Ints) -> pa.ChunkedArray:
    table = pa.table({"value": values, "n": pa.array(number)})
    return table.group_by("n", use_threads=False).aggregate([("value", how)])[f"value_{how}"]


def _may_overflow(values: pa.ChunkedArray) -> bool:
    """Return whether a sum of these could: a bound that is cheap, and true of nearly all."""
    kind = values.type
    if pa.types.is_integer(kind):
        limit = 2**63
    elif pa.types.is_decimal(kind):
        limit = 10 ** (kind.precision - kind.scale)
    else:
        return False
    ends = pa.compute.min_max(values).as_py()
    return ends["min"] is not None and max(-ends["min"], ends["max"]) * len(values) >= limit


def unmergeable(rules: Rules) -> list[str]:
    """Return the names of the keys and measures whose types cannot be told apart or merged."""
    return [name for name in rules.schema.names if not _is_mergeable(name, rules)]


def _is_mergeable(name: str, rules: Rules) -> bool:
    """Asked of Arrow itself: it has a function for a type, or raises that it has none."""
    values = pa.chunked_array([pa.nulls(1, rules.schema.field(name).type)])
    try:
        if name.startswith("k"):
            values.dictionary_encode(null_encoding="encode")
        elif name.startswith("m") and (kind := rules.measures[int(name[1:])]) in _MERGED:
            _merge(values, kind, np.zeros(1, np.int64))
    except pa.ArrowNotImplementedError:
        return False
    return True


class _Changes(NamedTuple):
    """gone: of the sessions before, those whose start is no start any more. new: of those now,
    those that were not the same before."""

    gone: Flags
    new: Flags

    @classmethod
    def of(cls, old: _Cut, now: _Cut) -> _Changes:
        if not len(now.ids):
            return cls(np.zeros(0, bool), np.zeros(0, bool))
        count = len(old.ids)
        was = np.append(old.number, np.full(len(now.ids) - count, -1))[now.order]
        least = np.minimum.reduceat(was, now.begins)
        greatest = np.maximum.reduceat(was, now.begins)
        sizes = np.diff(np.append(now.begins, len(now.ids)))
        before = np.append(np.bincount(old.number, minlength=len(old.begins)), 0)
        same = (least == greatest) & (least >= 0) & (before[least] == sizes)
        place = np.empty(len(now.ids), np.int64)
        place[now.order] = np.arange(len(now.ids))  # of what was at i, where it is now
        starts = _ints(now.pieces, "start")
        new_start = starts[now.begins[now.number[place[old.begins]]]]
        return cls(_ints(old.pieces, "start")[old.begins] != new_start, ~same)


def _ids(pieces: pa.Table, keys: int) -> Ints:
    """A number for each key; equal keys have equal numbers."""
    ids = np.zeros(len(pieces), np.int64)
    for at in range(keys):
        column = pieces[f"k{at}"].combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # an empty one stays so
            column = pa.concat_arrays(column.chunks) if column.num_chunks else column
        if not len(column):
            return ids
        codes = column.dictionary_encode(null_encoding="encode").indices
        ids = ids * (len(ids) + 1) + codes.to_numpy(zero_copy_only=False)
        if keys > 1:
            ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return ids


def _ints(table: pa.Table, name: str) -> Ints:
    return np.asarray(table[name].to_numpy(), np.int64)


def _new(ids: Ints, start: Ints, end: Ints, rules: Rules) -> Flags:
    """Where sessions begin."""
    new = np.ones(len(ids), bool)
    if len(ids):
        new[1:] = ids[1:] != ids[:-1]
        reach = _reach(new, end)
        new[1:] |= start[1:] - reach[:-1] > rules.gap
        if rules.longest is not None:
            new[list(_longer(np.flatnonzero(new), start, rules.longest))] = True
    return new


def _reach(first: Flags, end: Ints) -> Ints:
    """How far the pieces of a key reach so far. An event may lie within the piece before it."""
    if (end[1:] >= end[:-1])[~first[1:]].all():
        return end  # as nearly always
    import pandas as pd

    return np.asarray(pd.Series(end).groupby(np.cumsum(first)).cummax().to_numpy(), np.int64)


def _longer(begins: Ints, start: Ints, longest: int) -> Iterator[int]:
    """Where runs that are too long are cut. A loop: few are, and each cut moves the next."""
    ends = np.append(begins[1:], len(start))
    long = start[ends - 1] - start[begins] >= longest
    for begin, end in zip(begins[long].tolist(), ends[long].tolist(), strict=True):
        at = begin
        while (at := at + int(np.searchsorted(start[at:end], start[at] + longest))) < end:
            yield at


def _closing(sessions: pa.Table, rules: Rules) -> Ints:
    """From which watermark on nothing that comes can belong to it."""
    ends = _ints(sessions, "end") + rules.gap
    if rules.longest is None:
        return ends
    return np.minimum(ends, _ints(sessions, "start") + rules.longest)


def _remaining(
    now: _Cut, sessions: pa.Table, closed: Flags, rules: Rules, watermark: int
) -> pa.Table:
    """Pieces of the open sessions: one a session where no later event can move a cut into it.

    That is so where the session's start is behind the watermark; or where it ends less than
    `longest` after all that a session with any of its pieces could begin with.
    """
    start, end = _ints(sessions, "start"), _ints(sessions, "end")
    whole = np.ones(len(sessions), bool)
    if rules.longest is not None and len(sessions):
        ids = now.ids[now.begins]
        first = np.append(True, ids[1:] != ids[:-1])
        earliest = start[first][np.cumsum(first) - 1]
        whole = (start <= watermark) | (end - np.minimum(earliest, watermark) < rules.longest)
    one = sessions.filter(pa.array(whole & ~closed))
    if whole.all():
        return one
    return pa.concat_tables([one, now.pieces.filter(pa.array((~whole & ~closed)[now.number]))])


def _stated(sessions: pa.Table, which: Flags, state: str) -> pa.Table:
    chosen = sessions.filter(pa.array(which))
    return chosen.append_column("state", pa.array([state] * len(chosen), pa.string()))


def schema(
    keys: Sequence[pa.DataType], measures: Sequence[pa.DataType], ordered: bool
) -> pa.Schema:
    """Of pieces."""
    order = [(name, pa.int64()) for name in ORDER] if ordered else []
    return pa.schema([
        *((f"k{at}", kind) for at, kind in enumerate(keys)),
        *((name, pa.int64()) for name in ("start", "end", "events")),
        *order,
        *((f"m{at}", kind) for at, kind in enumerate(measures)),
    ])  # fmt: skip
