"""A back end that is called with batches: a process of its own, that does as it is ordered.

async with running_backend() as backend:
    backend.order(fail=10)          # every tenth record fails, by the number in its value
    ...
    backend.kill(); await backend.start()

Orders and what it did lie in files, so both outlive it. A record's value is JSON with a number
`n`. What a batch came to is written down before it is answered, as a real one's work is done.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

Record = Mapping[str, Any]
RecordLocation = tuple[str, int, int]


class FakeBackend:
    """See the module. calls, done: as they are written down now."""

    def __init__(self, directory: Path) -> None:
        self.port = 0
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.set_orders()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def set_orders(self, **orders: Any) -> None:
        """From the next request on.

        fail:    of so many records one is answered with processed: false.
        stumble: numbers by which the batch that has one is answered 500.
        say:     good, garbage, short, empty, hang (after the work), partly (only items that failed
                 name their records), or a status (without any).
        after:   Retry-After, with a status. delay: seconds of work for a batch.
        hold:    numbers: the batch that has one waits until orders do not name it any more.
        well:    what /health says.
        """
        new = self._directory / "orders.new"
        new.write_text(json.dumps(orders))
        new.replace(self._directory / "orders.json")

    async def start(self) -> None:
        """On the port that it had."""
        from support.waiting import wait_until

        told = self._directory / "port"
        told.unlink(missing_ok=True)
        process = self._spawn()
        await wait_until(lambda: told.exists() or process.poll() is not None, "the back end", 60)
        assert process.poll() is None, (self._directory / "log").read_text()
        self.port = int(told.read_text())

    def _spawn(self) -> subprocess.Popen[bytes]:
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                # -P: its neighbour admin_api.py is not Python's.
                [sys.executable, "-P", __file__, str(self._directory), str(self.port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self._process

    def kill(self) -> None:
        """SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """Every batch: `records` as they came, `headers`, `processed` (None where it did nothing)
        and `said`, the order by which it was answered."""
        journal = self._directory / "journal"
        lines = journal.read_bytes().split(b"\n")[:-1] if journal.exists() else []
        return [json.loads(line) for line in lines]

    @property
    def arrived_count(self) -> int:
        """How many batches came and have their orders, those that are not answered included."""
        arrivals = self._directory / "arrivals"
        return len(arrivals.read_bytes()) if arrivals.exists() else 0

    @property
    def processed_records(self) -> list[Record]:
        """All records that it processed, in its order, those done twice included."""
        return list(_iter_processed(self.calls))


def _iter_processed(calls: list[dict[str, Any]]) -> Iterator[Record]:
    for call in calls:
        for record, done in zip(call["records"], call["processed"] or (), strict=False):
            if done:
                yield record


@asynccontextmanager
async def running_backend() -> AsyncIterator[FakeBackend]:
    with tempfile.TemporaryDirectory(prefix="backend-") as directory:
        backend = FakeBackend(Path(directory))
        try:
            await backend.start()
            yield backend
        finally:
            backend.kill()


# the process


class _BackendApp:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._journal = os.open(directory / "journal", flags)
        self._arrivals = os.open(directory / "arrivals", flags)  # a byte for each batch

    def read_orders(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self._directory / "orders.json").read_bytes())
        return found

    async def handle_records(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, Response

        records, orders = json.loads(await request.body()), self.read_orders()
        os.write(self._arrivals, b".")
        while self._has_number(records, self.read_orders().get("hold", ())):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        await asyncio.sleep(orders.get("delay", 0.0))
        say = orders.get("say", "good")
        if isinstance(say, int) or self._should_answer_500(records, orders):
            self._write_call(request, records, None)
            headers = {"Retry-After": str(orders["after"])} if "after" in orders else {}
            return Response("boom", say if isinstance(say, int) else 500, headers)
        processed = [not self._should_fail(each, orders) for each in records]
        self._write_call(request, records, processed)
        if say == "hang":
            await asyncio.sleep(3600)
        if say == "garbage":
            return Response("<html>\xff", 200)
        if say == "empty":
            return Response(status_code=204)
        items = [
            {"record": each, "processed": done, **({} if done else {"stacktrace": "Boom: line 1"})}
            for each, done in zip(records, processed, strict=True)
        ]
        if say == "partly":
            items = [{"processed": True} if each["processed"] else each for each in items]
        return JSONResponse(items[1:] if say == "short" else items)

    async def handle_health(self, request: Any) -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("", 200 if self.read_orders().get("well", True) else 503)

    @staticmethod
    def _get_number(record: Record) -> int:
        value = record["value"]
        return int(value["n"]) if isinstance(value, dict) else -1

    def _should_fail(self, record: Record, orders: Mapping[str, Any]) -> bool:
        each = orders.get("fail", 0)
        return bool(each) and self._get_number(record) % each == 0

    def _should_answer_500(self, records: list[Record], orders: Mapping[str, Any]) -> bool:
        return self._has_number(records, orders.get("stumble", ()))

    def _has_number(self, records: list[Record], numbers: Collection[int]) -> bool:
        return any(self._get_number(each) in numbers for each in records)

    def _write_call(
        self, request: Any, records: list[Record], processed: list[bool] | None
    ) -> None:
        call = {
            "at": time.time(),
            "headers": dict(request.headers),
            "records": records,
            "processed": processed,
            "said": self.read_orders().get("say", "good"),
        }
        os.write(self._journal, json.dumps(call).encode() + b"\n")


def _serve_backend(directory: Path, port: int) -> None:
    import socket

    import uvicorn
    from starlette.applications import Starlette
    from starlette.routing import Route

    worker = _BackendApp(directory)
    app = Starlette(
        routes=[
            Route("/kafka/records", worker.handle_records, methods=["POST"]),
            Route("/health", worker.handle_health),
        ]
    )
    bound = socket.create_server(("127.0.0.1", port))  # who connects from now on is served soon
    new = directory / "port.new"
    new.write_text(str(bound.getsockname()[1]))
    new.replace(directory / "port")
    uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off")).run(sockets=[bound])


if __name__ == "__main__":
    _serve_backend(Path(sys.argv[1]), int(sys.argv[2]))
