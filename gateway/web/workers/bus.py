"""Send messages between the workers of one host, by topic.

    bus.add_handler("tokens", lambda worker, data: renew(data))  # of broadcasts and requests
    bus.broadcast("tokens", {"jti": "7"})                        # to all other workers
    clients = await bus.request("clients")                       # to all workers and this one
    clients.by_worker, clients.missing

Messages go through the supervisor (`relay`), which `call_supervisor` asks itself. A worker that is
away or slow delays nobody: it misses what is broadcast meanwhile, and `request` reports it as
missing. Therefore, state that every worker must have is sent again whenever `join_callbacks` are
called. With one worker there is nobody else on the bus, and all of this works.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from gateway.errors import GatewayError

from .relay import Link

log = logging.getLogger(__name__)

NO_RESPONSE_NUMBER = 0  # the number of a call that waits for no answer
RECONNECT_DELAY_RANGE_S = (0.02, 1.0)  # seconds before connecting again: at first, and at most

BusHandler: TypeAlias = Callable[[int, Any], Any]


class SupervisorUnavailable(GatewayError):
    """The supervisor is away, or did not answer in time."""


class WorkerResponses(NamedTuple):
    """The responses to a request, by the number of the worker.

    `missing` are the workers that did not answer in time, or failed.
    """

    by_worker: Mapping[int, Any]
    missing: frozenset[int]


@dataclass(slots=True)
class _PendingRequest:
    """A request to other workers; `recipients` are None until the relay reports them.

    A response is in a list, which is empty if the handler failed.
    """

    future: asyncio.Future[None]
    only_worker: int | None = None
    recipients: set[int] | None = None
    responses: dict[int, list[Any]] = field(default_factory=dict)

    def resolve_if_complete(self, connected_workers: set[int]) -> None:
        is_waiting = (
            self.recipients is None or (self.recipients & connected_workers) - self.responses.keys()
        )
        if not is_waiting and not self.future.done():
            self.future.set_result(None)


class Bus:
    """One worker's side of the bus.

    `run` keeps it connected, and calls `join_callbacks` at each connection. Between calls,
    `_linked_event` is set exactly while `_link` is not None.
    """

    def __init__(
        self, socket_path: Path | None = None, worker: int = 1, worker_count: int = 1
    ) -> None:
        """Create the bus, without connecting. There is no other worker without a `socket_path`."""
        self.worker = worker
        self.worker_count = worker_count
        self.join_callbacks: list[Callable[[], None]] = []
        self._socket_path = socket_path
        self._handlers: dict[str, BusHandler] = {}
        self._numbers = itertools.count(1)
        self._pending_requests: dict[int, _PendingRequest] = {}
        self._pending_calls: dict[int, asyncio.Future[Any]] = {}
        self._connected_workers: set[int] = set()
        self._link: Link | None = None
        self._lost_event = asyncio.Event()
        self._linked_event = asyncio.Event()

    @property
    def is_linked(self) -> bool:
        return self._linked_event.is_set()

    def add_handler(self, topic: str, handler: BusHandler) -> None:
        """Set the handler of a topic; each topic has one.

        Args:
            handler: Called with the number of the sender and the data of each broadcast and each
                request. Its result, as JSON, is the response. It runs in the event loop and must be
                quick.
        """
        assert topic not in self._handlers, f"{topic} has a handler already"
        self._handlers[topic] = handler

    def broadcast(self, topic: str, data: Any = None) -> None:
        """Send data to all other workers that are connected."""
        if self._link is not None:
            self._link.send("say", topic, data)

    async def request(
        self,
        topic: str,
        data: Any = None,
        *,
        timeout_s: float = 1.0,
        only_worker: int | None = None,
    ) -> WorkerResponses:
        """Return the answers of all workers, including this one. It never raises.

        `data` is passed to the handlers as JSON. With `only_worker`, only the response of this
        worker is waited for.
        """
        responses: dict[int, list[Any]] = {}
        if only_worker in (None, self.worker):
            responses[self.worker] = self._run_handler(topic, self.worker, data)
        if self._link is not None and only_worker != self.worker:
            responses |= await self._request_others(self._link, topic, data, timeout_s, only_worker)
        by_worker = {worker: response[0] for worker, response in responses.items() if response}
        expected = range(1, self.worker_count + 1) if only_worker is None else (only_worker,)
        return WorkerResponses(by_worker, frozenset(expected) - by_worker.keys())

    async def _request_others(
        self, link: Link, topic: str, data: Any, timeout_s: float, only_worker: int | None
    ) -> dict[int, list[Any]]:
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        request = self._pending_requests[number] = _PendingRequest(future, only_worker)
        link.send("ask", number, topic, data)
        try:
            async with asyncio.timeout(timeout_s):
                await request.future
        except TimeoutError:  # what came until now is the result
            pass
        finally:
            del self._pending_requests[number]
        return request.responses

    async def call_supervisor(self, topic: str, data: Any = None, *, timeout_s: float = 1.0) -> Any:
        """Return the supervisor's answer, or raise: it may have handled the call all the same."""
        if self._link is None:
            raise SupervisorUnavailable("the supervisor is away")
        number = next(self._numbers)
        answer = self._pending_calls[number] = asyncio.get_running_loop().create_future()
        self._link.send("call", number, topic, data)
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise SupervisorUnavailable(
                f"the supervisor did not answer within {timeout_s:g} s"
            ) from None
        finally:
            del self._pending_calls[number]

    def notify_supervisor(self, topic: str, data: Any = None) -> None:
        """Send data to the supervisor without waiting for an answer."""
        if self._link is not None:
            self._link.send("call", NO_RESPONSE_NUMBER, topic, data)

    async def wait_until_linked(self, timeout_s: float) -> bool:
        """Wait for the supervisor, at most this many seconds; return whether it is there."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._linked_event.wait()
        except TimeoutError:
            return False
        return True

    def abort_link(self) -> None:
        if self._link is not None:
            self._link.abort()

    async def run(self) -> None:
        if self._socket_path is None:
            return
        try:
            delay = RECONNECT_DELAY_RANGE_S[0]
            while True:
                if await self._connect(self._socket_path):
                    delay = RECONNECT_DELAY_RANGE_S[0]
                    await self._lost_event.wait()
                # A random delay keeps all workers from connecting in the same moment.
                await asyncio.sleep(random.uniform(0, delay))
                delay = min(2 * delay, RECONNECT_DELAY_RANGE_S[1])
        finally:
            self.abort_link()

    async def _connect(self, socket_path: Path) -> bool:
        self._lost_event.clear()
        link = Link(self._on_message, self._on_link_lost)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, str(socket_path))
        except OSError:
            return False
        link.send("hello", self.worker)
        self._link = link
        # Callbacks send what the supervisor must know before anybody who waits for the link does.
        for callback in self.join_callbacks:
            callback()
        self._linked_event.set()
        return True

    def _on_link_lost(self) -> None:
        """Fail all calls, and complete all requests with the responses until now."""
        self._link, self._connected_workers = None, set()
        self._linked_event.clear()
        self._lost_event.set()
        for request in self._pending_requests.values():
            # Without the relay's report, nobody is known to have got the request: wait for nobody.
            request.recipients = request.recipients or set()
            request.resolve_if_complete(self._connected_workers)
        for future in self._pending_calls.values():
            if not future.done():
                future.set_exception(SupervisorUnavailable("the supervisor went away"))

    def _on_message(self, message: list[Any]) -> None:
        """Handle a message of the relay, which describes all messages."""
        kind, *rest = message
        match kind:
            case "say":
                worker, topic, data = rest
                if topic in self._handlers:  # else nobody here wants to know
                    self._run_handler(topic, worker, data)
            case "ask":
                worker, number, topic, data = rest
                self._send_response(worker, number, self._run_handler(topic, worker, data))
            case "asked":
                number, recipients = rest
                if number in self._pending_requests:
                    request = self._pending_requests[number]
                    request.recipients = {
                        other for other in recipients if request.only_worker in (None, other)
                    }
                    request.resolve_if_complete(self._connected_workers)
            case "answer":
                self._on_response(*rest)
            case "here":
                self._connected_workers = set(rest[0])
                for request in self._pending_requests.values():
                    request.resolve_if_complete(self._connected_workers)

    def _on_response(self, worker: int, number: int, response: list[Any]) -> None:
        # Requests and calls share one sequence of numbers: only one of them has this number.
        request, future = self._pending_requests.get(number), self._pending_calls.get(number)
        if request is not None:
            request.responses[worker] = response
            request.resolve_if_complete(self._connected_workers)
        elif future is not None and not future.done():
            if response:
                future.set_result(response[0])
            else:
                future.set_exception(
                    SupervisorUnavailable("the supervisor has no answer; its log says why")
                )

    def _run_handler(self, topic: str, worker: int, data: Any) -> list[Any]:
        """Return the handler's result in a list, or an empty list if the handler failed.

        A message that cannot be handled must not stop those that follow.
        """
        try:
            return [self._handlers[topic](worker, data)]
        except Exception:
            log.exception("a message of worker %d on topic %s cannot be handled", worker, topic)
            return []

    def _send_response(self, worker: int, number: int, response: list[Any]) -> None:
        """Send a handler's result, or an empty list if it is no JSON."""
        if self._link is None:
            return
        try:
            self._link.send("answer", worker, number, response)
        except TypeError:
            log.exception("an answer to worker %d cannot be encoded as JSON", worker)
            self._link.send("answer", worker, number, [])
