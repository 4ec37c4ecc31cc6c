"""Counting what each client got, for wires whose end tells it, at no cost per delivery.

A channel knows what its chunks come to; a client only where it began and ended to ride on them,
and what it got of its own in between.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, Self


class Sum(Protocol):
    """Of bytes: their number and a checksum, or the like."""

    def __add__(self, other: Any, /) -> Self:
        """That of both, one after the other."""

    def since(self, before: Any, /) -> Self:
        """That of what was added to `before` to come here."""


class Counted(bytes):
    """Bytes on a wire, and the sum of what they say."""

    sum: Any

    @classmethod
    def of(cls, data: bytes, sum: Sum) -> Counted:
        counted = cls(data)
        counted.sum = sum
        return counted


class Ledger:
    """What one client got. Totals are those of its channel. None: the sum of nothing.

    rides: it gets what its channel has. That is settled when it stops: 10 us.
    """

    __slots__ = ("_from", "rides", "sum")

    def __init__(self, sum: Sum | None = None) -> None:
        self.sum = sum
        self._from: Sum | None = None
        self.rides = False

    def ride(self, total: Sum | None) -> None:
        """From this total on it gets what its channel has."""
        self._from, self.rides = total, True

    def stop(self, total: Sum | None) -> None:
        """Up to this one it did."""
        if total is not None:
            self._add(total if self._from is None else total.since(self._from))
        self.rides = False

    def add(self, pieces: Iterable[bytes]) -> None:
        """Its own, or a cohort's. What says nothing is not counted."""
        for piece in pieces:
            if type(piece) is Counted:
                self._add(piece.sum)

    def _add(self, sum: Sum) -> None:
        self.sum = sum if self.sum is None else self.sum + sum
