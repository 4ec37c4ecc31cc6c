"""Counting what each client got, for wires whose end tells it, at no cost per delivery.

A channel knows what its chunks come to; a client only where it began and ended to ride on them,
and what it got of its own in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self


class ByteSum(Protocol):
    """Of bytes: their number and a checksum, or the like."""

    def __add__(self, other: Any, /) -> Self:
        """That of both, one after the other."""

    def subtract(self, before: Any, /) -> Self:
        """That of what was added to `before` to come here."""


class CountedBytes(bytes):
    """Bytes on a wire, and the sum of what they say."""

    sum: Any

    @classmethod
    def create(cls, data: bytes, sum: ByteSum) -> CountedBytes:
        counted = cls(data)
        counted.sum = sum
        return counted


class ByteCounts:
    """What one client got. Totals are those of its channel. None: the sum of nothing.

    rides: it gets what its channel has. That is settled when it stops: 10 us.
    """

    __slots__ = ("_shared_from", "is_shared", "sum")

    def __init__(self, sum: ByteSum | None = None) -> None:
        self.sum = sum
        self._shared_from: ByteSum | None = None
        self.is_shared = False

    def start_shared(self, total: ByteSum | None) -> None:
        """From this total on it gets what its channel has."""
        self._shared_from, self.is_shared = total, True

    def stop_shared(self, total: ByteSum | None) -> None:
        """Up to this one it did."""
        if total is not None:
            self._add_sum(total if self._shared_from is None else total.subtract(self._shared_from))
        self.is_shared = False

    def add(self, pieces: Iterable[bytes]) -> None:
        """Its own, or a cohort's. What says nothing is not counted."""
        for piece in pieces:
            if type(piece) is CountedBytes:
                self._add_sum(piece.sum)

    def _add_sum(self, sum: ByteSum) -> None:
        self.sum = sum if self.sum is None else self.sum + sum
