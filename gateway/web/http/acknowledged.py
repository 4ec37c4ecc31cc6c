"""How much of what was sent the other side has, as the kernel counts it anyway: no delivery pays
for it."""

from __future__ import annotations

import asyncio
import socket
import struct

_INFO = getattr(socket, "TCP_INFO", None)  # Linux
_ACKED = struct.Struct("=Q")
_AT = 120  # of struct tcp_info (linux/tcp.h), since 4.1


def acknowledged(transport: asyncio.BaseTransport | None) -> int | None:
    """Bytes of a connection, heads and TLS included; None where that is not known."""
    pipe = None if transport is None else transport.get_extra_info("socket")
    if _INFO is None or pipe is None:
        return None
    try:
        told: bytes = pipe.getsockopt(socket.IPPROTO_TCP, _INFO, _AT + _ACKED.size)
    except OSError:  # it is none of TCP, or was closed meanwhile
        return None
    return int(_ACKED.unpack_from(told, _AT)[0]) if len(told) >= _AT + _ACKED.size else None
