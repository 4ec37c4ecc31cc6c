"""What the workers of one host tell and ask each other, by topic.

    bus.on("tokens", lambda worker, data: renew(data))     # hears, and answers what is asked
    bus.say("tokens", {"jti": "7"})                        # to all other workers
    clients = await bus.ask("clients")                     # of all workers, this one's own too
    clients.said, clients.missing

It goes through the supervisor (`relay`), which is asked by `call`. A worker that is away or slow
holds up nobody: what is said to it meanwhile is lost to it, and `ask` names it as missing. So who
keeps something that must be whole says it anew whenever `joined` is called. With one worker the
bus has nobody else on it, and all of this works.
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

from .link import Link

log = logging.getLogger(__name__)

NO_RESPONSE_NUMBER = 0  # the number of a call that waits for no answer
RECONNECT_DELAY_RANGE_S = (0.02, 1.0)  # seconds until the next attempt to connect: first, longest

BusHandler: TypeAlias = Callable[[int, Any], Any]


class SupervisorUnavailable(GatewayError):
    """The supervisor is not there, or did not answer in time."""


class WorkerResponses(NamedTuple):
    """said: by the worker's number. missing: workers that did not answer in time, or failed."""

    by_worker: Mapping[int, Any]
    missing: frozenset[int]


@dataclass(slots=True)
class _PendingRequest:
    """of: the one worker that is waited for; None for all. asked: None until the relay says who
    was."""

    future: asyncio.Future[None]
    only_worker: int | None = None
    recipients: set[int] | None = None
    responses: dict[int, list[Any]] = field(default_factory=dict)

    def resolve_if_complete(self, connected_workers: set[int]) -> None:
        waited = (
            self.recipients is None or (self.recipients & connected_workers) - self.responses.keys()
        )
        if not waited and not self.future.done():
            self.future.set_result(None)


class Bus:
    """path: of the relay's socket; None where there is no other worker.

    worker: the number of this one, from 1. workers: how many there are.
    joined: called whenever this worker can be heard, first or again.
    """

    def __init__(
        self, socket_path: Path | None = None, worker: int = 1, worker_count: int = 1
    ) -> None:
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
        """Is the supervisor there?"""
        return self._linked_event.is_set()

    def add_handler(self, topic: str, handler: BusHandler) -> None:
        """hear(worker, data) of what another says, and of what any asks: what it returns is the
        answer (JSON). It is called in the loop and must be quick. One for a topic."""
        assert topic not in self._handlers, f"{topic} is heard already"
        self._handlers[topic] = handler

    def broadcast(self, topic: str, data: Any = None) -> None:
        """To all other workers that are there."""
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
        """What every worker answers within so many seconds; never raises. of: wait for this one
        alone."""
        answers: dict[int, list[Any]] = {}
        if only_worker in (None, self.worker):
            answers[self.worker] = self._run_handler(topic, self.worker, data)
        if self._link is not None and only_worker != self.worker:
            answers |= await self._request_others(self._link, topic, data, timeout_s, only_worker)
        said = {worker: answer[0] for worker, answer in answers.items() if answer}
        every = range(1, self.worker_count + 1) if only_worker is None else (only_worker,)
        return WorkerResponses(said, frozenset(every) - said.keys())

    async def _request_others(
        self, link: Link, topic: str, data: Any, timeout_s: float, only_worker: int | None
    ) -> dict[int, list[Any]]:
        number = next(self._numbers)
        done = asyncio.get_running_loop().create_future()
        question = self._pending_requests[number] = _PendingRequest(done, only_worker)
        link.send("ask", number, topic, data)
        try:
            async with asyncio.timeout(timeout_s):
                await question.future
        except TimeoutError:
            pass
        finally:
            del self._pending_requests[number]
        return question.responses

    async def call_supervisor(self, topic: str, data: Any = None, *, timeout_s: float = 1.0) -> Any:
        """What the supervisor answers. Raises Away; the call may then have been heard."""
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
        """To the supervisor, which need not answer."""
        if self._link is not None:
            self._link.send("call", NO_RESPONSE_NUMBER, topic, data)

    async def wait_until_linked(self, timeout_s: float) -> bool:
        """Wait for the supervisor, for so many seconds. Is it there?"""
        try:
            async with asyncio.timeout(timeout_s):
                await self._linked_event.wait()
        except TimeoutError:
            return False
        return True

    def abort_link(self) -> None:
        """Connect anew."""
        if self._link is not None:
            self._link.abort()

    async def run(self) -> None:
        """Connect, and again when the connection is lost, until cancelled."""
        if self._socket_path is None:
            return
        try:
            wait = RECONNECT_DELAY_RANGE_S[0]
            while True:
                if await self._connect(self._socket_path):
                    wait = RECONNECT_DELAY_RANGE_S[0]
                    await self._lost_event.wait()
                await asyncio.sleep(random.uniform(0, wait))
                wait = min(2 * wait, RECONNECT_DELAY_RANGE_S[1])
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
        for joined in self.join_callbacks:
            joined()
        self._linked_event.set()
        return True

    def _on_link_lost(self) -> None:
        self._link, self._connected_workers = None, set()
        self._linked_event.clear()
        self._lost_event.set()
        for question in self._pending_requests.values():
            question.recipients = question.recipients or set()
            question.resolve_if_complete(self._connected_workers)
        for answer in self._pending_calls.values():
            if not answer.done():
                answer.set_exception(SupervisorUnavailable("the supervisor went away"))

    def _on_message(self, message: list[Any]) -> None:
        kind, *rest = message
        match kind:
            case "say":
                worker, topic, data = rest
                self._on_broadcast(topic, worker, data)
            case "ask":
                worker, number, topic, data = rest
                self._send_response(worker, number, self._run_handler(topic, worker, data))
            case "asked":
                number, asked = rest
                if number in self._pending_requests:
                    question = self._pending_requests[number]
                    question.recipients = {
                        each for each in asked if question.only_worker in (None, each)
                    }
                    question.resolve_if_complete(self._connected_workers)
            case "answer":
                self._on_response(*rest)
            case "here":
                self._connected_workers = set(rest[0])
                for question in self._pending_requests.values():
                    question.resolve_if_complete(self._connected_workers)

    def _on_response(self, worker: int, number: int, response: list[Any]) -> None:
        question, answer = self._pending_requests.get(number), self._pending_calls.get(number)
        if question is not None:
            question.responses[worker] = response
            question.resolve_if_complete(self._connected_workers)
        elif answer is not None and not answer.done():
            if response:
                answer.set_result(response[0])
            else:
                answer.set_exception(
                    SupervisorUnavailable("the supervisor has no answer; its log says why")
                )

    def _on_broadcast(self, topic: str, worker: int, data: Any) -> None:
        if topic in self._handlers:
            self._run_handler(topic, worker, data)

    def _run_handler(self, topic: str, worker: int, data: Any) -> list[Any]:
        """The answer alone, or nothing: one message that cannot be taken must not cut all that
        follow."""
        try:
            return [self._handlers[topic](worker, data)]
        except Exception:
            log.exception("what worker %d said of %s cannot be taken", worker, topic)
            return []

    def _send_response(self, worker: int, number: int, response: list[Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.send("answer", worker, number, response)
        except TypeError:
            log.exception("an answer to worker %d is no JSON", worker)
            self._link.send("answer", worker, number, [])
