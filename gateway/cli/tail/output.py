"""Standard output that blocks nobody, and says when its reader has gone away."""

from __future__ import annotations

import asyncio
import os
import select
import stat

PIPE_BUF = 4096  # bytes; a pipe that is writable takes so many at once (POSIX)


class OutputClosed(Exception):
    """Nobody reads any more, as after `| head`."""


class OutputWriter:
    """Writes to a descriptor that others may share: it is left blocking, and written to only
    when it is ready, so that ^C and the network are never kept waiting by a full pipe."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        kind = os.fstat(fd).st_mode
        self._is_pipe = stat.S_ISFIFO(kind)
        self._must_poll = self._is_pipe or stat.S_ISSOCK(kind) or os.isatty(fd)

    async def write(self, data: bytes) -> None:
        """Raises Closed."""
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
        """Return when the reader has gone, also with nothing to write. Only pipes tell."""
        if self._is_pipe:
            await self._wait_ready(
                for_read=True
            )  # the writing end of a pipe is readable in error only
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
