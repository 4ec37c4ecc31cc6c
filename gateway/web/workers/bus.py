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

NOBODY = 0  # the number of a call that waits for no answer
AGAIN = (0.02, 1.0)  # seconds until the next attempt to connect: first, longest

Hear: TypeAlias = Callable[[int, Any], Any]


class Away(GatewayError):
    """The supervisor is not there, or did not answer in time."""


class Answers(NamedTuple):
    """said: by the worker's number. missing: workers that did not answer in time, or failed."""

    said: Mapping[int, Any]
    missing: frozenset[int]


@dataclass(slots=True)
class _Question:
    """of: the one worker that is waited for; None for all. asked: None until the relay says who
    was."""

    done: asyncio.Future[None]
    of: int | None = None
    asked: set[int] | None = None
    said: dict[int, list[Any]] = field(default_factory=dict)

    def settle(self, here: set[int]) -> None:
        waited = self.asked is None or (self.asked & here) - self.said.keys()
        if not waited and not self.done.done():
            self.done.set_result(None)


class Bus:
    """path: of the relay's socket; None where there is no other worker.

    worker: the number of this one, from 1. workers: how many there are.
    joined: called whenever this worker can be heard, first or again.
    """

    def __init__(self, path: Path | None = None, worker: int = 1, workers: int = 1) -> None:
        self.worker = worker
        self.workers = workers
        self.joined: list[Callable[[], None]] = []
        self._path = path
        self._hears: dict[str, Hear] = {}
        self._numbers = itertools.count(1)
        self._questions: dict[int, _Question] = {}
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._here: set[int] = set()
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._linked = asyncio.Event()

    @property
    def linked(self) -> bool:
        """Is the supervisor there?"""
        return self._linked.is_set()

    def on(self, topic: str, hear: Hear) -> None:
        """hear(worker, data) of what another says, and of what any asks: what it returns is the
        answer (JSON). It is called in the loop and must be quick. One for a topic."""
        assert topic not in self._hears, f"{topic} is heard already"
        self._hears[topic] = hear

    def say(self, topic: str, data: Any = None) -> None:
        """To all other workers that are there."""
        if self._link is not None:
            self._link.send("say", topic, data)

    async def ask(
        self, topic: str, data: Any = None, *, within: float = 1.0, of: int | None = None
    ) -> Answers:
        """What every worker answers within so many seconds; never raises. of: wait for this one
        alone."""
        answers: dict[int, list[Any]] = {}
        if of in (None, self.worker):
            answers[self.worker] = self._answer(topic, self.worker, data)
        if self._link is not None and of != self.worker:
            answers |= await self._asked(self._link, topic, data, within, of)
        said = {worker: answer[0] for worker, answer in answers.items() if answer}
        every = range(1, self.workers + 1) if of is None else (of,)
        return Answers(said, frozenset(every) - said.keys())

    async def _asked(
        self, link: Link, topic: str, data: Any, within: float, of: int | None
    ) -> dict[int, list[Any]]:
        number = next(self._numbers)
        done = asyncio.get_running_loop().create_future()
        question = self._questions[number] = _Question(done, of)
        link.send("ask", number, topic, data)
        try:
            async with asyncio.timeout(within):
                await question.done
        except TimeoutError:
            pass
        finally:
            del self._questions[number]
        return question.said

    async def call(self, topic: str, data: Any = None, *, within: float = 1.0) -> Any:
        """What the supervisor answers. Raises Away; the call may then have been heard."""
        if self._link is None:
            raise Away("the supervisor is away")
        number = next(self._numbers)
        answer = self._calls[number] = asyncio.get_running_loop().create_future()
        self._link.send("call", number, topic, data)
        try:
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            raise Away(f"the supervisor did not answer within {within:g} s") from None
        finally:
            del self._calls[number]

    def tell(self, topic: str, data: Any = None) -> None:
        """To the supervisor, which need not answer."""
        if self._link is not None:
            self._link.send("call", NOBODY, topic, data)

    async def until_linked(self, within: float) -> bool:
        """Wait for the supervisor, for so many seconds. Is it there?"""
        try:
            async with asyncio.timeout(within):
                await self._linked.wait()
        except TimeoutError:
            return False
        return True

    def cut(self) -> None:
        """Connect anew."""
        if self._link is not None:
            self._link.cut()

    async def run(self) -> None:
        """Connect, and again when the connection is lost, until cancelled."""
        if self._path is None:
            return
        try:
            wait = AGAIN[0]
            while True:
                if await self._connect(self._path):
                    wait = AGAIN[0]
                    await self._lost.wait()
                await asyncio.sleep(random.uniform(0, wait))
                wait = min(2 * wait, AGAIN[1])
        finally:
            self.cut()

    async def _connect(self, path: Path) -> bool:
        self._lost.clear()
        link = Link(self._heard, self._parted)
        try:
            await asyncio.get_running_loop().create_unix_connection(lambda: link, str(path))
        except OSError:
            return False
        link.send("hello", self.worker)
        self._link = link
        for joined in self.joined:
            joined()
        self._linked.set()
        return True

    def _parted(self) -> None:
        self._link, self._here = None, set()
        self._linked.clear()
        self._lost.set()
        for question in self._questions.values():
            question.asked = question.asked or set()
            question.settle(self._here)
        for answer in self._calls.values():
            if not answer.done():
                answer.set_exception(Away("the supervisor went away"))

    def _heard(self, message: list[Any]) -> None:
        kind, *rest = message
        match kind:
            case "say":
                worker, topic, data = rest
                self._listen(topic, worker, data)
            case "ask":
                worker, number, topic, data = rest
                self._reply(worker, number, self._answer(topic, worker, data))
            case "asked":
                number, asked = rest
                if number in self._questions:
                    question = self._questions[number]
                    question.asked = {each for each in asked if question.of in (None, each)}
                    question.settle(self._here)
            case "answer":
                self._take(*rest)
            case "here":
                self._here = set(rest[0])
                for question in self._questions.values():
                    question.settle(self._here)

    def _take(self, worker: int, number: int, said: list[Any]) -> None:
        question, answer = self._questions.get(number), self._calls.get(number)
        if question is not None:
            question.said[worker] = said
            question.settle(self._here)
        elif answer is not None and not answer.done():
            if said:
                answer.set_result(said[0])
            else:
                answer.set_exception(Away("the supervisor has no answer; its log says why"))

    def _listen(self, topic: str, worker: int, data: Any) -> None:
        if topic in self._hears:
            self._answer(topic, worker, data)

    def _answer(self, topic: str, worker: int, data: Any) -> list[Any]:
        """The answer alone, or nothing: one message that cannot be taken must not cut all that
        follow."""
        try:
            return [self._hears[topic](worker, data)]
        except Exception:
            log.exception("what worker %d said of %s cannot be taken", worker, topic)
            return []

    def _reply(self, worker: int, number: int, said: list[Any]) -> None:
        if self._link is None:
            return
        try:
            self._link.send("answer", worker, number, said)
        except TypeError:
            log.exception("an answer to worker %d is no JSON", worker)
            self._link.send("answer", worker, number, [])
