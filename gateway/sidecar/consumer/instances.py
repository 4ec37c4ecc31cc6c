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
from gateway.config.types.units import format_duration
from gateway.kafka.client.cluster import Cluster
from gateway.sidecar.context import Auditor
from gateway.sidecar.http.status import StatusError
from gateway.sidecar.memory import trim_memory

from .instance import ConsumerInstance
from .instance_options import InstanceOptions

log = logging.getLogger(__name__)

MAX_REMEMBERED_INSTANCES = 1000  # instances that are gone
MIN_TRIMMED_INSTANCES = 100  # instances whose memory is worth while giving back, about 25 KB each
MAX_CONCURRENT_LEAVES = (
    32  # at once: a coordinator takes one member's leave after the other, 10 ms each
)
INSTANCE_NOT_FOUND = "INSTANCE_NOT_FOUND"


class InstanceKey(NamedTuple):
    group: str
    name: str


class EndedInstances:
    """Why the last of them ended. One piece of memory, by hashes: a thousand small objects among
    those of living instances would keep the memory around them from going back."""

    REASONS = ("deleted", "expired", "closed")

    def __init__(self) -> None:
        self._hashes = array("q")

    def add(self, key: InstanceKey, reason: str) -> None:
        self._hashes.append(hash(key) & ~3 | self.REASONS.index(reason))
        if len(self._hashes) >= 2 * MAX_REMEMBERED_INSTANCES:
            del self._hashes[:MAX_REMEMBERED_INSTANCES]

    def get_reason(self, key: InstanceKey) -> str | None:
        wanted = hash(key) & ~3
        for known in reversed(self._hashes):
            if known & ~3 == wanted:
                return self.REASONS[known & 3]
        return None


class ConsumerInstances:
    """here: a word of this process, which is in the names that it makes.

    ended: how many are gone, by the reason: deleted, expired, closed (with the sidecar).
    """

    def __init__(self, cluster: Cluster, settings: Consumer) -> None:
        self.process_id = os.urandom(4).hex()
        self.created = 0
        self.ended: Counter[str] = Counter()
        self._cluster = cluster
        self._settings = settings
        self._instances: OrderedDict[InstanceKey, ConsumerInstance] = (
            OrderedDict()
        )  # who was asked last, last
        self._last_used: dict[InstanceKey, float] = {}
        self._ended_instances = EndedInstances()
        self._tasks: set[asyncio.Future[None]] = set()
        self._leave_slots = asyncio.Semaphore(MAX_CONCURRENT_LEAVES)
        self._ended_since_trim = 0

    def __len__(self) -> int:
        return len(self._instances)

    def __iter__(self) -> Iterator[ConsumerInstance]:
        return iter(self._instances.values())

    def add(
        self,
        group: str,
        options: InstanceOptions,
        *,
        dialect: str,
        identity: str,
        auditor: Auditor | None = None,
    ) -> ConsumerInstance:
        """audit: where records are told that the group cannot have any more. Raises Refusal 409
        and 429."""
        key = InstanceKey(group, options.name or f"{self.process_id}-{uuid.uuid4()}")
        if key in self._instances:
            what = f"group {group} has an instance {key.name} already; delete it, or use that"
            raise StatusError(409, what, code="INSTANCE_EXISTS")
        if len(self._instances) >= self._settings.instances:
            what = f"there are {len(self._instances)} instances; delete some, or raise `instances`"
            raise StatusError(429, what, code="TOO_MANY_INSTANCES", retry_after=5.0)
        made = ConsumerInstance(
            self._cluster, self._settings, group, key.name, options,
            dialect=dialect, identity=identity, auditor=auditor,
        )  # fmt: skip
        self._instances[key] = made
        self.created += 1
        self._touch(key)
        return made

    def get(self, group: str, name: str, identity: str = "") -> ConsumerInstance:
        """Raises Refusal 404 that says what became of it."""
        key = InstanceKey(group, name)
        found = self._instances.get(key)
        if found is None or found.identity != identity:
            raise StatusError(404, self._describe_missing(key, found), code=INSTANCE_NOT_FOUND)
        return found

    @contextmanager
    def keep_alive(self, instance: ConsumerInstance) -> Iterator[None]:
        """While it is, and for `instance_timeout` after that, it does not expire."""
        key = InstanceKey(instance.group, instance.name)
        instance.active_requests += 1
        self._touch(key)
        try:
            yield
        finally:
            instance.active_requests -= 1
            if self._instances.get(key) is instance:
                self._touch(key)

    async def remove(self, instance: ConsumerInstance, reason: str = "deleted") -> None:
        """Its group is left. why: deleted, expired, closed; after the first, what was returned
        counts as done."""
        if self._unregister(instance, reason):
            await self._end_instance(instance, reason)

    def _unregister(self, instance: ConsumerInstance, reason: str) -> bool:
        """Nobody finds it from here on. False: it is gone already."""
        key = InstanceKey(instance.group, instance.name)
        if self._instances.get(key) is not instance:
            return False
        del self._instances[key], self._last_used[key]
        self._ended_instances.add(key, reason)
        self.ended[reason] += 1
        return True

    async def _end_instance(self, instance: ConsumerInstance, reason: str) -> None:
        async with self._leave_slots, instance.lock_for_change():
            instance.is_ended = True
            await instance.unsubscribe(commit=reason == "deleted")

    async def run(self) -> None:
        """Until cancelled: end those that nobody asks; at last, all."""
        try:
            while True:
                wait = self._expire_idle()
                await asyncio.sleep(wait)
        finally:
            for instance in list(self._instances.values()):
                self._remove_in_background(instance, "closed")
            await asyncio.gather(*self._tasks)

    def _expire_idle(self) -> float:
        """Seconds until the next one may."""
        loop = asyncio.get_running_loop()
        oldest = loop.time() - self._settings.instance_timeout
        for key, instance in list(self._instances.items()):
            if self._last_used[key] > oldest:
                return min(self._last_used[key] - oldest, self._settings.instance_timeout)
            if instance.active_requests:
                self._touch(key)
            else:
                log.info("group %s: instance %s was not asked any more", *key)
                self._remove_in_background(instance, "expired")
        return self._settings.instance_timeout

    def _remove_in_background(self, instance: ConsumerInstance, reason: str) -> None:
        """Beside whoever asks for that."""
        if self._unregister(instance, reason):
            task = asyncio.ensure_future(self._end_and_log(instance, reason))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            task.add_done_callback(self._trim_after_many)

    async def _end_and_log(self, instance: ConsumerInstance, reason: str) -> None:
        try:
            await self._end_instance(instance, reason)
        except Exception:
            log.exception("group %s: instance %s did not end well", instance.group, instance.name)

    def _trim_after_many(self, task: asyncio.Future[None]) -> None:
        """Behind the last of many: their memory goes back to the system, not to the next ones."""
        self._ended_since_trim += 1
        if not self._tasks and self._ended_since_trim >= MIN_TRIMMED_INSTANCES:
            self._ended_since_trim = 0
            trim_memory()

    def _touch(self, key: InstanceKey) -> None:
        self._last_used[key] = asyncio.get_running_loop().time()
        self._instances.move_to_end(key)

    def _describe_missing(self, key: InstanceKey, found: ConsumerInstance | None) -> str:
        """Why there is none, and what to do."""
        what, timeout = f"{key.name} of group {key.group}", self._settings.instance_timeout
        gone = self._ended_instances.get_reason(key) if found is None else None
        if gone == "expired":
            return (
                f"{what} expired: nobody asked it for {format_duration(timeout)}; create it again"
            )
        if gone is not None:
            return f"{what} was deleted; create it again"
        made_elsewhere = key.name[8:9] == "-" and len(key.name) == len(self.process_id) + 37
        if made_elsewhere and not key.name.startswith(self.process_id):
            return (
                f"{what} is another gateway's, or of this one before it was started anew; ask the "
                "baseUri that it was created with, or create it again"
            )
        return f"{what} was never here; create it, or ask the baseUri that it was created with"
