"""How much of what was sent the other side has, as the kernel counts it anyway: no delivery pays
for it."""

from __future__ import annotations

import asyncio
import socket
import struct

_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux
_BYTES_ACKED_STRUCT = struct.Struct("=Q")
_BYTES_ACKED_OFFSET = 120  # of struct tcp_info (linux/tcp.h), since 4.1


def get_acknowledged_bytes(transport: asyncio.BaseTransport | None) -> int | None:
    """Bytes of a connection, heads and TLS included; None where that is not known."""
    pipe = None if transport is None else transport.get_extra_info("socket")
    if _TCP_INFO is None or pipe is None:
        return None
    try:
        told: bytes = pipe.getsockopt(
            socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        )
    except OSError:  # it is none of TCP, or was closed meanwhile
        return None
    return (
        int(_BYTES_ACKED_STRUCT.unpack_from(told, _BYTES_ACKED_OFFSET)[0])
        if len(told) >= _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        else None
    )
