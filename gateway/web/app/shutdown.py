"""Notice that the server is about to end, for applications that it does not notify.

uvicorn ends its connections before it ends lifespans, and waits for streams as long as
`timeout_graceful_shutdown` says: for ever by default. `gateway.web.app.server` ends streams itself.
Under any other server, such as `uvicorn app:app`, this module ends them with an `end` event and a
retry time.
"""

from __future__ import annotations

import asyncio
import signal

from gateway.hub.fanout.hubs import Hubs

POLL_INTERVAL_S = 0.25  # seconds between looks at the server


async def drain_on_server_exit(hubs: Hubs) -> None:
    """Drain once the server that handles the process's signals is about to exit."""
    while not _is_server_exiting():  # noqa: ASYNC110 (uvicorn's flag notifies nobody)
        await asyncio.sleep(POLL_INTERVAL_S)
    hubs.drain()


def _is_server_exiting() -> bool:
    """Return whether uvicorn, whose method handles SIGTERM, is about to exit."""
    server = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return getattr(server, "should_exit", False) is True
