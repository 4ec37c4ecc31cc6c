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

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

MAX_WATERMARK_US = 2**62
"""A watermark that has passed everything."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """schema: of pieces: keys `k0`..., start, end, events, those of ORDER where some measure is
    the first or the last, and measures `m0`...

    measures: their kinds. gap, longest: microseconds; None: as long as it goes on.
    updates: tell also of open sessions.
    """

    schema: pa.Schema
    key_count: int
    measure_kinds: tuple[str, ...]
    gap_us: int
    max_length_us: int | None
    emit_updates: bool

    @property
    def has_order(self) -> bool:
        return "fp" in self.schema.names


ORDER_COLUMNS = ("fp", "fo", "lp", "lo")
"""Partition and offset of the first event and of the last."""


class SessionUpdate(NamedTuple):
    """kept: pieces of open sessions. told: sessions, with a column `state`. due: the watermark at
    which the next one closes, None if none is open."""

    open_pieces: pa.Table
    sessions: pa.Table
    next_close_us: int | None


def update_sessions(
    open_pieces: pa.Table | None, events: pa.Table | None, rules: SessionRules, watermark_us: int
) -> SessionUpdate:
    """What becomes of the pieces when these events have come, and the watermark is there.

    kept: of the step before; its sessions were told, where updates are told.
    """
    old = _SessionCut.from_pieces(
        open_pieces if open_pieces is not None else rules.schema.empty_table(), rules
    )
    come = events if events is not None else rules.schema.empty_table()
    now = _SessionCut.from_pieces(pa.concat_tables([old.pieces, come]), rules)
    sessions = now.merge_sessions(rules)
    ends = _compute_closing_times(sessions, rules)
    closed = ends <= watermark_us
    told = [_select_with_state(sessions, closed, "closed")]
    if rules.emit_updates:
        changes = _SessionChanges.compare(old, now)
        before = old.merge_sessions(rules)
        told = [
            _select_with_state(before, changes.removed, "merged"),
            *told,
            _select_with_state(sessions, changes.changed & ~closed, "open"),
        ]
    remaining = _select_open_pieces(now, sessions, closed, rules, watermark_us)
    open_ends = ends[~closed]
    due = int(open_ends.min()) if len(open_ends) else None
    return SessionUpdate(remaining, pa.concat_tables(told), due)


@dataclass(slots=True)
class _SessionCut:
    """pieces: by key and time. order: where each was before. number: of each piece's session."""

    pieces: pa.Table
    sort_order: IntArray
    key_ids: IntArray
    session_ids: IntArray
    session_starts: IntArray

    @classmethod
    def from_pieces(cls, pieces: pa.Table, rules: SessionRules) -> _SessionCut:
        ids = _compute_key_ids(pieces, rules.key_count)
        within = [_to_int_array(pieces, name) for name in ("fo", "fp")] if rules.has_order else []
        order = np.lexsort((*within, _to_int_array(pieces, "start"), ids))
        pieces, ids = pieces.take(pa.array(order)), ids[order]
        new = _find_session_starts(
            ids, _to_int_array(pieces, "start"), _to_int_array(pieces, "end"), rules
        )
        return cls(pieces, order, ids, np.cumsum(new) - 1, np.flatnonzero(new))

    def merge_sessions(self, rules: SessionRules) -> pa.Table:
        """One piece a session."""
        if len(self.session_starts) == len(self.key_ids):
            return self.pieces
        last = self._find_last_pieces(rules)
        columns: dict[str, Any] = {
            "end": np.maximum.reduceat(_to_int_array(self.pieces, "end"), self.session_starts),
            "events": np.add.reduceat(_to_int_array(self.pieces, "events"), self.session_starts),
        }
        firsts = self.pieces.take(pa.array(self.session_starts))
        lasts = firsts if last is None else self.pieces.take(pa.array(last))
        columns |= {name: lasts[name] for name in ("lp", "lo") if last is not None}
        merged = self._merge_measures(rules)
        for at, kind in enumerate(rules.measure_kinds):
            name = f"m{at}"
            columns[name] = {"last": lasts}.get(kind, firsts)[name]
            if name in merged.column_names:
                columns[name] = merged[name]
        filled = [columns.get(name, firsts[name]) for name in rules.schema.names]
        return pa.table(filled, names=rules.schema.names).cast(rules.schema)

    def _find_last_pieces(self, rules: SessionRules) -> IntArray | None:
        """Of each session the piece that goes on longest."""
        if not rules.has_order:
            return None
        names = ("lo", "lp", "end")
        order = np.lexsort(
            (*(_to_int_array(self.pieces, name) for name in names), self.session_ids)
        )
        return np.asarray(order[np.append(self.session_starts[1:], len(order)) - 1])

    def _merge_measures(self, rules: SessionRules) -> pa.Table:
        """Sums, least and greatest of each session, in the order of their numbers.

        As Spark's: a sum that overflows fails, and NaN is greater than any number.
        """
        kinds = {
            f"m{at}": kind
            for at, kind in enumerate(rules.measure_kinds)
            if kind in _MERGE_FUNCTIONS
        }
        merged = [
            _merge_values(self.pieces[name], kind, self.session_ids) for name, kind in kinds.items()
        ]
        return pa.table(merged, names=list(kinds))


_MERGE_FUNCTIONS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}


def _merge_values(values: pa.ChunkedArray, kind: str, session_ids: IntArray) -> pa.ChunkedArray:
    """Merge the values of each number. Raises OverflowError: a sum is beyond its type."""
    wanted, how = values.type, _MERGE_FUNCTIONS[kind]
    if how == "sum" and _may_overflow(values):
        scale = wanted.scale if pa.types.is_decimal(wanted) else 0
        values = values.cast(pa.decimal256(76, scale))
    merged = _aggregate_values(values, how, session_ids)
    if how == "max" and pa.types.is_floating(wanted):  # Arrow passes over NaN
        nan = _aggregate_values(pa.compute.is_nan(values), "any", session_ids)
        merged = pa.compute.if_else(nan, pa.scalar(float("nan"), wanted), merged)
    try:
        return merged.cast(wanted)
    except pa.ArrowInvalid as error:
        what = f"the sum of a session is out of the range of {wanted}: {error}"
        raise OverflowError(f"{what}; sum a wider type, such as decimal(38,0)") from None


def _aggregate_values(
    values: pa.ChunkedArray, function: str, session_ids: IntArray
) -> pa.ChunkedArray:
    table = pa.table({"value": values, "n": pa.array(session_ids)})
    return table.group_by("n", use_threads=False).aggregate([("value", function)])[
        f"value_{function}"
    ]


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


def find_unmergeable(rules: SessionRules) -> list[str]:
    """Return the names of the keys and measures whose types cannot be told apart or merged."""
    return [name for name in rules.schema.names if not _is_mergeable(name, rules)]


def _is_mergeable(name: str, rules: SessionRules) -> bool:
    """Asked of Arrow itself: it has a function for a type, or raises that it has none."""
    values = pa.chunked_array([pa.nulls(1, rules.schema.field(name).type)])
    try:
        if name.startswith("k"):
            values.dictionary_encode(null_encoding="encode")
        elif (
            name.startswith("m")
            and (kind := rules.measure_kinds[int(name[1:])]) in _MERGE_FUNCTIONS
        ):
            _merge_values(values, kind, np.zeros(1, np.int64))
    except pa.ArrowNotImplementedError:
        return False
    return True


class _SessionChanges(NamedTuple):
    """gone: of the sessions before, those whose start is no start any more. new: of those now,
    those that were not the same before."""

    removed: BoolArray
    changed: BoolArray

    @classmethod
    def compare(cls, previous: _SessionCut, current: _SessionCut) -> _SessionChanges:
        if not len(current.key_ids):
            return cls(np.zeros(0, bool), np.zeros(0, bool))
        count = len(previous.key_ids)
        was = np.append(previous.session_ids, np.full(len(current.key_ids) - count, -1))[
            current.sort_order
        ]
        least = np.minimum.reduceat(was, current.session_starts)
        greatest = np.maximum.reduceat(was, current.session_starts)
        sizes = np.diff(np.append(current.session_starts, len(current.key_ids)))
        before = np.append(
            np.bincount(previous.session_ids, minlength=len(previous.session_starts)), 0
        )
        same = (least == greatest) & (least >= 0) & (before[least] == sizes)
        place = np.empty(len(current.key_ids), np.int64)
        place[current.sort_order] = np.arange(
            len(current.key_ids)
        )  # of what was at i, where it is now
        starts = _to_int_array(current.pieces, "start")
        new_start = starts[
            current.session_starts[current.session_ids[place[previous.session_starts]]]
        ]
        return cls(
            _to_int_array(previous.pieces, "start")[previous.session_starts] != new_start, ~same
        )


def _compute_key_ids(pieces: pa.Table, key_count: int) -> IntArray:
    """A number for each key; equal keys have equal numbers."""
    ids = np.zeros(len(pieces), np.int64)
    for at in range(key_count):
        column = pieces[f"k{at}"].combine_chunks()
        if isinstance(column, pa.ChunkedArray):  # an empty one stays so
            column = pa.concat_arrays(column.chunks) if column.num_chunks else column
        if not len(column):
            return ids
        codes = column.dictionary_encode(null_encoding="encode").indices
        ids = ids * (len(ids) + 1) + codes.to_numpy(zero_copy_only=False)
        if key_count > 1:
            ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return ids


def _to_int_array(table: pa.Table, name: str) -> IntArray:
    return np.asarray(table[name].to_numpy(), np.int64)


def _find_session_starts(
    key_ids: IntArray, start: IntArray, end: IntArray, rules: SessionRules
) -> BoolArray:
    """Where sessions begin."""
    new = np.ones(len(key_ids), bool)
    if len(key_ids):
        new[1:] = key_ids[1:] != key_ids[:-1]
        reach = _compute_reach(new, end)
        new[1:] |= start[1:] - reach[:-1] > rules.gap_us
        if rules.max_length_us is not None:
            new[list(_iter_length_cuts(np.flatnonzero(new), start, rules.max_length_us))] = True
    return new


def _compute_reach(key_starts: BoolArray, end: IntArray) -> IntArray:
    """How far the pieces of a key reach so far. An event may lie within the piece before it."""
    if (end[1:] >= end[:-1])[~key_starts[1:]].all():
        return end  # as nearly always
    import pandas as pd

    return np.asarray(pd.Series(end).groupby(np.cumsum(key_starts)).cummax().to_numpy(), np.int64)


def _iter_length_cuts(
    session_starts: IntArray, start: IntArray, max_length_us: int
) -> Iterator[int]:
    """Where runs that are too long are cut. A loop: few are, and each cut moves the next."""
    ends = np.append(session_starts[1:], len(start))
    long = start[ends - 1] - start[session_starts] >= max_length_us
    for begin, end in zip(session_starts[long].tolist(), ends[long].tolist(), strict=True):
        at = begin
        while (at := at + int(np.searchsorted(start[at:end], start[at] + max_length_us))) < end:
            yield at


def _compute_closing_times(sessions: pa.Table, rules: SessionRules) -> IntArray:
    """From which watermark on nothing that comes can belong to it."""
    ends = _to_int_array(sessions, "end") + rules.gap_us
    if rules.max_length_us is None:
        return ends
    return np.minimum(ends, _to_int_array(sessions, "start") + rules.max_length_us)


def _select_open_pieces(
    cut: _SessionCut, sessions: pa.Table, closed: BoolArray, rules: SessionRules, watermark_us: int
) -> pa.Table:
    """Pieces of the open sessions: one a session where no later event can move a cut into it.

    That is so where the session's start is behind the watermark; or where it ends less than
    `longest` after all that a session with any of its pieces could begin with.
    """
    start, end = _to_int_array(sessions, "start"), _to_int_array(sessions, "end")
    whole = np.ones(len(sessions), bool)
    if rules.max_length_us is not None and len(sessions):
        ids = cut.key_ids[cut.session_starts]
        first = np.append(True, ids[1:] != ids[:-1])
        earliest = start[first][np.cumsum(first) - 1]
        whole = (start <= watermark_us) | (
            end - np.minimum(earliest, watermark_us) < rules.max_length_us
        )
    one = sessions.filter(pa.array(whole & ~closed))
    if whole.all():
        return one
    return pa.concat_tables([one, cut.pieces.filter(pa.array((~whole & ~closed)[cut.session_ids]))])


def _select_with_state(sessions: pa.Table, mask: BoolArray, state: str) -> pa.Table:
    chosen = sessions.filter(pa.array(mask))
    return chosen.append_column("state", pa.array([state] * len(chosen), pa.string()))


def build_piece_schema(
    keys: Sequence[pa.DataType], measures: Sequence[pa.DataType], has_order: bool
) -> pa.Schema:
    """Of pieces."""
    order = [(name, pa.int64()) for name in ORDER_COLUMNS] if has_order else []
    return pa.schema([
        *((f"k{at}", kind) for at, kind in enumerate(keys)),
        *((name, pa.int64()) for name in ("start", "end", "events")),
        *order,
        *((f"m{at}", kind) for at, kind in enumerate(measures)),
    ])  # fmt: skip
