"""Turn the record batches of a fetch into entries, in offset order, with nothing hidden.

Only the offsets of batches say how far a log goes. Offsets without anything to deliver (control
batches, aborted transactions, compacted records, batches emptied by compaction) are covered by the
next entry, or by one `Skip` at the end. A batch that cannot be read becomes one `Gap` of exactly
its offsets; if only some of its records are broken, each of those becomes a `Gap`. Decoding then
goes on with the next batch.

aiokafka's Cython `DefaultRecordBatch` decodes the records. It hides the leader epoch and the
position of a batch, so headers are read here. Layouts: Kafka's message format, magic 2. The CRC-32C
of a batch covers it from its attributes on, and so neither base offset, length nor leader epoch.

A compressed batch expands to a multiple of the fetched bytes, and its records to a multiple of
that. So record sets are read in slices, between which other tasks run. The header of a batch says
how many records it has, but not their decompressed size. A batch that fits into a small buffer is
decompressed where it is read. Any other waits for `RecordSetDecoder.decompress`, outside the event
loop, and is read one at a time.

There are three ways through the records of a batch. Most are read whole (`_read_whole_batch`). One
that is compressed, or too long for the slice, is opened and read in parts (`_open_batch`,
`_read_records`). If reading fails, the intact records are salvaged (`iter_salvaged`).

Measured, one core, 200-byte values, CRC checked: 2.1 M records/s in batches of 5,000, 2.0 M of 100,
1.6 M of 10, 0.48 M of one; gzip, lz4, snappy, zstd 1.8 to 2.1 M; two headers each 1.5 M.
"""

from __future__ import annotations

import asyncio
import logging
import struct
from collections.abc import AsyncGenerator, Collection, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import KW_ONLY, InitVar, dataclass, field
from itertools import chain, islice
from mmap import mmap
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch

from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition
from gateway.kafka.client.cluster import DecompressionSlot

from .record_batch import (
    BATCH_HEADER,
    CODEC_MASK,
    MAX_DECOMPRESSED_BYTES,
    BatchTooLarge,
    decompress_batch,
    iter_salvaged,
    map_large_buffer,
    return_small_buffer,
    take_small_buffer,
)

log = logging.getLogger(__name__)

# The largest slice where records are only kept, and not delivered within the same turn of the event
# loop: decoding it takes 10 ms.
BULK_SLICE_RECORDS = 20_000
# `gather_slices` returns once it has this much, which bounds what one partition holds in memory.
MAX_GATHERED_RECORDS = 100_000
MAX_GATHERED_BYTES = 16 << 20  # decompressed
# The largest slice that is delivered to clients within the same turn of the loop: 10 ms.
MAX_SLICE_RECORDS = 5_000
MAX_SLICE_BYTES = 1 << 20  # of one slice, decompressed

_BATCH_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch (or CRC), magic
_LOG_OVERHEAD = 12  # bytes of base offset and length, which the length does not count
# The least length by magic: that of an empty message or batch.
_MIN_LENGTHS = {0: 14, 1: 22, 2: BATCH_HEADER.size - _LOG_OVERHEAD}
_TRANSACTIONAL = 0x10  # attribute of a batch: its records belong to a transaction
_CONTROL = 0x20  # attribute of a batch: its record is a marker that ends a transaction
_CONTROL_KEY = struct.Struct(">hh")  # version, type of the marker
_ABORT_MARKER = 0

_tuple_new = tuple.__new__  # 1.3 times as fast as `Record(...)`


class DecodedSlice(NamedTuple):
    """The entries of a record set, or of a slice of it, from the fetch offset on.

    Attributes:
        entries: The entries in offset order, without a hole that none of them covers.
        next_offset: The offset to go on from. In the last slice it is equal to the fetch offset
            only if there was nothing.
        last_epoch: The leader epoch of the last batch; -1 if it has none.
        batch_bytes: How many bytes of the record set belong to batches that were read.
        error: Why decoding ended before the data did: the length of the batch at `next_offset`
            makes no sense. If fetching again gives the same error, the broker's log is damaged.
    """

    entries: list[Entry]
    next_offset: int
    last_epoch: int
    batch_bytes: int
    error: str | None = None

    def find_gap(self) -> Gap | None:
        return next((entry for entry in self.entries if type(entry) is Gap), None)


def describe_unreadable(gap: Gap) -> str:
    where = f"from {gap.offset} to {gap.next_offset}"
    if gap.reason is GapReason.TOO_LARGE:
        limit = f"{MAX_DECOMPRESSED_BYTES >> 20} MiB"
        return f"is too large {where}: a batch of more than {limit}, decompressed"
    return f"is damaged {where}"


def _log_gaps(entries: Iterable[Entry]) -> None:
    for entry in entries:
        if type(entry) is Gap:
            log.error("%s %s", entry.tp, describe_unreadable(entry), extra=entry.tp._asdict())


def _build_records(tp: TopicPartition, epoch: int, records: Iterable[DefaultRecord]) -> list[Entry]:
    # Headers as a tuple: the garbage collector would visit a list again and again for as long as
    # the record is kept.
    return [
        _tuple_new(Record, (tp, r.offset, epoch, r.timestamp, r.key, r.value, tuple(r.headers)))
        for r in records
    ]


class _Batch(NamedTuple):
    codec: int
    base_offset: int
    next_offset: int
    epoch: int
    end_pos: int
    record_count: int


@dataclass(slots=True, eq=False, repr=False)
class RecordSetDecoder:
    """The decoding of one record set, owned by the task that fetched it.

    Call `read_slice` until `is_done`. Where `is_large` is True, call `decompress` first, in any
    thread, and nothing else until it has returned.

    True between calls: `_entries` (the slice) and all earlier slices cover all offsets from the
    fetch offset up to `_entry_offset`. Every batch before `_pos` has been read, and its offsets end
    at `_next_offset`, which is ahead of `_entry_offset` after batches without anything to deliver;
    the next entry, or a final `Skip`, covers these offsets.

    Attributes:
        data: The record set; its last batch may be cut off.
        fetch_offset: The requested offset. Earlier records of its batch are left out.
        aborted: Producer id and first offset of each aborted transaction, as fetched.
        high_watermark: Bounds the gap of a batch whose own end is damaged; None if unknown.
        is_large: The next batch does not fit into a small buffer once it is decompressed.
        large_bytes: Decompressed bytes of the large batch that is being read; 0 if there is none.
        decompressed_bytes: Decompressed bytes of everything returned so far.
    """

    tp: TopicPartition
    data: bytes
    fetch_offset: InitVar[int]
    _: KW_ONLY
    aborted: Collection[tuple[int, int]] = ()
    read_committed: bool = True
    high_watermark: int | None = None
    is_done: bool = field(default=False, init=False)
    is_large: bool = field(default=False, init=False)
    large_bytes: int = field(default=0, init=False)
    decompressed_bytes: int = field(default=0, init=False)
    _view: memoryview = field(init=False)
    _pos: int = field(default=0, init=False)
    _entry_offset: int = field(init=False)  # the offset after the last entry
    _next_offset: int = field(init=False)  # the offset after the last batch
    _epoch: int = field(default=-1, init=False)
    _entries: list[Entry] = field(init=False)
    # First offset and producer id, the latest first: those that begin are taken from the end.
    _aborted_transactions: list[tuple[int, int]] = field(init=False)
    # Producers whose records are left out until the marker that ends their transaction.
    _aborted_producers: set[int] = field(default_factory=set, init=False)
    _error: str | None = field(default=None, init=False)
    _batch: _Batch | None = field(default=None, init=False)  # read now, or for `decompress`
    # What is left of it: records, or else the entries of a broken batch.
    _record_iter: Iterator[DefaultRecord] | None = field(default=None, init=False)
    _entry_iter: Iterator[Entry] | None = field(default=None, init=False)
    _record_data: memoryview = field(init=False)  # the bytes of its records, not compressed
    _record_bytes: int = field(default=1, init=False)  # the average size of its records
    _small_buffer: bytearray | None = field(default=None, init=False)  # holds `_record_data`
    # How much more this slice may take.
    _records_left: int = field(default=0, init=False)
    _bytes_left: int = field(default=0, init=False)

    def __post_init__(self, fetch_offset: int) -> None:
        self._view = self._record_data = memoryview(self.data)
        self._entry_offset = self._next_offset = fetch_offset
        is_needed = self.aborted and self.read_committed
        self._aborted_transactions = (
            sorted(((first, producer) for producer, first in self.aborted), reverse=True)
            if is_needed  # rare, and sorting nothing costs 0.6 us
            else []
        )

    def read_slice(self, max_records: int = MAX_SLICE_RECORDS) -> DecodedSlice:
        """Return the next slice, up to a large batch, `max_records` or about MAX_SLICE_BYTES."""
        self._entries, self._records_left, self._bytes_left = [], max_records, MAX_SLICE_BYTES
        while self._records_left > 0 and self._bytes_left > 0 and not self.is_large:
            if self._batch is not None:
                self._read_records(self._batch)
            elif not self._begin_batch():
                self.is_done = True
                break
        next_offset = self._entry_offset
        if self.is_done:
            # Only now is it known that no entry follows that would cover the last empty batches.
            next_offset = self._next_offset
            if next_offset > self._entry_offset:
                self._entries.append(Skip(self.tp, self._entry_offset, next_offset, self._epoch))
        return _tuple_new(
            DecodedSlice, (self._entries, next_offset, self._epoch, self._pos, self._error)
        )

    def decompress(self) -> None:
        """Decompress the large batch, in any thread. If damaged, `read_slice` returns a gap."""
        batch = self._batch
        assert self.is_large and batch is not None
        try:
            self._decompress_batch(batch, map_large_buffer())
            self.large_bytes = len(self._record_data)
        except BatchTooLarge:
            self._entry_iter = self._iter_lost_entries(batch, GapReason.TOO_LARGE)
        except Exception:  # codecs raise many kinds for damaged data
            self._entry_iter = self._iter_lost_entries(batch)
        self.is_large = False

    # Batches.

    def _begin_batch(self) -> bool:
        """Read the next batch whole, skip it, or set it as `_batch`.

        Here and in the methods below, False means that nothing further may be read.
        """
        size = len(self.data)
        if self._pos + _BATCH_PREFIX.size > size:
            return self._check_data_end()
        base, length, epoch, magic = _BATCH_PREFIX.unpack_from(self.data, self._pos)
        end_pos = self._pos + _LOG_OVERHEAD + length
        if length < _MIN_LENGTHS.get(magic, _MIN_LENGTHS[2]):
            self._error = f"a batch of {length} bytes at offset {self._next_offset}"
            return False
        if end_pos > size:
            return self._check_data_end()
        if magic == 2:
            can_continue = self._begin_v2_batch(base, epoch, end_pos)
        else:
            # Formats 0 and 1, which brokers since 4.0 no longer have (KIP-724), count as damage.
            # The first offset of a set of them is in its compressed part.
            start = self._next_offset if magic in (0, 1) else base
            can_continue = self._add_corrupt_gap(start, base + 1, -1, end_pos)
        if self._batch is None:  # otherwise `_close_batch` does this once the batch was read
            self._pos = end_pos
        return can_continue

    def _check_data_end(self) -> bool:
        """Return False, and note an error if not even the first batch is whole.

        A broker cuts the last batch at the byte limit, but always sends the first one whole.
        """
        size = len(self.data)
        if self._pos == 0 and size > 0:
            self._error = (
                f"the first batch at offset {self._next_offset} does not end within {size} bytes"
            )
        return False

    def _begin_v2_batch(self, base: int, epoch: int, end_pos: int) -> bool:
        header = BATCH_HEADER.unpack_from(self.data, self._pos)
        attributes, last, producer = header[5], base + header[6], header[9]
        record_batch = DefaultRecordBatch(self._view[self._pos : end_pos])
        # A negative delta of the last offset has a valid CRC if the producer itself wrote it.
        if header[6] < 0 or not record_batch.validate_crc():
            return self._add_corrupt_gap(base, last + 1, epoch, end_pos)
        if last < self._next_offset:  # it ends before the fetch offset
            return True
        if attributes & _CONTROL:
            self._apply_control_batch(record_batch, producer, last)
        elif not (attributes & _TRANSACTIONAL and self._is_aborted(producer, last)):
            codec, count = attributes & CODEC_MASK, header[12]
            if codec or not self._read_whole_batch(record_batch, base, epoch, count, end_pos):
                self._open_batch(_Batch(codec, base, last + 1, epoch, end_pos, count))
                return True
        self._advance(last + 1, epoch)
        return True

    def _apply_control_batch(self, batch: DefaultRecordBatch, producer: int, last: int) -> None:
        """Note a marker: an abort ends the records of its producer that are left out."""
        # First, because the record set may have nothing of an aborted transaction but its marker.
        # It would otherwise be activated behind its own end, and hide the next transaction.
        self._activate_aborted(last)
        for record in batch:
            key = record.key or b""
            if len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT_MARKER:
                self._aborted_producers.discard(producer)

    def _is_aborted(self, producer: int, last: int) -> bool:
        self._activate_aborted(last)
        return producer in self._aborted_producers

    def _activate_aborted(self, last: int) -> None:
        while self._aborted_transactions and self._aborted_transactions[-1][0] <= last:
            self._aborted_producers.add(self._aborted_transactions.pop()[1])

    def _add_corrupt_gap(self, base: int, claimed_end: int, epoch: int, end_pos: int) -> bool:
        """Add a gap for a damaged batch, of whose header nothing can be trusted either.

        A base offset beyond the log is ignored. Where the next batch, or else the high watermark,
        contradicts the claimed end, their offset is taken instead.
        """
        start = (
            max(base, self._next_offset)
            if self.high_watermark is None or base < self.high_watermark
            else self._next_offset
        )
        following = self._peek_base_offset(start, end_pos)
        bound = following if following is not None else self.high_watermark
        if bound is not None and bound > start and not start < claimed_end <= bound:
            claimed_end = bound
        next_offset = max(claimed_end, start + 1)
        last = self._entries[-1] if self._entries else None
        if type(last) is Gap and last.next_offset == start and last.reason is GapReason.CORRUPT:
            self._entries[-1] = last._replace(next_offset=next_offset)
        else:
            gap = Gap(self.tp, start, next_offset, epoch, GapReason.CORRUPT)
            _log_gaps([gap])
            self._entries.append(gap)
        self._entry_offset = next_offset
        self._advance(next_offset, epoch)
        # Decoding goes on only if the bytes that follow look like the header of a batch. It ends
        # also if transactions are being left out, since the marker that ends one may have been in
        # this batch: the next fetch says which transactions are aborted from there on.
        return following is not None and not self._aborted_producers

    def _peek_base_offset(self, start: int, end_pos: int) -> int | None:
        if end_pos + _BATCH_PREFIX.size > len(self.data):
            return None
        base, length, _, magic = _BATCH_PREFIX.unpack_from(self.data, end_pos)
        plausible = base > start and 0 <= magic <= 2 and length >= _MIN_LENGTHS[magic]
        return int(base) if plausible else None

    def _advance(self, next_offset: int, epoch: int) -> None:
        self._next_offset = max(self._next_offset, next_offset)
        self._epoch = epoch

    # Records.

    def _read_whole_batch(
        self, batch: DefaultRecordBatch, base: int, epoch: int, count: int, end_pos: int
    ) -> bool:
        """Read an uncompressed batch at once, the usual case; return False if that cannot be done.

        A batch of one record takes half the time of `_open_batch`.
        """
        size = end_pos - self._pos
        if count > self._records_left or size > self._bytes_left:
            return False
        try:
            records = _build_records(self.tp, epoch, batch)
        except Exception:  # aiokafka raises many kinds for broken records
            return False
        if base < self._entry_offset:  # only in the first batch: it holds the fetch offset
            records = [entry for entry in records if entry.next_offset > self._entry_offset]
        if records:
            self._entries.extend(records)
            self._entry_offset = records[-1].next_offset
        self._records_left -= count
        self._bytes_left -= size
        self.decompressed_bytes += size
        return True

    def _open_batch(self, batch: _Batch) -> None:
        """Set the batch at `_pos` for reading in parts, or leave a large one to `decompress`."""
        self._batch, self._epoch = batch, batch.epoch
        if not batch.codec:
            self._set_records(batch, self._view[self._pos : batch.end_pos])
            return
        small = take_small_buffer()
        try:
            self._decompress_batch(batch, small)
        except BatchTooLarge:
            self.is_large = True
        except Exception:  # codecs raise many kinds for damaged data
            self._entry_iter = self._iter_lost_entries(batch)
        else:
            self._small_buffer = small  # in use until `_close_batch`
            return
        return_small_buffer(small)

    def _decompress_batch(self, batch: _Batch, buffer: bytearray | mmap) -> None:
        """Decompress a batch into a buffer; BatchTooLarge, or any error of the codec."""
        whole = self._view[self._pos : batch.end_pos]
        self._set_records(batch, decompress_batch(whole, batch.codec, memoryview(buffer)))

    def _set_records(self, batch: _Batch, plain: memoryview) -> None:
        """`plain` is not compressed, and includes the header."""
        self._record_data = plain[BATCH_HEADER.size :]
        # `chain` makes one iterator of it: each `islice` is to go on where the last one ended, but
        # the batch itself would start over.
        self._record_iter = chain(DefaultRecordBatch(plain))
        self._record_bytes = max(1, len(self._record_data) // max(1, batch.record_count))

    def _read_records(self, batch: _Batch) -> None:
        """Read the next records of the open batch, as many as the slice may take."""
        # The size of a record is known only on average. At least one is read, so that a record
        # larger than a slice is read, too.
        count = min(self._records_left, self._bytes_left // self._record_bytes + 1)
        try:
            if self._record_iter is not None:
                records = _build_records(self.tp, batch.epoch, islice(self._record_iter, count))
            else:
                assert self._entry_iter is not None
                records = list(islice(self._entry_iter, count))
                _log_gaps(records)
        except Exception:  # aiokafka raises many kinds for broken records
            # Nothing of this attempt was kept, so salvaging begins at `_entry_offset`.
            self._record_iter, self._entry_iter = None, self._iter_salvaged_entries(batch)
            return
        self._records_left -= len(records)
        self._bytes_left -= len(records) * self._record_bytes
        is_exhausted = len(records) < count
        if batch.base_offset < self._entry_offset:
            records = [entry for entry in records if entry.next_offset > self._entry_offset]
        if records:
            self.decompressed_bytes += len(records) * self._record_bytes
            self._entries.extend(records)
            self._entry_offset = records[-1].next_offset
        if is_exhausted:
            self._close_batch(batch)

    def _close_batch(self, batch: _Batch) -> None:
        self._batch = self._record_iter = self._entry_iter = None
        self._record_data, small, self._small_buffer = self._view, self._small_buffer, None
        if small is not None:
            return_small_buffer(small)
        self.large_bytes = 0
        self._pos = batch.end_pos
        self._advance(batch.next_offset, batch.epoch)

    def _iter_salvaged_entries(self, batch: _Batch) -> Iterator[Entry]:
        """Return intact records and gaps; if salvaging itself failed, one gap for the rest."""
        if self._record_iter is None:
            return self._iter_lost_entries(batch)
        header = BATCH_HEADER.unpack_from(self.data, self._pos)
        return iter_salvaged(
            self.tp, header, self._record_data, max(batch.base_offset, self._entry_offset)
        )

    def _iter_lost_entries(
        self, batch: _Batch, reason: GapReason = GapReason.CORRUPT
    ) -> Iterator[Entry]:
        start = max(batch.base_offset, self._entry_offset)
        if batch.next_offset > start:
            yield Gap(self.tp, start, batch.next_offset, batch.epoch, reason)


async def iter_slices(
    decoding: RecordSetDecoder, slot: DecompressionSlot, max_records: int = MAX_SLICE_RECORDS
) -> AsyncGenerator[DecodedSlice, None]:
    """Yield the rest of a record set, slice by slice.

    A large batch is decompressed in a thread. The slot is held until the batch has been read to its
    end, so the caller must close the iterator (`contextlib.aclosing`).
    """
    while not decoding.is_done:
        if not decoding.is_large:
            yield decoding.read_slice(max_records)
            continue
        # The lock is held across the yields: the decompressed batch lives until its last record was
        # read, and only one such batch per cluster may be in memory.
        async with slot.lock:
            try:
                await _await_thread(asyncio.create_task(asyncio.to_thread(decoding.decompress)))
                slot.held_bytes = decoding.large_bytes
                while decoding.large_bytes:
                    yield decoding.read_slice(max_records)
            finally:
                slot.held_bytes = 0


async def _await_thread(work: asyncio.Task[None]) -> None:
    """Wait until a thread has ended, also when cancelled: it holds the slot until then."""
    try:
        await asyncio.shield(work)
    finally:
        while not work.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait({work})


async def gather_slices(
    decoding: RecordSetDecoder,
    slot: DecompressionSlot,
    first: DecodedSlice | None = None,
    max_records: int = MAX_GATHERED_RECORDS,
    max_headers: int | None = None,
) -> DecodedSlice:
    """Return the rest of a record set, behind `first`, in one slice up to the memory bounds."""
    header_count = 0
    slice_records = min(BULK_SLICE_RECORDS, max_records)
    async with aclosing(iter_slices(decoding, slot, slice_records)) as slices:
        async for decoded in slices:
            if max_headers is not None:
                records = (entry for entry in decoded.entries if type(entry) is Record)
                header_count += sum(len(record.headers) for record in records)
            first = _join_slices(first, decoded)
            if (
                len(first.entries) >= max_records
                or decoding.decompressed_bytes >= MAX_GATHERED_BYTES
                or (max_headers is not None and header_count >= max_headers)
            ):
                break
            await asyncio.sleep(0)
    # There was nothing to decode: the last slice is empty and says where to go on.
    return first or decoding.read_slice(BULK_SLICE_RECORDS)


def _join_slices(earlier: DecodedSlice | None, later: DecodedSlice) -> DecodedSlice:
    if earlier is None:
        return later
    earlier.entries.extend(later.entries)
    return later._replace(entries=earlier.entries)
