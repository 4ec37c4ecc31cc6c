"""The socket of a server that frames messages itself."""

from __future__ import annotations

import asyncio
from typing import Any

from support.until import until

from gateway.web.websocket.socket import AsgiSocket
from gateway.wire.websocket import frame


class Server:
    """What the application sent, once there is `room`, and what it is told."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.room = asyncio.Semaphore(0)
        self.gone = False

    async def send(self, message: Any) -> None:
        await self.room.acquire()
        if self.gone:
            raise OSError
        self.sent.append(message)

    def say(self, text: str) -> None:
        self.told.put_nowait({"type": "websocket.receive", "text": text})

    def leave(self, code: int = 1001) -> None:
        self.told.put_nowait({"type": "websocket.disconnect", "code": code, "reason": "bye"})


class Ear:
    busy = False

    def __init__(self) -> None:
        self.said: list[str | bytes] = []
        self.emptied = 0
        self.ends: list[tuple[int, str]] = []

    def heard(self, message: str | bytes) -> None:
        self.said.append(message)

    def drained(self) -> None:
        self.emptied += 1

    def lost(self, code: int, reason: str) -> None:
        self.ends.append((code, reason))


def running() -> tuple[Server, AsgiSocket, Ear, asyncio.Task[None]]:
    server, ear = Server(), Ear()
    socket = AsgiSocket(ear, server.told.get, server.send)
    return server, socket, ear, asyncio.create_task(socket.run())


async def test_it_is_full_until_the_server_has_taken_what_was_written():
    server, socket, ear, task = running()
    for text in (b"a", b"b"):
        socket.write(frame(text))
    assert socket.full
    server.room.release()
    await until(lambda: len(server.sent) == 1)
    assert socket.full and not ear.emptied
    server.room.release()
    await until(lambda: ear.emptied == 1)
    assert not socket.full
    assert [message["text"] for message in server.sent] == ["a", "b"]
    server.leave()
    await task
    assert ear.ends == [(1001, "bye")] and socket.closed


async def test_a_close_goes_out_behind_what_was_written_and_nothing_behind_it():
    server, socket, ear, task = running()
    socket.write(frame(b"a"))
    socket.close(1013, "later")
    socket.write(frame(b"b"))
    assert ear.ends == [(1013, "later")]
    for _ in range(3):
        server.room.release()
    await until(lambda: len(server.sent) == 2)
    assert [message["type"] for message in server.sent] == ["websocket.send", "websocket.close"]
    assert (server.sent[1]["code"], server.sent[1]["reason"]) == (1013, "later")
    server.leave()
    await task
    assert len(ear.ends) == 1


async def test_a_busy_listener_hears_no_more_until_it_goes_on():
    server, socket, ear, task = running()
    ear.busy = True
    for text in ("a", "b"):
        server.say(text)
    await until(lambda: ear.said == ["a"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert ear.said == ["a"]
    ear.busy = False
    socket.go_on()
    await until(lambda: ear.said == ["a", "b"])
    server.leave()
    await task


async def test_one_that_is_gone_while_it_is_written_to_is_lost_and_no_task_stays():
    server, socket, ear, task = running()
    server.gone = True
    socket.write(frame(b"a"))
    server.room.release()
    await until(lambda: socket.closed)
    server.leave(1006)
    await task
    assert ear.ends == [(1006, "bye")]
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_cancels_its_application_ends_it():
    _, socket, ear, task = running()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert socket.closed and ear.ends == [(1006, "")]
    assert len(asyncio.all_tasks()) == 1
