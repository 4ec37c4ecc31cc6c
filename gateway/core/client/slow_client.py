"""Clients that take less than they are sent."""

from __future__ import annotations

from enum import StrEnum


class SlowClientPolicy(StrEnum):
    """What happens to a client that falls out of its channel's ring."""

    CATCH_UP = "catchUp"
    SKIP = "skip"
    CONFLATE = "conflate"
    DISCONNECT = "disconnect"
