"""Everything that can happen, in any order: two gateways, a Kafka, and clients between."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.core.client.slow_client import SlowClient
from gateway.core.client.subscription import Subscription
from gateway.core.log import tail
from gateway.core.log.partition_reader import OutOfRange
from gateway.core.log.record import Ready

from .client import Client
from .oracle import Oracle, Wrong
from .replica import KEY, SKEW, WALL, Replica
from .simulation import Kafka, Partition

POLICIES = list(OutOfRange)
SLOW = list(SlowClient)
CLIENTS = 4
PATIENCE = 80  # rounds in which everything must have arrived; and one more for each record


class World:
    """seed: of what is drawn by nobody. The rest are the sizes and policies of this run."""

    def __init__(
        self,
        partitions: int = 2,
        policy: OutOfRange = OutOfRange.EARLIEST,
        slow: SlowClient = SlowClient.CATCH_UP,
        ring: int = 2000,
        cache: int = 2000,
        batch: bool = False,
        credit: bool = False,
        seed: int = 0,
    ) -> None:
        self.random = random.Random(seed).random
        self.now = 10.0
        self.policy, self.ring, self.cache = policy, ring, cache
        self.kafka = Kafka(partitions)
        self.replicas = [Replica(self, 0), Replica(self, 1)]
        self.clients = [
            Client(n, view=n % 2, eager=n != 3, options={"slow": slow}) for n in range(CLIENTS)
        ]
        for client in self.clients[: 2 if credit else 0]:
            client.options["credit"] = 3
        skips = slow is SlowClient.SKIP or policy is OutOfRange.LATEST
        conflates = slow is SlowClient.CONFLATE
        self.oracles = [
            Oracle(self.kafka, [None, KEY][c.view], skips, conflates) for c in self.clients
        ]
        self._exact = tail.EXACT_TOKEN
        tail.EXACT_TOKEN = 0 if batch else self._exact

    def close(self) -> None:
        tail.EXACT_TOKEN = self._exact

    # Kafka

    def partition(self, a: int) -> Partition:
        partitions = self.kafka.partitions
        return partitions[a % len(partitions)]

    def _timestamp(self, b: int) -> int:
        return int((WALL + self.now) * 1000) + (b * 37) % (2 * SKEW) - SKEW + 100

    def produce(self, a: int, b: int) -> None:
        p = self.partition(a)
        if p.leader and not p.frozen:
            for n in range(1 + b % 3):
                self.kafka.append(p, self._timestamp(b), b"ab"[(b + n) % 2 :][:1])

    def begin(self, a: int, b: int) -> None:
        p = self.partition(a)
        if p.leader and not p.frozen and len(p.open) < 2:
            self.kafka.begin(p, self._timestamp(b), b"ab"[b % 2 :][:1])

    def finish(self, a: int, b: int) -> None:
        p = self.partition(a)
        if p.leader and not p.frozen and p.open:
            self.kafka.finish(p, self._timestamp(b), b // 2, commit=b % 2 == 0)

    def compact(self, a: int, b: int) -> None:
        p = self.partition(a)
        if p.end > p.start:
            self.kafka.compact(p, p.start + b % (p.end - p.start))

    def retain(self, a: int, b: int) -> None:
        p = self.partition(a)
        self.kafka.retain(p, p.start + 1 + b % 8)

    def lose_leader(self, a: int) -> None:
        p = self.partition(a)
        if p.leader:
            self.kafka.lose_leader(p)

    def elect(self, a: int) -> None:
        self.kafka.elect(self.partition(a))

    def elect_unclean(self, a: int, b: int) -> None:
        self.kafka.elect(self.partition(a), lost=1 + b % 5)

    def freeze(self, a: int) -> None:
        self.partition(a).frozen = True

    def thaw(self, a: int) -> None:
        self.partition(a).frozen = False

    def recreate(self, a: int) -> None:
        if self.kafka.life < 2:
            self.kafka.recreate(len(self.kafka.partitions))

    def add_partition(self) -> None:
        if len(self.kafka.partitions) < 4:
            self.kafka.add_partition()

    def wait(self, a: int) -> None:
        self.now += (0.05, 0.3, 1.0, 3.0)[a % 4]

    # gateways

    def replica(self, a: int) -> Replica:
        return self.replicas[a % 2]

    def refresh(self, a: int, b: int) -> None:
        self.replica(a).refresh(b % 4 if b % 3 == 0 else 0)

    def pump(self, a: int) -> None:
        self.now += 0.01
        self.replica(a).pump()

    def pump_more(self, a: int) -> None:
        self.now += 0.3
        self.replica(a).refresh(0)
        self.replica(a).pump(3)

    def send(self, a: int) -> None:
        self.replica(a).send()

    def serve(self, a: int, b: int) -> None:
        replica = self.replica(a)
        if replica.asks:
            replica.serve(replica.asks[b % len(replica.asks)])

    def deliver(self, a: int, b: int) -> None:
        replica = self.replica(a)
        served = [ask for ask in replica.asks if ask.answer is not None]
        if served:
            replica.deliver(served[b % len(served)])

    def turn(self, a: int) -> None:
        self.replica(a).turn()

    def announce(self, a: int) -> None:
        """Idle clients are told where they stand."""
        for channel in self.replica(a).channels:
            channel.announce()

    def let_go(self, a: int) -> None:
        """A round is over: what everybody has is held no longer."""
        for channel in self.replica(a).channels:
            channel.let_go()

    def abandon(self, a: int, b: int) -> None:
        replica = self.replica(a)
        if replica.asks:
            replica.abandon(replica.asks[b % len(replica.asks)])

    def restart(self, a: int) -> None:
        """Killed; another one starts with an empty memory."""
        for client in self.clients:
            if client.replica is self.replica(a):
                client.cut()
        self.replicas[a % 2] = Replica(self, a % 2)

    def resolved(self, replica: Replica, sub: Subscription | None, ready: Ready) -> None:
        for client, oracle in zip(self.clients, self.oracles, strict=True):
            if client.replica is replica and sub in (None, client.subscription):
                oracle.resolved(ready, replica.metadata.life)

    # clients

    def connect(self, a: int, b: int) -> None:
        client, oracle = self.clients[a % CLIENTS], self.oracles[a % CLIENTS]
        if client.connected:
            return
        if client.last_event_id:
            oracle.resumes(client.last_event_id)
        else:
            client.start = "earliest" if b // 2 % 4 == 0 else "live"
            oracle.starts(client.start == "earliest", len(self.replica(b).tail.logs))
        client.connect(self.replica(b))

    def take(self, a: int, b: int) -> None:
        client = self.clients[a % CLIENTS]
        if client.connected:
            self._take(client, (1, 50, 200, 1000)[b % 4])

    def _take(self, client: Client, budget: int) -> None:
        begun = client.begun
        client.take(budget)
        if not begun:
            self.oracles[client.number].began()

    def step_aside(self, a: int) -> None:
        """A client hears no more of its channel, and goes on from where it stood then."""
        client = self.clients[a % CLIENTS]
        if client.connected:
            client.step_aside()

    def grant(self, a: int, b: int) -> None:
        """A client with a limit lets more records be sent."""
        client = self.clients[a % CLIENTS]
        if client.connected:
            client.grant(b % 8)

    def read(self, a: int, b: int) -> None:
        client, oracle = self.clients[a % CLIENTS], self.oracles[a % CLIENTS]
        if client.connected:
            for event in client.read(b):
                oracle.event(event)
            self._ended(client)

    def flow(self, a: int) -> None:
        """Everything there is goes to the client."""
        client = self.clients[a % CLIENTS]
        if client.connected:
            client.grant(1000)
            self._take(client, 1 << 20)
            self.read(a, len(client.wire))

    def cut(self, a: int, b: int) -> None:
        """The connection breaks anywhere in what is on its way."""
        client = self.clients[a % CLIENTS]
        if client.connected:
            self._take(client, 1 << 20)
            self.read(a, len(client.wire) * b // 255)
            client.cut()

    def _ended(self, client: Client) -> None:
        if client.connected and client.subscription.ended and not client.wire:
            client.cut()

    # the end

    def calm(self) -> None:
        """Kafka is well again."""
        for p in self.kafka.partitions:
            p.frozen = False
            if not p.leader:
                self.kafka.elect(p)
            while p.open:
                self.kafka.finish(p, self._timestamp(0), 0, commit=True)
            # a client that stands where the log was cut off is told when that grows again
            for key in (b"a", b"b") * 4:
                self.kafka.append(p, self._timestamp(0), key)

    def quiesce(self) -> None:
        """All is well again: everything must arrive, in a bounded number of rounds."""
        self.calm()
        # A round reads some records of a partition: 80 were too few for who is 157 behind.
        for _ in range(PATIENCE + sum(p.end for p in self.kafka.partitions)):
            self.now += 1.0
            for replica in self.replicas:
                replica.refresh(0)
                replica.pump()
            for n in range(CLIENTS):
                self.connect(n, n)
                self.flow(n)
            if self._quiet():
                break
        for oracle in self.oracles:
            oracle.complete()
        for client in self.clients:
            if not client.connected or client.subscription.own:
                raise Wrong(f"client {client.number} does not come to ride")

    def _quiet(self) -> bool:
        for replica in self.replicas:
            for tp, log in replica.tail.logs.items():
                if log.next != self.kafka.partitions[tp.partition].end:
                    return False
        return (
            all(c.connected and not c.subscription.own and not c.wire for c in self.clients)
            and self._all_taken()
        )

    def _all_taken(self) -> bool:
        return all(c.subscription.cursor == c.subscription.channel.head for c in self.clients)


# What can happen, and how often in comparison with the others of its kind.
KAFKA = {
    "produce": 12, "begin": 2, "finish": 3, "compact": 2, "retain": 2, "lose_leader": 1,
    "elect": 2, "elect_unclean": 3, "freeze": 2, "thaw": 2, "recreate": 1, "add_partition": 1,
    "wait": 3,
}  # fmt: skip
GATEWAYS = {
    "refresh": 3, "pump": 10, "pump_more": 4, "send": 3, "serve": 4, "deliver": 5, "turn": 3,
    "announce": 2, "let_go": 2, "abandon": 1, "restart": 1,
}  # fmt: skip
CLIENTS_DO = {"connect": 6, "take": 4, "grant": 2, "read": 4, "flow": 6, "cut": 6, "step_aside": 2}
NASTY = (
    {"compact"}, {"retain"}, {"lose_leader", "elect"}, {"elect_unclean"}, {"freeze"},
    {"recreate"}, {"add_partition"}, {"restart"}, {"begin", "finish"}, {"abandon"},
)  # fmt: skip
ARITY = {
    name: getattr(World, name).__code__.co_argcount - 1 for name in (*KAFKA, *GATEWAYS, *CLIENTS_DO)
}


def _often(weights: dict[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


def configurations() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "partitions": st.integers(1, 3),
            "policy": st.sampled_from(POLICIES),
            "slow": st.sampled_from(SLOW),
            "ring": st.sampled_from([3000, 600, 1]),
            "cache": st.sampled_from([5000, 1000, 200]),
            "batch": st.sampled_from([False, False, False, True]),
            "credit": st.booleans(),
        }
    )


LEFT_OUT = st.sets(st.sampled_from(range(len(NASTY))), max_size=5)


class Machine(RuleBasedStateMachine):
    """The world under hypothesis. Some nastiness is left out of each run, so that what needs
    a quiet hour is found as well."""

    steps = 0
    world: World | None = None
    number = st.integers(0, 256 * 256 - 1)

    @initialize(
        configuration=configurations(), without=st.sets(st.sampled_from(range(10)), max_size=5)
    )
    def start(self, configuration: dict[str, Any], without: set[int]) -> None:
        self.world = World(**configuration)
        self.left_out = set().union(*(NASTY[n] for n in without))

    @rule(what=_often(KAFKA), n=number)
    def kafka(self, what: str, n: int) -> None:
        self._do(what, n)

    @rule(what=_often(GATEWAYS), n=number)
    def gateway(self, what: str, n: int) -> None:
        self._do(what, n)

    @rule(what=_often(CLIENTS_DO), n=number)
    def client(self, what: str, n: int) -> None:
        self._do(what, n)

    def _do(self, what: str, n: int) -> None:
        assert self.world is not None
        Machine.steps += 1
        if what not in self.left_out:
            getattr(self.world, what)(*divmod(n, 256)[: ARITY[what]])

    def teardown(self) -> None:
        if self.world is not None:
            try:
                self.world.quiesce()
            finally:
                self.world.close()
