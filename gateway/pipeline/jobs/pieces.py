"""Compute the sessions of many keys at once, as Arrow tables.

A piece is a set of events that stay in one session whatever events still come: a single event, or
many. A session consists of the pieces of a key, in the order of time, with pauses of at most the
gap. A pause of exactly the gap does not end it, as in Spark. If there is a maximal length, a
session also ends before the first event at or after its start + the maximal length, and that event
begins the next session. The result does not depend on the order of the events or on their batches,
as long as no event comes that is older than the watermark.

Times are microseconds since 1970. Arrow and numpy work on all keys of a table at once. This module
does no I/O and does not use Spark; `session_processor` calls it.
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
"""A watermark after all times, which closes all sessions."""


@dataclass(frozen=True, slots=True)
class SessionRules:
    """The rules by which a job's sessions are computed.

    Attributes:
        schema: The columns of pieces: keys `k0`, `k1` and so on, `start`, `end`, `events`, those of
            `ORDER_COLUMNS` if a measure is `first` or `last`, and measures `m0`, `m1` and so on.
        measure_kinds: The aggregate of each measure, one of `measures.MERGEABLE_KINDS`.
        emit_updates: Whether open sessions are emitted when they change.
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
"""The columns of pieces with partition and offset of the first event, and those of the last."""


class SessionUpdate(NamedTuple):
    """The result of `update_sessions`.

    Attributes:
        sessions: The sessions to emit, one piece each, with the column `state`: `open`, `closed`,
            or `merged` for one whose start is no longer the start of a session.
        next_close_us: The watermark at which the next session closes; None if none is open.
    """

    open_pieces: pa.Table
    sessions: pa.Table
    next_close_us: int | None


def update_sessions(
    open_pieces: pa.Table | None, events: pa.Table | None, rules: SessionRules, watermark_us: int
) -> SessionUpdate:
    """Add events to the open sessions, and close sessions by the watermark."""
    previous = _SessionCut.from_pieces(
        open_pieces if open_pieces is not None else rules.schema.empty_table(), rules
    )
    new_pieces = events if events is not None else rules.schema.empty_table()
    # The previous pieces come first and in their order: `_find_changes` relies on it.
    current = _SessionCut.from_pieces(pa.concat_tables([previous.pieces, new_pieces]), rules)
    sessions = current.merge_sessions(rules)
    closing_times = _compute_closing_times(sessions, rules)
    is_closed = closing_times <= watermark_us
    emitted = [_select_with_state(sessions, is_closed, "closed")]
    if rules.emit_updates:
        removed, changed = _find_changes(previous, current)
        previous_sessions = previous.merge_sessions(rules)
        emitted = [
            _select_with_state(previous_sessions, removed, "merged"),
            *emitted,
            _select_with_state(sessions, changed & ~is_closed, "open"),
        ]
    remaining = _select_open_pieces(current, sessions, is_closed, rules, watermark_us)
    open_times = closing_times[~is_closed]
    next_close_us = int(open_times.min()) if len(open_times) else None
    return SessionUpdate(remaining, pa.concat_tables(emitted), next_close_us)


@dataclass(slots=True)
class _SessionCut:
    """Pieces that are sorted and divided into sessions.

    Attributes:
        sort_order: The index of each of these pieces in the table that was sorted.
        key_ids: A number for the key of each piece.
        session_ids: The number of each piece's session, from 0 in the order of the pieces.
        session_starts: The index of the first piece of each session.
    """

    pieces: pa.Table
    sort_order: IntArray
    key_ids: IntArray
    session_ids: IntArray
    session_starts: IntArray

    @classmethod
    def from_pieces(cls, pieces: pa.Table, rules: SessionRules) -> _SessionCut:
        ids = _compute_key_ids(pieces, rules.key_count)
        # lexsort takes the least significant key first. Events of the same time are in the order of
        # their partitions and offsets, for `first`.
        tie_keys = [_to_int_array(pieces, name) for name in ("fo", "fp")] if rules.has_order else []
        order = np.lexsort((*tie_keys, _to_int_array(pieces, "start"), ids))
        pieces, ids = pieces.take(pa.array(order)), ids[order]
        is_start = _find_session_starts(
            ids, _to_int_array(pieces, "start"), _to_int_array(pieces, "end"), rules
        )
        return cls(pieces, order, ids, np.cumsum(is_start) - 1, np.flatnonzero(is_start))

    def merge_sessions(self, rules: SessionRules) -> pa.Table:
        if len(self.session_starts) == len(self.key_ids):  # one piece each
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
        for index, kind in enumerate(rules.measure_kinds):
            name = f"m{index}"
            columns[name] = {"last": lasts}.get(kind, firsts)[name]
            if name in merged.column_names:
                columns[name] = merged[name]
        # All other columns are those of the first piece.
        all_columns = [columns.get(name, firsts[name]) for name in rules.schema.names]
        return pa.table(all_columns, names=rules.schema.names).cast(rules.schema)

    def _find_last_pieces(self, rules: SessionRules) -> IntArray | None:
        """Return the piece with the last event of each session, which need not start last."""
        if not rules.has_order:
            return None
        names = ("lo", "lp", "end")
        order = np.lexsort(
            (*(_to_int_array(self.pieces, name) for name in names), self.session_ids)
        )
        return np.asarray(order[np.append(self.session_starts[1:], len(order)) - 1])

    def _merge_measures(self, rules: SessionRules) -> pa.Table:
        """Return the measures of each session that do not depend on the order of events.

        As in Spark, a sum that overflows is an error, and NaN is greater than any number.
        """
        kinds = {
            f"m{index}": kind
            for index, kind in enumerate(rules.measure_kinds)
            if kind in _MERGE_FUNCTIONS
        }
        merged = [
            _merge_values(self.pieces[name], kind, self.session_ids) for name, kind in kinds.items()
        ]
        return pa.table(merged, names=list(kinds))


_MERGE_FUNCTIONS = {"count": "sum", "sum": "sum", "min": "min", "max": "max"}
"""Arrow's function that merges the values of an aggregate."""


def _merge_values(values: pa.ChunkedArray, kind: str, session_ids: IntArray) -> pa.ChunkedArray:
    value_type, function = values.type, _MERGE_FUNCTIONS[kind]
    if function == "sum" and _may_overflow(values):
        # Arrow's sums wrap around when they overflow. A decimal256 is wide enough, but slower.
        scale = value_type.scale if pa.types.is_decimal(value_type) else 0
        values = values.cast(pa.decimal256(76, scale))
    merged = _aggregate_values(values, function, session_ids)
    if function == "max" and pa.types.is_floating(value_type):  # Arrow ignores NaN
        has_nan = _aggregate_values(pa.compute.is_nan(values), "any", session_ids)
        merged = pa.compute.if_else(has_nan, pa.scalar(float("nan"), value_type), merged)
    try:
        return merged.cast(value_type)
    except pa.ArrowInvalid as error:
        problem = f"the sum of a session is out of the range of {value_type}: {error}"
        raise OverflowError(f"{problem}; sum a wider type, such as decimal(38,0)") from None


def _aggregate_values(
    values: pa.ChunkedArray, function: str, session_ids: IntArray
) -> pa.ChunkedArray:
    table = pa.table({"value": values, "n": pa.array(session_ids)})
    # Only one thread returns the groups in the order in which they first appear.
    return table.group_by("n", use_threads=False).aggregate([("value", function)])[
        f"value_{function}"
    ]


def _may_overflow(values: pa.ChunkedArray) -> bool:
    """Return whether a sum of some of the values may overflow, by a cheap upper bound."""
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
    """Return the columns of keys that cannot be compared, and of measures that cannot be merged."""
    return [name for name in rules.schema.names if not _is_mergeable(name, rules)]


def _is_mergeable(name: str, rules: SessionRules) -> bool:
    # Arrow raises an error if it has no function for a type.
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


def _find_changes(previous: _SessionCut, current: _SessionCut) -> tuple[BoolArray, BoolArray]:
    """Compare two cuts; the current one has `previous.pieces` first, then the new ones.

    Returns:
        Which of the previous sessions have a start that is no longer one, and which of the current
        sessions are new, or have other pieces than before.
    """
    if not len(current.key_ids):
        return np.zeros(0, bool), np.zeros(0, bool)
    count = len(previous.key_ids)
    # The previous session of each current piece; -1 for new pieces.
    previous_ids = np.append(previous.session_ids, np.full(len(current.key_ids) - count, -1))[
        current.sort_order
    ]
    min_ids = np.minimum.reduceat(previous_ids, current.session_starts)
    max_ids = np.maximum.reduceat(previous_ids, current.session_starts)
    sizes = np.diff(np.append(current.session_starts, len(current.key_ids)))
    # The 0 at the end is what the id -1 selects.
    previous_sizes = np.append(
        np.bincount(previous.session_ids, minlength=len(previous.session_starts)), 0
    )
    is_same = (min_ids == max_ids) & (min_ids >= 0) & (previous_sizes[min_ids] == sizes)
    # The inverse of the sort order: where each piece of the concatenated table is now.
    current_index = np.empty(len(current.key_ids), np.int64)
    current_index[current.sort_order] = np.arange(len(current.key_ids))
    starts = _to_int_array(current.pieces, "start")
    # The start of the current session that has the first piece of each previous session.
    new_start = starts[
        current.session_starts[current.session_ids[current_index[previous.session_starts]]]
    ]
    previous_starts = _to_int_array(previous.pieces, "start")[previous.session_starts]
    return previous_starts != new_start, ~is_same


def _compute_key_ids(pieces: pa.Table, key_count: int) -> IntArray:
    ids = np.zeros(len(pieces), np.int64)
    if not len(pieces):
        return ids
    for index in range(key_count):
        column = pieces[f"k{index}"].combine_chunks()
        codes = column.dictionary_encode(null_encoding="encode").indices
        # Every code is less than the factor, so different pairs give different numbers. `unique`
        # makes them small again: the product with the next column must fit 64 bits.
        ids = ids * (len(ids) + 1) + codes.to_numpy(zero_copy_only=False)
        if key_count > 1:
            ids = np.unique(ids, return_inverse=True)[1].astype(np.int64)
    return ids


def _to_int_array(table: pa.Table, name: str) -> IntArray:
    return np.asarray(table[name].to_numpy(), np.int64)


def _find_session_starts(
    key_ids: IntArray, start: IntArray, end: IntArray, rules: SessionRules
) -> BoolArray:
    is_start = np.ones(len(key_ids), bool)
    if len(key_ids):
        is_start[1:] = key_ids[1:] != key_ids[:-1]
        reach = _compute_reach(is_start, end)
        is_start[1:] |= start[1:] - reach[:-1] > rules.gap_us
        if rules.max_length_us is not None:
            cuts = _iter_length_cuts(np.flatnonzero(is_start), start, rules.max_length_us)
            is_start[list(cuts)] = True
    return is_start


def _compute_reach(key_starts: BoolArray, end: IntArray) -> IntArray:
    """Return the latest end of the pieces of the same key up to each piece.

    This is not always the end of the piece itself, because an event may be within the piece before.
    """
    if (end[1:] >= end[:-1])[~key_starts[1:]].all():
        return end  # the usual case, without pandas
    import pandas as pd

    return np.asarray(pd.Series(end).groupby(np.cumsum(key_starts)).cummax().to_numpy(), np.int64)


def _iter_length_cuts(
    session_starts: IntArray, start: IntArray, max_length_us: int
) -> Iterator[int]:
    """Yield the cuts of too long sessions: a loop in Python, because few sessions are so long."""
    ends = np.append(session_starts[1:], len(start))
    is_long = start[ends - 1] - start[session_starts] >= max_length_us
    for begin, end in zip(session_starts[is_long].tolist(), ends[is_long].tolist(), strict=True):
        index = begin
        while (
            index := index + int(np.searchsorted(start[index:end], start[index] + max_length_us))
        ) < end:
            yield index


def _compute_closing_times(sessions: pa.Table, rules: SessionRules) -> IntArray:
    """Return the watermark of each session from which on no event that comes belongs to it."""
    ends = _to_int_array(sessions, "end") + rules.gap_us
    if rules.max_length_us is None:
        return ends
    return np.minimum(ends, _to_int_array(sessions, "start") + rules.max_length_us)


def _select_open_pieces(
    cut: _SessionCut,
    sessions: pa.Table,
    is_closed: BoolArray,
    rules: SessionRules,
    watermark_us: int,
) -> pa.Table:
    """Return the pieces of open sessions, merged if no later event can move a cut into the session.

    That is so in two cases: The session's start is not after the watermark, so it does not change
    any more. Or the session ends less than the maximal length after the earliest start that a
    session with any of its pieces can have. No event that comes is before the watermark, so this is
    the watermark or the start of the key's first session, whichever is earlier.
    """
    start, end = _to_int_array(sessions, "start"), _to_int_array(sessions, "end")
    can_merge = np.ones(len(sessions), bool)
    if rules.max_length_us is not None and len(sessions):
        ids = cut.key_ids[cut.session_starts]
        is_first = np.append(True, ids[1:] != ids[:-1])
        earliest = start[is_first][np.cumsum(is_first) - 1]  # of the key's sessions
        can_merge = (start <= watermark_us) | (
            end - np.minimum(earliest, watermark_us) < rules.max_length_us
        )
    merged = sessions.filter(pa.array(can_merge & ~is_closed))
    if can_merge.all():
        return merged
    unmerged = cut.pieces.filter(pa.array((~can_merge & ~is_closed)[cut.session_ids]))
    return pa.concat_tables([merged, unmerged])


def _select_with_state(sessions: pa.Table, mask: BoolArray, state: str) -> pa.Table:
    selected = sessions.filter(pa.array(mask))
    return selected.append_column("state", pa.array([state] * len(selected), pa.string()))


def build_piece_schema(
    keys: Sequence[pa.DataType], measures: Sequence[pa.DataType], has_order: bool
) -> pa.Schema:
    order = [(name, pa.int64()) for name in ORDER_COLUMNS] if has_order else []
    return pa.schema([
        *((f"k{index}", data_type) for index, data_type in enumerate(keys)),
        *((name, pa.int64()) for name in ("start", "end", "events")),
        *order,
        *((f"m{index}", data_type) for index, data_type in enumerate(measures)),
    ])  # fmt: skip
