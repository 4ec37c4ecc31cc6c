"""A connection that takes as much as a test lets it."""

from __future__ import annotations

import re
from typing import Any


class Outlet:
    """Takes `room` bytes, and is full then."""

    transport = None

    def __init__(self, room: float = float("inf")) -> None:
        self.got: list[bytes] = []
        self.room = room
        self.finished = False
        self.client: Any = None  # whose it is, for a test to remember

    @property
    def full(self) -> bool:
        return self.room < 0

    def write(self, data: bytes) -> None:
        assert data and not self.finished
        self.got.append(data)
        self.room -= len(data)

    def finish(self, data: bytes) -> None:
        self.got.append(data)
        self.finished = True

    @property
    def values(self) -> list[int]:
        return [int(value) for value in re.findall(rb"data: (\d+)\n", b"".join(self.got))]
