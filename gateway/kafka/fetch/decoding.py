"""One record set on its way to entries: batch by batch, slice by slice.

See `batches` for what becomes of which batch. The header of a batch says how many records there
are; how many bytes, only its decompression tells. What fits into a small buffer is decompressed
where it is read; anything else waits until `inflate` was called, away from the loop.
"""

from __future__ import annotations

import logging
import struct
from collections.abc import Collection, Iterator
from itertools import chain, islice
from mmap import mmap
from typing import NamedTuple

from aiokafka.record.default_records import DefaultRecord, DefaultRecordBatch
from aiokafka.record.legacy_records import LegacyRecordBatch

from gateway.core.log.record import Entry, Gap, GapReason, Record, Skip, TopicPartition
from gateway.kafka.protocol import legacy_messages as old_messages

from .decompression import (
    BATCH_HEADER,
    CODEC_MASK,
    MAX_DECOMPRESSED_BYTES,
    BatchTooLarge,
    decompress_batch,
    decompress_messages,
    map_large_buffer,
    return_small_buffer,
    take_small_buffer,
)
from .salvage import iter_salvaged

log = logging.getLogger(__name__)

MAX_SLICE_RECORDS = 5_000  # that clients are shown in the same turn of the loop: 10 ms
MAX_SLICE_BYTES = 1 << 20  # of one slice, decompressed

_BATCH_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch (or CRC), magic
_LOG_OVERHEAD = 12  # base offset and length, which the length leaves out
_MIN_LENGTHS = {0: 14, 1: 22, 2: BATCH_HEADER.size - _LOG_OVERHEAD}
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CONTROL_KEY = struct.Struct(">hh")
_ABORT_MARKER = 0

_new = tuple.__new__  # 1.3 of `Record(...)`


class DecodedSlice(NamedTuple):
    """What a record set, or a slice of it, holds from the fetch offset on.

    next_offset: to fetch next; equal to the fetch offset only when there was nothing.
    last_epoch:  leader epoch of the last batch, -1 where it has none.
    bytes:       of the batches that were read.
    error:       what ended the decoding before the data did: the length of the batch at
                 `next_offset` makes no sense. Fetch again; the same again means that the
                 broker's own log is damaged there.
    """

    entries: list[Entry]
    next_offset: int
    last_epoch: int
    batch_bytes: int
    error: str | None = None


class _Batch(NamedTuple):
    """The batch that is being read, or waits to be decompressed.

    magic: of its format. codec: 0 for none. after: the offset behind it. stop: where it ends in
    the record set. records: as many as it says it has; 0 if it does not say.
    """

    magic: int
    codec: int
    base_offset: int
    next_offset: int
    epoch: int
    end_pos: int
    record_count: int


class RecordSetDecoder:
    """One record set, of whoever fetched it.

    `read` gives it slice by slice until it is `done`. Where it says `is_large`, `inflate` is to be
    called first, in whatever thread, and nothing else meanwhile.

    Args:
        aborted: Producer id and first offset of each aborted transaction, as fetched.
        read_committed: Leave their records out.
        end: The high watermark, which bounds a gap whose own end is damaged.

    Attributes:
        done: Nothing is left.
        is_large: The next batch does not fit into a small buffer once it is decompressed.
        held: Bytes of the large batch that is being read, decompressed; 0 if there is none.
        plain: Bytes of what was given so far, decompressed.
    """

    __slots__ = (
        "_aborted_producers",
        "_aborted_transactions",
        "_batch",
        "_bytes_left",
        "_data",
        "_entries",
        "_entry_iter",
        "_entry_offset",
        "_epoch",
        "_error",
        "_high_watermark",
        "_next_offset",
        "_pos",
        "_record_bytes",
        "_record_data",
        "_record_iter",
        "_records_left",
        "_small_buffer",
        "_tp",
        "_view",
        "decompressed_bytes",
        "is_done",
        "is_large",
        "large_bytes",
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        data: bytes,
        fetch_offset: int,
        *,
        aborted: Collection[tuple[int, int]] = (),
        read_committed: bool = True,
        high_watermark: int | None = None,
    ) -> None:
        self._tp = tp
        self._data = data
        self._view = memoryview(data)
        self._pos = 0
        self._entry_offset = fetch_offset  # after the last entry
        self._next_offset = fetch_offset  # after the last batch
        self._epoch = -1
        self._high_watermark = high_watermark
        self._entries: list[Entry] = []
        self._aborted_transactions: list[tuple[int, int]] = []
        if aborted and read_committed:  # rarely, and 0.6 us even where there are none
            self._aborted_transactions = sorted(
                ((first, producer) for producer, first in aborted), reverse=True
            )
        self._aborted_producers: set[int] = set()
        self._error: str | None = None
        self._batch: _Batch | None = None  # that is being read, or waits for `inflate`
        self._record_iter: Iterator[DefaultRecord] | None = None  # its records
        self._entry_iter: Iterator[Entry] | None = None  # or, where these are none, its entries
        self._record_data = self._view  # the bytes of its records
        self._record_bytes = 1  # bytes of one of them, on average
        self._small_buffer: bytearray | None = None  # where they are, to be given back
        self._records_left = self._bytes_left = 0  # of this slice
        self.is_done = self.is_large = False
        self.large_bytes = self.decompressed_bytes = 0

    def read_slice(self, max_records: int = MAX_SLICE_RECORDS) -> DecodedSlice:
        """Return the next slice; of what is large, nothing before `inflate`.

        Args:
            records: How many there may be in it.
        """
        self._entries, self._records_left, self._bytes_left = [], max_records, MAX_SLICE_BYTES
        while self._records_left > 0 and self._bytes_left > 0 and not self.is_large:
            if self._batch is not None:
                self._read_records(self._batch)
            elif not self._begin_batch():
                self.is_done = True
                break
        after = self._entry_offset
        if self.is_done:
            after = self._next_offset
            if after > self._entry_offset:
                self._entries.append(Skip(self._tp, self._entry_offset, after, self._epoch))
        return _new(DecodedSlice, (self._entries, after, self._epoch, self._pos, self._error))

    def decompress(self) -> None:
        """Decompress the large batch. Whatever is wrong with it is what `read` gives next."""
        batch = self._batch
        assert self.is_large and batch is not None
        try:
            self._decompress_batch(batch, map_large_buffer())
            self.large_bytes = len(self._record_data)
        except BatchTooLarge:
            log.error(
                "%s: the batch at offset %s holds more than %s MiB; it is passed over",
                self._tp, batch.base_offset, MAX_DECOMPRESSED_BYTES >> 20, extra=self._tp._asdict(),
            )  # fmt: skip
            self._entry_iter = self._iter_lost_entries(batch)
        except Exception:  # whatever a codec raises
            self._entry_iter = self._iter_lost_entries(batch)
        self.is_large = False

    # batches

    def _begin_batch(self) -> bool:
        """Look at the next batch. False: there is none, or nothing may be read after it."""
        size = len(self._data)
        if self._pos + _BATCH_PREFIX.size > size:
            return self._check_data_end()
        base, length, epoch, magic = _BATCH_PREFIX.unpack_from(self._data, self._pos)
        stop = self._pos + _LOG_OVERHEAD + length
        if length < _MIN_LENGTHS.get(magic, _MIN_LENGTHS[2]):
            self._error = f"a batch of {length} bytes at offset {self._next_offset}"
            return False
        if stop > size:
            return self._check_data_end()
        goes_on = (
            self._begin_v2_batch(base, epoch, stop)
            if magic == 2
            else self._begin_legacy_batch(base, magic, stop)
        )
        if self._batch is None:
            self._pos = stop
        return goes_on

    def _check_data_end(self) -> bool:
        size = len(self._data)
        if self._pos == 0 and size > 0:
            self._error = (
                f"the first batch at offset {self._next_offset} does not end within {size} bytes"
            )
        return False

    def _begin_v2_batch(self, base: int, epoch: int, end_pos: int) -> bool:
        """A batch of magic 2. False: do not go on after it."""
        header = BATCH_HEADER.unpack_from(self._data, self._pos)
        attributes, last, producer = header[5], base + header[6], header[9]
        read = DefaultRecordBatch(self._view[self._pos : end_pos])
        if header[6] < 0 or not read.validate_crc():
            return self._add_corrupt_gap(base, last + 1, epoch, end_pos)
        if last < self._next_offset:
            return True
        if attributes & _CONTROL:
            self._apply_control_batch(read, producer, last)
        elif not (attributes & _TRANSACTIONAL and self._is_aborted(producer, last)):
            codec, count = attributes & CODEC_MASK, header[12]
            if codec or not self._read_whole_batch(read, base, epoch, count, end_pos):
                self._open_batch(_Batch(2, codec, base, last + 1, epoch, end_pos, count))
                return True
        self._advance(last + 1, epoch)
        return True

    def _apply_control_batch(self, batch: DefaultRecordBatch, producer: int, last: int) -> None:
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

    def _begin_legacy_batch(self, base: int, magic: int, end_pos: int) -> bool:
        """A message of magic 0 or 1, or a set of them, whose offset is that of its last."""
        after = base + 1
        if not 0 <= magic < 2:
            return self._add_corrupt_gap(base, after, -1, end_pos)
        read = LegacyRecordBatch(self._view[self._pos : end_pos], magic)
        if not read.validate_crc():
            return self._add_corrupt_gap(self._next_offset, after, -1, end_pos)
        if after <= self._next_offset:
            return True
        codec = self._data[self._pos + old_messages.ATTRIBUTES_POS] & old_messages.CODEC_MASK
        self._open_batch(_Batch(magic, codec, 0, after, -1, end_pos, 0))
        return True

    def _add_corrupt_gap(self, base: int, claimed_end: int, epoch: int, end_pos: int) -> bool:
        """Tell the batch as a gap. What it says of its own end may be damaged as well."""
        start = (
            max(base, self._next_offset)
            if self._high_watermark is None or base < self._high_watermark
            else self._next_offset
        )
        following = self._peek_base_offset(start, end_pos)
        bound = following if following is not None else self._high_watermark
        if bound is not None and bound > start and not start < claimed_end <= bound:
            claimed_end = bound
        after = max(claimed_end, start + 1)
        self._entries.append(Gap(self._tp, start, after, epoch, GapReason.CORRUPT))
        self._entry_offset = after
        self._advance(after, epoch)
        # Where the next batch starts is known only if its header reads like one, and the marker
        # that ends an aborted transaction may have been in here: the broker knows afresh.
        return following is not None and not self._aborted_producers

    def _peek_base_offset(self, start: int, end_pos: int) -> int | None:
        """Base offset of the batch at `stop`, if there is one that reads like a batch."""
        if end_pos + _BATCH_PREFIX.size > len(self._data):
            return None
        base, length, _, magic = _BATCH_PREFIX.unpack_from(self._data, end_pos)
        plausible = base > start and 0 <= magic <= 2 and length >= _MIN_LENGTHS[magic]
        return int(base) if plausible else None

    def _advance(self, next_offset: int, epoch: int) -> None:
        self._next_offset = max(self._next_offset, next_offset)
        self._epoch = epoch

    # records

    def _read_whole_batch(
        self, batch: DefaultRecordBatch, base: int, epoch: int, count: int, end_pos: int
    ) -> bool:
        """Read all of a batch, as most are: a single record in half the time that `_open` takes.
        False: it is too much for this slice, or something in it is broken."""
        size = end_pos - self._pos
        if count > self._records_left or size > self._bytes_left:
            return False
        tp, position = self._tp, self._entry_offset
        try:
            records = [
                # headers as a tuple: lists that are held are walked over for ever by the
                # garbage collector
                _new(Record, (tp, r.offset, epoch, r.timestamp, r.key, r.value, tuple(r.headers)))
                for r in batch
            ]
        except Exception:  # whatever it raises
            return False
        if base < position:
            records = [entry for entry in records if entry.next_offset > position]
        if records:
            self._entries.extend(records)
            self._entry_offset = records[-1].next_offset
        self._records_left -= count
        self._bytes_left -= size
        self.decompressed_bytes += size
        return True

    def _open_batch(self, batch: _Batch) -> None:
        """Begin with the records of the batch at `_pos`."""
        self._batch, self._epoch = batch, batch.epoch
        if not batch.codec:
            whole = self._view[self._pos : batch.end_pos]
            read = DefaultRecordBatch(whole) if batch.magic == 2 else None
            self._set_records(batch, whole[BATCH_HEADER.size :], read)
            return
        small = take_small_buffer()
        try:
            self._decompress_batch(batch, small)
        except BatchTooLarge:
            self.is_large = True
        except Exception:  # whatever a codec raises
            self._entry_iter = self._iter_lost_entries(batch)
        else:
            self._small_buffer = small
            return
        return_small_buffer(small)

    def _decompress_batch(self, batch: _Batch, buffer: bytearray | mmap) -> None:
        """Raises TooLarge, and whatever codecs do."""
        whole = self._view[self._pos : batch.end_pos]
        if batch.magic == 2:
            made = decompress_batch(whole, batch.codec, memoryview(buffer))
            self._set_records(batch, made[BATCH_HEADER.size :], DefaultRecordBatch(made))
        else:
            self._set_records(
                batch, decompress_messages(whole, batch.codec, memoryview(buffer)), None
            )

    def _set_records(
        self, batch: _Batch, data: memoryview, records: DefaultRecordBatch | None
    ) -> None:
        """Its records are these bytes."""
        self._record_data = data
        self._record_iter = (
            None if records is None else chain(records)
        )  # which may be iterated over but once
        self._record_bytes = max(1, len(data) // max(1, batch.record_count))
        if records is None:
            whole = self._view[self._pos : batch.end_pos]
            self._record_bytes = old_messages.AVERAGE_MESSAGE_BYTES
            self._entry_iter = old_messages.iter_records(self._tp, whole, data)

    def _read_records(self, batch: _Batch) -> None:
        """Read on in it, as far as the slice goes."""
        most, read, tp, epoch = self._records_left, self._record_iter, self._tp, batch.epoch
        most = min(most, self._bytes_left // self._record_bytes + 1)
        try:
            if read is not None:
                records: list[Entry] = [
                    _new(
                        Record,
                        (tp, r.offset, epoch, r.timestamp, r.key, r.value, tuple(r.headers)),
                    )
                    for r in islice(read, most)
                ]
            else:
                assert self._entry_iter is not None
                records = list(islice(self._entry_iter, most))
        except Exception:  # whatever it raises: something in there is broken
            self._record_iter, self._entry_iter = None, self._iter_salvaged_entries(batch)
            return
        self._records_left -= len(records)
        self._bytes_left -= len(records) * self._record_bytes
        over = len(records) < most
        if batch.base_offset < self._entry_offset:
            records = [entry for entry in records if entry.next_offset > self._entry_offset]
        if records:
            self.decompressed_bytes += len(records) * self._record_bytes
            self._entries.extend(records)
            self._entry_offset = records[-1].next_offset
        if over:
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
        """What can be read of it though something in it is broken."""
        if self._record_iter is None:
            return self._iter_lost_entries(batch)
        header = BATCH_HEADER.unpack_from(self._data, self._pos)
        return iter_salvaged(
            self._tp, header, self._record_data, max(batch.base_offset, self._entry_offset)
        )

    def _iter_lost_entries(self, batch: _Batch) -> Iterator[Entry]:
        """That nothing more can be read of it."""
        start = max(batch.base_offset, self._entry_offset)
        if batch.next_offset > start:
            yield Gap(self._tp, start, batch.next_offset, batch.epoch, GapReason.CORRUPT)
