from __future__ import annotations

import asyncio
import threading

from support.until import until

from gateway.web.interpreter import LOCK, Lock, watch


async def test_the_lock_is_contended_while_another_thread_computes():
    lock, over = Lock(), threading.Event()

    def compute() -> None:
        while not over.is_set():
            sum(range(1000))

    def contended() -> bool:
        lock.look()
        return lock.contended

    computing = threading.Thread(target=compute)
    computing.start()
    try:
        await until(contended)
    finally:
        over.set()
        computing.join()
    await until(lambda: not contended())


async def test_a_watch_looks_again_and_again(monkeypatch):
    monkeypatch.setattr("gateway.web.interpreter.EVERY", 0.01)
    monkeypatch.setattr(LOCK, "contended", True)
    watching = asyncio.create_task(watch())
    try:
        for _ in range(2):
            await until(lambda: not LOCK.contended)
            LOCK.contended = True
    finally:
        watching.cancel()
