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

from gateway.core.log.record import Entry, Gap, Reason, Record, Skip, TopicPartition
from gateway.kafka.protocol import legacy_messages as old_messages

from .decompression import (
    BATCH_HEADER,
    CODEC,
    MAX_INFLATED,
    TooLarge,
    give_back,
    inflated_batch,
    inflated_messages,
    large,
    take_small,
)
from .salvage import salvage

log = logging.getLogger(__name__)

SLICE_RECORDS = 5_000  # that clients are shown in the same turn of the loop: 10 ms
SLICE_BYTES = 1 << 20  # of one slice, decompressed

_PREFIX = struct.Struct(">qiib")  # base offset, length, leader epoch (or CRC), magic
_OVERHEAD = 12  # base offset and length, which the length leaves out
_LEAST = {0: 14, 1: 22, 2: BATCH_HEADER.size - _OVERHEAD}
_TRANSACTIONAL = 0x10
_CONTROL = 0x20
_CONTROL_KEY = struct.Struct(">hh")
_ABORT = 0

_new = tuple.__new__  # 1.3 of `Record(...)`


class Decoded(NamedTuple):
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
    bytes: int
    error: str | None = None


class _Batch(NamedTuple):
    """The batch that is being read, or waits to be decompressed.

    magic: of its format. codec: 0 for none. after: the offset behind it. stop: where it ends in
    the record set. records: as many as it says it has; 0 if it does not say.
    """

    magic: int
    codec: int
    base: int
    after: int
    epoch: int
    stop: int
    records: int


class Decoding:
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
        "_aborted", "_aborting", "_batch", "_data", "_each", "_end", "_entries", "_epoch",
        "_error", "_left", "_left_bytes", "_next", "_plain", "_pos", "_position", "_read",
        "_small", "_source", "_tp", "_view", "done", "held", "is_large", "plain",
    )  # fmt: skip

    def __init__(
        self,
        tp: TopicPartition,
        data: bytes,
        fetch_offset: int,
        *,
        aborted: Collection[tuple[int, int]] = (),
        read_committed: bool = True,
        end: int | None = None,
    ) -> None:
        self._tp = tp
        self._data = data
        self._view = memoryview(data)
        self._pos = 0
        self._position = fetch_offset  # after the last entry
        self._next = fetch_offset  # after the last batch
        self._epoch = -1
        self._end = end
        self._entries: list[Entry] = []
        self._aborted: list[tuple[int, int]] = []
        if aborted and read_committed:  # rarely, and 0.6 us even where there are none
            self._aborted = sorted(((first, producer) for producer, first in aborted), reverse=True)
        self._aborting: set[int] = set()
        self._error: str | None = None
        self._batch: _Batch | None = None  # that is being read, or waits for `inflate`
        self._read: Iterator[DefaultRecord] | None = None  # its records
        self._source: Iterator[Entry] | None = None  # or, where these are none, its entries
        self._plain = self._view  # the bytes of its records
        self._each = 1  # bytes of one of them, on average
        self._small: bytearray | None = None  # where they are, to be given back
        self._left = self._left_bytes = 0  # of this slice
        self.done = self.is_large = False
        self.held = self.plain = 0

    def read(self, records: int = SLICE_RECORDS) -> Decoded:
        """Return the next slice; of what is large, nothing before `inflate`.

        Args:
            records: How many there may be in it.
        """
        self._entries, self._left, self._left_bytes = [], records, SLICE_BYTES
        while self._left > 0 and self._left_bytes > 0 and not self.is_large:
            if self._batch is not None:
                self._take(self._batch)
            elif not self._begin():
                self.done = True
                break
        after = self._position
        if self.done:
            after = self._next
            if after > self._position:
                self._entries.append(Skip(self._tp, self._position, after, self._epoch))
        return _new(Decoded, (self._entries, after, self._epoch, self._pos, self._error))

    def inflate(self) -> None:
        """Decompress the large batch. Whatever is wrong with it is what `read` gives next."""
        batch = self._batch
        assert self.is_large and batch is not None
        try:
            self._inflate(batch, large())
            self.held = len(self._plain)
        except TooLarge:
            log.error(
                "%s: the batch at offset %s holds more than %s MiB; it is passed over",
                self._tp, batch.base, MAX_INFLATED >> 20, extra=self._tp._asdict(),
            )  # fmt: skip
            self._source = self._lost(batch)
        except Exception:  # whatever a codec raises
            self._source = self._lost(batch)
        self.is_large = False

    # batches

    def _begin(self) -> bool:
        """Look at the next batch. False: there is none, or nothing may be read after it."""
        size = len(self._data)
        if self._pos + _PREFIX.size > size:
            return self._ended()
        base, length, epoch, magic = _PREFIX.unpack_from(self._data, self._pos)
        stop = self._pos + _OVERHEAD + length
        if length < _LEAST.get(magic, _LEAST[2]):
            self._error = f"a batch of {length} bytes at offset {self._next}"
            return False
        if stop > size:
            return self._ended()
        goes_on = self._modern(base, epoch, stop) if magic == 2 else self._old(base, magic, stop)
        if self._batch is None:
            self._pos = stop
        return goes_on

    def _ended(self) -> bool:
        size = len(self._data)
        if self._pos == 0 and size > 0:
            self._error = f"the first batch at offset {self._next} does not end within {size} bytes"
        return False

    def _modern(self, base: int, epoch: int, stop: int) -> bool:
        """A batch of magic 2. False: do not go on after it."""
        header = BATCH_HEADER.unpack_from(self._data, self._pos)
        attributes, last, producer = header[5], base + header[6], header[9]
        read = DefaultRecordBatch(self._view[self._pos : stop])
        if header[6] < 0 or not read.validate_crc():
            return self._corrupt(base, last + 1, epoch, stop)
        if last < self._next:
            return True
        if attributes & _CONTROL:
            self._control(read, producer, last)
        elif not (attributes & _TRANSACTIONAL and self._is_aborted(producer, last)):
            codec, count = attributes & CODEC, header[12]
            if codec or not self._read_whole(read, base, epoch, count, stop):
                self._open(_Batch(2, codec, base, last + 1, epoch, stop, count))
                return True
        self._advance(last + 1, epoch)
        return True

    def _control(self, batch: DefaultRecordBatch, producer: int, last: int) -> None:
        self._open_aborted(last)
        for record in batch:
            key = record.key or b""
            if len(key) >= _CONTROL_KEY.size and _CONTROL_KEY.unpack_from(key)[1] == _ABORT:
                self._aborting.discard(producer)

    def _is_aborted(self, producer: int, last: int) -> bool:
        self._open_aborted(last)
        return producer in self._aborting

    def _open_aborted(self, last: int) -> None:
        while self._aborted and self._aborted[-1][0] <= last:
            self._aborting.add(self._aborted.pop()[1])

    def _old(self, base: int, magic: int, stop: int) -> bool:
        """A message of magic 0 or 1, or a set of them, whose offset is that of its last."""
        after = base + 1
        if not 0 <= magic < 2:
            return self._corrupt(base, after, -1, stop)
        read = LegacyRecordBatch(self._view[self._pos : stop], magic)
        if not read.validate_crc():
            return self._corrupt(self._next, after, -1, stop)
        if after <= self._next:
            return True
        codec = self._data[self._pos + old_messages.ATTRIBUTES_AT] & old_messages.CODEC
        self._open(_Batch(magic, codec, 0, after, -1, stop, 0))
        return True

    def _corrupt(self, base: int, claimed: int, epoch: int, stop: int) -> bool:
        """Tell the batch as a gap. What it says of its own end may be damaged as well."""
        start = max(base, self._next) if self._end is None or base < self._end else self._next
        following = self._following(start, stop)
        bound = following if following is not None else self._end
        if bound is not None and bound > start and not start < claimed <= bound:
            claimed = bound
        after = max(claimed, start + 1)
        self._entries.append(Gap(self._tp, start, after, epoch, Reason.CORRUPT))
        self._position = after
        self._advance(after, epoch)
        # Where the next batch starts is known only if its header reads like one, and the marker
        # that ends an aborted transaction may have been in here: the broker knows afresh.
        return following is not None and not self._aborting

    def _following(self, start: int, stop: int) -> int | None:
        """Base offset of the batch at `stop`, if there is one that reads like a batch."""
        if stop + _PREFIX.size > len(self._data):
            return None
        base, length, _, magic = _PREFIX.unpack_from(self._data, stop)
        plausible = base > start and 0 <= magic <= 2 and length >= _LEAST[magic]
        return int(base) if plausible else None

    def _advance(self, after: int, epoch: int) -> None:
        self._next = max(self._next, after)
        self._epoch = epoch

    # records

    def _read_whole(
        self, read: DefaultRecordBatch, base: int, epoch: int, count: int, stop: int
    ) -> bool:
        """Read all of a batch, as most are: a single record in half the time that `_open` takes.
        False: it is too much for this slice, or something in it is broken."""
        size = stop - self._pos
        if count > self._left or size > self._left_bytes:
            return False
        tp, position = self._tp, self._position
        try:
            records = [
                # headers as a tuple: lists that are held are walked over for ever by the
                # garbage collector
                _new(Record, (tp, r.offset, epoch, r.timestamp, r.key, r.value, tuple(r.headers)))
                for r in read
            ]
        except Exception:  # whatever it raises
            return False
        if base < position:
            records = [entry for entry in records if entry.next > position]
        if records:
            self._entries.extend(records)
            self._position = records[-1].next
        self._left -= count
        self._left_bytes -= size
        self.plain += size
        return True

    def _open(self, batch: _Batch) -> None:
        """Begin with the records of the batch at `_pos`."""
        self._batch, self._epoch = batch, batch.epoch
        if not batch.codec:
            whole = self._view[self._pos : batch.stop]
            read = DefaultRecordBatch(whole) if batch.magic == 2 else None
            self._place(batch, whole[BATCH_HEADER.size :], read)
            return
        small = take_small()
        try:
            self._inflate(batch, small)
        except TooLarge:
            self.is_large = True
        except Exception:  # whatever a codec raises
            self._source = self._lost(batch)
        else:
            self._small = small
            return
        give_back(small)

    def _inflate(self, batch: _Batch, buffer: bytearray | mmap) -> None:
        """Raises TooLarge, and whatever codecs do."""
        whole = self._view[self._pos : batch.stop]
        if batch.magic == 2:
            made = inflated_batch(whole, batch.codec, memoryview(buffer))
            self._place(batch, made[BATCH_HEADER.size :], DefaultRecordBatch(made))
        else:
            self._place(batch, inflated_messages(whole, batch.codec, memoryview(buffer)), None)

    def _place(self, batch: _Batch, plain: memoryview, read: DefaultRecordBatch | None) -> None:
        """Its records are these bytes."""
        self._plain = plain
        self._read = None if read is None else chain(read)  # which may be iterated over but once
        self._each = max(1, len(plain) // max(1, batch.records))
        if read is None:
            whole = self._view[self._pos : batch.stop]
            self._each = old_messages.AVERAGE
            self._source = old_messages.messages(self._tp, whole, plain)

    def _take(self, batch: _Batch) -> None:
        """Read on in it, as far as the slice goes."""
        most, read, tp, epoch = self._left, self._read, self._tp, batch.epoch
        most = min(most, self._left_bytes // self._each + 1)
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
                assert self._source is not None
                records = list(islice(self._source, most))
        except Exception:  # whatever it raises: something in there is broken
            self._read, self._source = None, self._mended(batch)
            return
        self._left -= len(records)
        self._left_bytes -= len(records) * self._each
        over = len(records) < most
        if batch.base < self._position:
            records = [entry for entry in records if entry.next > self._position]
        if records:
            self.plain += len(records) * self._each
            self._entries.extend(records)
            self._position = records[-1].next
        if over:
            self._close(batch)

    def _close(self, batch: _Batch) -> None:
        self._batch = self._read = self._source = None
        self._plain, small, self._small = self._view, self._small, None
        if small is not None:
            give_back(small)
        self.held = 0
        self._pos = batch.stop
        self._advance(batch.after, batch.epoch)

    def _mended(self, batch: _Batch) -> Iterator[Entry]:
        """What can be read of it though something in it is broken."""
        if self._read is None:
            return self._lost(batch)
        header = BATCH_HEADER.unpack_from(self._data, self._pos)
        return salvage(self._tp, header, self._plain, max(batch.base, self._position))

    def _lost(self, batch: _Batch) -> Iterator[Entry]:
        """That nothing more can be read of it."""
        start = max(batch.base, self._position)
        if batch.after > start:
            yield Gap(self._tp, start, batch.after, batch.epoch, Reason.CORRUPT)
