"""Ask the kernel how many bytes of a connection the peer has acknowledged.

The kernel keeps this count anyway, so that no delivery pays for it. It is read only when somebody
asks, for instance when an operator lists the streams.
"""

from __future__ import annotations

import asyncio
import socket
import struct

_TCP_INFO = getattr(socket, "TCP_INFO", None)  # Linux only
_BYTES_ACKED_STRUCT = struct.Struct("=Q")
# Where struct tcp_info (linux/tcp.h) has tcpi_bytes_acked. Kernels before 4.1 return a shorter
# structure without it.
_BYTES_ACKED_OFFSET = 120


def get_acknowledged_bytes(transport: asyncio.BaseTransport | None) -> int | None:
    """Return how many bytes of a connection the peer has acknowledged since it began.

    These include HTTP heads and TLS records. It is None where the kernel does not tell, or if
    another server owns the connection.
    """
    connection = None if transport is None else transport.get_extra_info("socket")
    if _TCP_INFO is None or connection is None:
        return None
    try:
        info: bytes = connection.getsockopt(
            socket.IPPROTO_TCP, _TCP_INFO, _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        )
    except OSError:  # it is no TCP connection, or it was closed in the meantime
        return None
    return (
        int(_BYTES_ACKED_STRUCT.unpack_from(info, _BYTES_ACKED_OFFSET)[0])
        if len(info) >= _BYTES_ACKED_OFFSET + _BYTES_ACKED_STRUCT.size
        else None
    )
