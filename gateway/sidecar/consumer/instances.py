"""All consumer instances of this process: their names, and their end when nobody asks them.

What is gone is remembered for a while, so that who comes late hears why.
"""

from __future__ import annotations

import asyncio
import logging
import os
import uuid
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gateway.config.sections.sidecar import Consumer
from gateway.config.types.units import show_duration
from gateway.kafka.client.cluster import Cluster
from gateway.sidecar.context import Audit
from gateway.sidecar.http.status import Refusal
from gateway.sidecar.memory import trim

from .instance import Instance
from .instance_options import Wishes

log = logging.getLogger(__name__)

REMEMBERED = 1000  # instances that are gone
MANY = 100  # instances whose memory is worth while giving back, about 25 KB each
ENDING = 32  # at once: a coordinator takes one member's leave after the other, 10 ms each
NOT_FOUND = "INSTANCE_NOT_FOUND"


class Key(NamedTuple):
    group: str
    name: str


class Gone:
    """Why the last of them ended. One piece of memory, by hashes: a thousand small objects among
    those of living instances would keep the memory around them from going back."""

    REASONS = ("deleted", "expired", "closed")

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, key: Key, why: str) -> None:
        self._hashes.append(hash(key) & ~3 | self.REASONS.index(why))
        if len(self._hashes) >= 2 * REMEMBERED:
            del self._hashes[:REMEMBERED]

    def why(self, key: Key) -> str | None:
        wanted = hash(key) & ~3
        for known in reversed(self._hashes):
            if known & ~3 == wanted:
                return self.REASONS[known & 3]
        return None


class Instances:
    """here: a word of this process, which is in the names that it makes.

    ended: how many are gone, by the reason: deleted, expired, closed (with the sidecar).
    """

    def __init__(self, cluster: Cluster, settings: Consumer) -> None:
        self.here = os.urandom(4).hex()
        self.created = 0
        self.ended: Counter[str] = Counter()
        self._cluster = cluster
        self._settings = settings
        self._alive: OrderedDict[Key, Instance] = OrderedDict()  # who was asked last, last
        self._used: dict[Key, float] = {}
        self._gone = Gone()
        self._tasks: set[asyncio.Future[None]] = set()
        self._ending = asyncio.Semaphore(ENDING)
        self._left_since = 0

    def __len__(self) -> int:
        return len(self._alive)

    def __iter__(self) -> Iterator[Instance]:
        return iter(self._alive.values())

    def add(
        self,
        group: str,
        wishes: Wishes,
        *,
        dialect: str,
        identity: str,
        audit: Audit | None = None,
    ) -> Instance:
        """audit: where records are told that the group cannot have any more. Raises Refusal 409
        and 429."""
        key = Key(group, wishes.name or f"{self.here}-{uuid.uuid4()}")
        if key in self._alive:
            what = f"group {group} has an instance {key.name} already; delete it, or use that"
            raise Refusal(409, what, code="INSTANCE_EXISTS")
        if len(self._alive) >= self._settings.instances:
            what = f"there are {len(self._alive)} instances; delete some, or raise `instances`"
            raise Refusal(429, what, code="TOO_MANY_INSTANCES", retry_after=5.0)
        made = Instance(
            self._cluster, self._settings, group, key.name, wishes,
            dialect=dialect, identity=identity, audit=audit,
        )  # fmt: skip
        self._alive[key] = made
        self.created += 1
        self._touch(key)
        return made

    def get(self, group: str, name: str, identity: str = "") -> Instance:
        """Raises Refusal 404 that says what became of it."""
        key = Key(group, name)
        found = self._alive.get(key)
        if found is None or found.identity != identity:
            raise Refusal(404, self._why(key, found), code=NOT_FOUND)
        return found

    @contextmanager
    def used(self, instance: Instance) -> Iterator[None]:
        """While it is, and for `instance_timeout` after that, it does not expire."""
        key = Key(instance.group, instance.name)
        instance.busy += 1
        self._touch(key)
        try:
            yield
        finally:
            instance.busy -= 1
            if self._alive.get(key) is instance:
                self._touch(key)

    async def remove(self, instance: Instance, why: str = "deleted") -> None:
        """Its group is left. why: deleted, expired, closed; after the first, what was returned
        counts as done."""
        if self._take(instance, why):
            await self._end(instance, why)

    def _take(self, instance: Instance, why: str) -> bool:
        """Nobody finds it from here on. False: it is gone already."""
        key = Key(instance.group, instance.name)
        if self._alive.get(key) is not instance:
            return False
        del self._alive[key], self._used[key]
        self._gone.add(key, why)
        self.ended[why] += 1
        return True

    async def _end(self, instance: Instance, why: str) -> None:
        async with self._ending, instance.turn():
            instance.ended = True
            await instance.unsubscribe(commit=why == "deleted")

    async def run(self) -> None:
        """Until cancelled: end those that nobody asks; at last, all."""
        try:
            while True:
                wait = self._expire()
                await asyncio.sleep(wait)
        finally:
            for instance in list(self._alive.values()):
                self._leave(instance, "closed")
            await asyncio.gather(*self._tasks)

    def _expire(self) -> float:
        """Seconds until the next one may."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._settings.instance_timeout
        for key, instance in list(self._alive.items()):
            if self._used[key] > oldest:
                return min(self._used[key] - oldest, self._settings.instance_timeout)
            if instance.busy:
                self._touch(key)
            else:
                log.info("group %s: instance %s was not asked any more", *key)
                self._leave(instance, "expired")
        return self._settings.instance_timeout

    def _leave(self, instance: Instance, why: str) -> None:
        """Beside whoever asks for that."""
        if self._take(instance, why):
            task = asyncio.ensure_future(self._left(instance, why))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._give_back)

    async def _left(self, instance: Instance, why: str) -> None:
        try:
            await self._end(instance, why)
        except Exception:
            log.exception("group %s: instance %s did not end well", instance.group, instance.name)

    def _give_back(self, task: asyncio.Future[None]) -> None:
        """Behind the last of many: their memory goes back to the system, not to the next ones."""
        self._left_since += 1
        if not self._tasks and self._left_since >= MANY:
            self._left_since = 0
            trim()

    def _touch(self, key: Key) -> None:
        self._used[key] = asyncio.get_running_loop().time()
        self._alive.move_to_end(key)

    def _why(self, key: Key, found: Instance | None) -> str:
        """Why there is none, and what to do."""
        what, timeout = f"{key.name} of group {key.group}", self._settings.instance_timeout
        gone = self._gone.why(key) if found is None else None
        if gone == "expired":
            return f"{what} expired: nobody asked it for {show_duration(timeout)}; create it again"
        if gone is not None:
            return f"{what} was deleted; create it again"
        made_elsewhere = key.name[8:9] == "-" and len(key.name) == len(self.here) + 37
        if made_elsewhere and not key.name.startswith(self.here):
            return (
                f"{what} is another gateway's, or of this one before it was started anew; ask the "
                "baseUri that it was created with, or create it again"
            )
        return f"{what} was never here; create it, or ask the baseUri that it was created with"
