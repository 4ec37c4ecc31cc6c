"""Noticing that the server is about to end, for applications that it does not tell.

uvicorn ends its connections before it ends lifespans, and waits for streams for as long as
`timeout_graceful_shutdown` says: for ever, by default. Our own server ends them itself; under
another's `uvicorn app:app` this does, with an `end` event and a time to come back.
"""

from __future__ import annotations

import asyncio
import signal

from gateway.hub.fanout.hubs import Hubs

POLL_INTERVAL_S = 0.25  # seconds


async def drain_on_server_exit(hubs: Hubs) -> None:
    """Drain once the server that has the process's signals was told to end."""
    while not _is_server_exiting():  # noqa: ASYNC110 (a flag of another's server, which tells nobody)
        await asyncio.sleep(POLL_INTERVAL_S)
    hubs.drain()


def _is_server_exiting() -> bool:
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
