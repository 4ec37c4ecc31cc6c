"""The socket of a server that frames messages itself."""

from __future__ import annotations

import asyncio
from typing import Any

from support.waiting import wait_until

from gateway.web.websocket.endpoint import AsgiSocket
from gateway.wire.websocket import encode_text


class FakeServer:
    """What the application sent, once there is `room`, and what it is told."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self.sent: list[dict[str, Any]] = []
        self.capacity = asyncio.Semaphore(0)
        self.is_disconnected = False

    async def send(self, message: Any) -> None:
        await self.capacity.acquire()
        if self.is_disconnected:
            raise OSError
        self.sent.append(message)

    def receive_text(self, text: str) -> None:
        self.events.put_nowait({"type": "websocket.receive", "text": text})

    def disconnect(self, code: int = 1001) -> None:
        self.events.put_nowait({"type": "websocket.disconnect", "code": code, "reason": "bye"})


class RecordingListener:
    is_busy = False

    def __init__(self) -> None:
        self.messages: list[str | bytes] = []
        self.drain_count = 0
        self.closings: list[tuple[int, str]] = []

    def on_message(self, message: str | bytes) -> None:
        self.messages.append(message)

    def on_drained(self) -> None:
        self.drain_count += 1

    def on_closed(self, code: int, reason: str) -> None:
        self.closings.append((code, reason))


def run_socket() -> tuple[FakeServer, AsgiSocket, RecordingListener, asyncio.Task[None]]:
    server, ear = FakeServer(), RecordingListener()
    socket = AsgiSocket(ear, server.events.get, server.send)
    return server, socket, ear, asyncio.create_task(socket.run())


async def test_it_is_full_until_the_server_has_taken_what_was_written():
    server, socket, ear, task = run_socket()
    for text in (b"a", b"b"):
        socket.write(encode_text(text))
    assert socket.full
    server.capacity.release()
    await wait_until(lambda: len(server.sent) == 1)
    assert socket.full and not ear.drain_count
    server.capacity.release()
    await wait_until(lambda: ear.drain_count == 1)
    assert not socket.full
    assert [message["text"] for message in server.sent] == ["a", "b"]
    server.disconnect()
    await task
    assert ear.closings == [(1001, "bye")] and socket.closed


async def test_a_close_goes_out_behind_what_was_written_and_nothing_behind_it():
    server, socket, ear, task = run_socket()
    socket.write(encode_text(b"a"))
    socket.close(1013, "later")
    socket.write(encode_text(b"b"))
    assert ear.closings == [(1013, "later")]
    for _ in range(3):
        server.capacity.release()
    await wait_until(lambda: len(server.sent) == 2)
    assert [message["type"] for message in server.sent] == ["websocket.send", "websocket.close"]
    assert (server.sent[1]["code"], server.sent[1]["reason"]) == (1013, "later")
    server.disconnect()
    await task
    assert len(ear.closings) == 1


async def test_a_busy_listener_hears_no_more_until_it_goes_on():
    server, socket, ear, task = run_socket()
    ear.is_busy = True
    for text in ("a", "b"):
        server.receive_text(text)
    await wait_until(lambda: ear.messages == ["a"])
    for _ in range(5):
        await asyncio.sleep(0)
    assert ear.messages == ["a"]
    ear.is_busy = False
    socket.resume_reading()
    await wait_until(lambda: ear.messages == ["a", "b"])
    server.disconnect()
    await task


async def test_one_that_is_gone_while_it_is_written_to_is_lost_and_no_task_stays():
    server, socket, ear, task = run_socket()
    server.is_disconnected = True
    socket.write(encode_text(b"a"))
    server.capacity.release()
    await wait_until(lambda: socket.closed)
    server.disconnect(1006)
    await task
    assert ear.closings == [(1006, "bye")]
    assert len(asyncio.all_tasks()) == 1


async def test_a_server_that_cancels_its_application_ends_it():
    _, socket, ear, task = run_socket()
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert socket.closed and ear.closings == [(1006, "")]
    assert len(asyncio.all_tasks()) == 1
