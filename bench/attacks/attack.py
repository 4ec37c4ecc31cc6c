"""Define an attack, and what it knows about the gateway that it attacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import confluent_kafka

MEMORY_BYTES = 64 << 20  # bytes; `memory` of every gateway that is attacked
COMPRESSION_SECTIONS = {"listen": {"websocket": {"compression": True}}}
PROXY_SECTIONS = {"listen": {"forwarded": ["127.0.0.0/8"]}}
RATE_SECTIONS = {"listen": {"limits": {"rate": "5/s", "burst": 30}}}
MAX_ALLOWED_COUNT = 100  # of what `RATE_SECTIONS` limits, while an attack lasts
PASSWORD = "the-token-that-nobody-guesses"

AttackCounts: TypeAlias = Mapping[str, float]
"""What an attacker tells of what it did and was answered, by name."""


@dataclass(frozen=True)
class Target:
    """The gateway under attack, as an attacker sees it.

    port:    where it listens.
    servers: where its Kafka is, for attackers who may produce.
    steady:  the topic of `/steady`, which an honest client has read since before the attack.
    fresh:   the topic of `/fresh`, which nobody has read before the attack.
    coded:   the topic of `/coded`, whose values have a model where the attack is by its values.
    size:    how large the attack is; what that counts is the attack's to say.
    seconds: how long it lasts if nothing else ends it.
    """

    port: int
    servers: str
    steady_topic: str
    fresh_topic: str
    coded_topic: str
    size: int
    seconds: float

    def announce_begin(self) -> None:
        """Tell that the attack is under way: whoever comes from now on comes during it."""
        print("begun", flush=True)

    def iter_turns(self) -> Iterator[int]:
        """Count up from 0 until the attack's time is over."""
        ends, n = time.monotonic() + self.seconds, 0
        while time.monotonic() < ends:
            yield n
            n += 1

    def wait_until_over(self) -> None:
        """Return when the attack's time is over."""
        time.sleep(self.seconds)

    def produce_values(
        self, topic: str, values: Iterator[bytes] | list[bytes], **options: Any
    ) -> None:
        """Write these values to the topic and return when Kafka has them.

        Args:
            topic: Its name.
            values: One for each record.
            options: Further settings of librdkafka, by their names.
        """
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": self.servers, "log_level": 0, **options}
        )
        for value in values:
            producer.produce(topic, value)
            producer.poll(0)
        producer.flush(30)


AttackFunction: TypeAlias = Callable[[Target], AttackCounts]


@dataclass(frozen=True)
class Attack:
    """One way to cost others something.

    description: what the attacker does, in a few words for the page.
    run:         does it, blocking, in a process of its own.
    full_size:   the size that is measured; `tiny_size`: one that shows that it works.
    seconds:     how long it lasts.
    sections:    what the configuration says besides.
    max_counts:  what it may be given at most, of what it counts.
    """

    description: str
    run: AttackFunction
    full_size: int
    tiny_size: int
    seconds: float = 6.0
    sections: Mapping[str, Any] = field(default_factory=dict)
    coded_topic_settings: Mapping[str, Any] = field(default_factory=dict)
    max_counts: Mapping[str, float] = field(default_factory=dict)


ATTACKS: dict[str, Attack] = {}


def attack(
    name: str, description: str, full_size: int, tiny_size: int = 2, **options: Any
) -> Callable[[AttackFunction], AttackFunction]:
    """List a function as an attack. options: further attributes of `Attack`."""

    def register(run: AttackFunction) -> AttackFunction:
        ATTACKS[name] = Attack(description, run, full_size, tiny_size, **options)
        return run

    return register


def build_configuration(
    attack: Attack, servers: str, topics: tuple[str, str, str], backend: str
) -> dict[str, Any]:
    """Return the configuration of the gateway that is attacked.

    Args:
        attack: Which one.
        servers: Where Kafka is.
        topics: Those of `Target.steady`, `Target.fresh` and `Target.coded`.
        backend: The URL of a server that knows the schemas and lets nobody in (`backend.py`).
    """
    from support.gateways import build_config  # with httpx, which an attacker does without

    steady, fresh, coded = topics
    guards = {
        "known": {"type": "inline", "users": {"ada": {"token": PASSWORD}}},
        "asked": {"type": "http", "url": f"{backend}/slow", "timeout": "30s"},
    }
    routes = [
        _build_route("/steady", {"topic": steady}),
        _build_route("/fresh", {"topic": fresh}),
        _build_route("/coded", {"topic": coded}),
        _build_route("/snapshot", {"topic": steady, "mode": "snapshot"}),
        _build_route("/own/{key}", {"topic": steady, "filters": [{"key": "${params.key}"}]}),
        _build_route("/any/{topics}", {"topics": ["${params.topics}"], "allow": [steady, fresh]}),
        _build_route("/filtered", {"topic": fresh, "clientFilters": True, "clientFields": True}),
        _build_route("/written", {"topic": fresh, "produce": True}),
        _build_route("/known", {"topic": fresh}, guarded={"known": []}),
        _build_route("/asked", {"topic": fresh}, guarded={"asked": []}),
    ]
    named = [steady, fresh, {"name": coded, **attack.coded_topic_settings}]
    registry = {"registry": {"type": "schema-registry", "url": backend}}
    catalogs = {"catalogs": registry} if attack.coded_topic_settings else {}
    made = {"memory": f"{MEMORY_BYTES >> 20}MiB", "guards": guards, **catalogs}
    return build_config(servers, named, routes, **{**made, **attack.sections})


def _build_route(path: str, target: Mapping[str, Any], **options: Any) -> dict[str, Any]:
    return {"when": [{"path": path}], "with": {"format": "value", **target}, **options}
