"""Count the bytes that clients sent and that are still being processed, towards `memory`."""

from __future__ import annotations


class ReceivedBytes:
    """Count the bytes of all messages that connections of this process received and not finished.

    There is one instance per process; connections add to `total` and subtract from it.

    Attributes:
        total: The number of bytes.
    """

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


received_bytes = ReceivedBytes()
"""The bytes of this process: messages that wait behind others, and records being written."""
