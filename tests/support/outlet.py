"""Connections that take as much as a test lets them, or nothing."""

from __future__ import annotations

import re
from typing import Any


class FakeOutlet:
    """Takes `room` bytes, and is full then."""

    def __init__(self, capacity: float = float("inf")) -> None:
        self.chunks: list[bytes] = []
        self.capacity = capacity
        self.is_finished = False
        self.client: Any = None  # whose it is, for a test to remember

    @property
    def full(self) -> bool:
        return self.capacity < 0

    def write(self, data: bytes) -> None:
        assert data and not self.is_finished
        self.chunks.append(data)
        self.capacity -= len(data)

    def finish(self, data: bytes) -> None:
        self.chunks.append(data)
        self.is_finished = True

    @property
    def values(self) -> list[int]:
        return [int(value) for value in re.findall(rb"data: (\d+)\n", b"".join(self.chunks))]
