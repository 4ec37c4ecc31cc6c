"""What clients sent that is not done yet, as far as it counts towards `memory`."""

from __future__ import annotations


class ReceivedBytes:
    """Count the bytes of all messages that sockets of this process have heard and not done."""

    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0


received_bytes = ReceivedBytes()
"""Of this process: messages that wait behind others, and records that are under way."""
