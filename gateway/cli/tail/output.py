"""Write to standard output without blocking the event loop, and notice when its reader ends."""

from __future__ import annotations

import asyncio
import os
import select
import stat

PIPE_BUF = 4096  # bytes that a writable pipe accepts without blocking (POSIX)


class OutputClosed(Exception):
    """The reader of the output has ended, as after `| head`."""


class OutputWriter:
    """The writer of a file descriptor.

    Other processes may share the descriptor, so it is not set to non-blocking. It is written to
    only when it is ready, so that a full pipe never delays ^C or the network.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        mode = os.fstat(fd).st_mode
        self._is_pipe = stat.S_ISFIFO(mode)
        self._must_poll = self._is_pipe or stat.S_ISSOCK(mode) or os.isatty(fd)

    async def write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                if not self._must_poll:
                    view = view[os.write(self._fd, view) :]
                    continue
                if not select.select((), (self._fd,), (), 0)[1]:
                    await self._wait_ready(for_read=False)
                view = view[os.write(self._fd, view[:PIPE_BUF]) :]
        except BrokenPipeError:
            raise OutputClosed from None

    async def wait_closed(self) -> None:
        """Return when the reader of a pipe has ended; never if the output is not a pipe."""
        if self._is_pipe:
            # The writing end of a pipe becomes readable only by an error.
            await self._wait_ready(for_read=True)
        else:
            await asyncio.get_running_loop().create_future()

    async def _wait_ready(self, *, for_read: bool) -> None:
        loop = asyncio.get_running_loop()
        ready = loop.create_future()
        add, remove = (
            (loop.add_reader, loop.remove_reader)
            if for_read
            else (loop.add_writer, loop.remove_writer)
        )
        add(self._fd, _set_ready, ready)
        try:
            await ready
        finally:
            remove(self._fd)


def _set_ready(ready: asyncio.Future[None]) -> None:
    if not ready.done():
        ready.set_result(None)
