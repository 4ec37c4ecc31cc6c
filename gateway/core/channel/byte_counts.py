"""Count each client's bytes, for wires that end with a sum, at no cost per delivery.

A channel knows the sum of its chunks. A client only notes the channel's total where it began and
stopped to follow the channel, and adds up its own bytes in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self


class ByteSum(Protocol):
    """A sum over bytes that can be subtracted again: their number and a checksum, for example."""

    def __add__(self, other: Any, /) -> Self: ...

    def subtract(self, before: Any, /) -> Self:
        """Return the sum over the bytes that were added to `before` to get this one."""


class CountedBytes(bytes):
    """Bytes on a wire, with the sum over their content, such as before compression."""

    sum: Any

    @classmethod
    def create(cls, data: bytes, sum: ByteSum) -> CountedBytes:
        result = cls(data)
        result.sum = sum
        return result


class ByteCounts:
    """The sum over one client's bytes, owned by its subscription.

    Between `start_shared` and `stop_shared` the client gets all that its channel publishes. That
    part is added only when it ends (10 us), as the difference of two totals of the channel. A sum
    or total of None is that over nothing.
    """

    __slots__ = ("_shared_from", "is_shared", "sum")

    def __init__(self, sum: ByteSum | None = None) -> None:
        self.sum = sum
        self._shared_from: ByteSum | None = None
        self.is_shared = False

    def start_shared(self, total: ByteSum | None) -> None:
        self._shared_from, self.is_shared = total, True

    def stop_shared(self, total: ByteSum | None) -> None:
        if total is not None:
            self._add_sum(total if self._shared_from is None else total.subtract(self._shared_from))
        self.is_shared = False

    def add(self, pieces: Iterable[bytes]) -> None:
        """Add pieces that are not the channel's shared chunks. Those without a sum do not count."""
        for piece in pieces:
            if type(piece) is CountedBytes:
                self._add_sum(piece.sum)

    def _add_sum(self, sum: ByteSum) -> None:
        self.sum = sum if self.sum is None else self.sum + sum
