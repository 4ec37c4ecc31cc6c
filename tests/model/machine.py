"""Everything that can happen, in any order: two gateways, a Kafka, and clients between."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from gateway.core.channel.tail import Tail
from gateway.core.client.subscription import Subscription
from gateway.core.client.terms import SlowClientPolicy
from gateway.core.log.partition_reader import OutOfRangePolicy
from gateway.core.log.record import Ready

from .client import ModelClient
from .oracle import BrokenPromise, Oracle
from .replica import CLOCK_SKEW_MS, KEY, START_TIME_S, Replica
from .simulation import Partition, SimulatedBrokers

POLICIES = list(OutOfRangePolicy)
SLOW_POLICIES = list(SlowClientPolicy)
CLIENT_COUNT = 4
MAX_QUIET_ROUNDS = 80  # rounds in which everything must have arrived; and one more for each record


class LongTokenTail(Tail):
    MAX_EXACT_TOKEN_CHARS = 0


class World:
    """seed: of what is drawn by nobody. The rest are the sizes and policies of this run."""

    def __init__(
        self,
        partitions: int = 2,
        policy: OutOfRangePolicy = OutOfRangePolicy.EARLIEST,
        slow: SlowClientPolicy = SlowClientPolicy.CATCH_UP,
        ring: int = 2000,
        cache: int = 2000,
        batch: bool = False,
        credit: bool = False,
        seed: int = 0,
    ) -> None:
        self.random = random.Random(seed).random
        self.now = 10.0
        self.policy, self.ring, self.cache = policy, ring, cache
        self.tail_class = LongTokenTail if batch else Tail
        self.kafka = SimulatedBrokers(partitions)
        self.replicas = [Replica(self, 0), Replica(self, 1)]
        self.clients = [
            ModelClient(n, view=n % 2, takes_ids_early=n != 3, options={"slow_policy": slow})
            for n in range(CLIENT_COUNT)
        ]
        for client in self.clients[: 2 if credit else 0]:
            client.options["credit"] = 3
        skips = slow is SlowClientPolicy.SKIP or policy is OutOfRangePolicy.LATEST
        conflates = slow is SlowClientPolicy.CONFLATE
        self.oracles = [
            Oracle(self.kafka, [None, KEY][c.view], skips, conflates) for c in self.clients
        ]

    # Kafka

    def get_partition(self, a: int) -> Partition:
        partitions = self.kafka.partitions
        return partitions[a % len(partitions)]

    def _choose_timestamp(self, b: int) -> int:
        return (
            int((START_TIME_S + self.now) * 1000)
            + (b * 37) % (2 * CLOCK_SKEW_MS)
            - CLOCK_SKEW_MS
            + 100
        )

    def produce(self, a: int, b: int) -> None:
        p = self.get_partition(a)
        if p.has_leader and not p.is_frozen:
            for n in range(1 + b % 3):
                self.kafka.append_record(p, self._choose_timestamp(b), b"ab"[(b + n) % 2 :][:1])

    def begin(self, a: int, b: int) -> None:
        p = self.get_partition(a)
        if p.has_leader and not p.is_frozen and len(p.open_transactions) < 2:
            self.kafka.begin_transaction(p, self._choose_timestamp(b), b"ab"[b % 2 :][:1])

    def finish(self, a: int, b: int) -> None:
        p = self.get_partition(a)
        if p.has_leader and not p.is_frozen and p.open_transactions:
            self.kafka.finish_transaction(p, self._choose_timestamp(b), b // 2, commit=b % 2 == 0)

    def compact(self, a: int, b: int) -> None:
        p = self.get_partition(a)
        if p.end_offset > p.log_start:
            self.kafka.compact_slot(p, p.log_start + b % (p.end_offset - p.log_start))

    def retain(self, a: int, b: int) -> None:
        p = self.get_partition(a)
        self.kafka.advance_log_start(p, p.log_start + 1 + b % 8)

    def lose_leader(self, a: int) -> None:
        p = self.get_partition(a)
        if p.has_leader:
            self.kafka.lose_leader(p)

    def elect(self, a: int) -> None:
        self.kafka.elect_leader(self.get_partition(a))

    def elect_unclean(self, a: int, b: int) -> None:
        self.kafka.elect_leader(self.get_partition(a), lost=1 + b % 5)

    def freeze(self, a: int) -> None:
        self.get_partition(a).is_frozen = True

    def thaw(self, a: int) -> None:
        self.get_partition(a).is_frozen = False

    def recreate(self, a: int) -> None:
        if self.kafka.incarnation < 2:
            self.kafka.recreate_topic(len(self.kafka.partitions))

    def add_partition(self) -> None:
        if len(self.kafka.partitions) < 4:
            self.kafka.add_partition()

    def wait(self, a: int) -> None:
        self.now += (0.05, 0.3, 1.0, 3.0)[a % 4]

    # gateways

    def get_replica(self, a: int) -> Replica:
        return self.replicas[a % 2]

    def refresh(self, a: int, b: int) -> None:
        self.get_replica(a).refresh_metadata(b % 4 if b % 3 == 0 else 0)

    def pump(self, a: int) -> None:
        self.now += 0.01
        self.get_replica(a).run_rounds()

    def pump_more(self, a: int) -> None:
        self.now += 0.3
        self.get_replica(a).refresh_metadata(0)
        self.get_replica(a).run_rounds(3)

    def send(self, a: int) -> None:
        self.get_replica(a).send_requests()

    def serve(self, a: int, b: int) -> None:
        replica = self.get_replica(a)
        if replica.requests:
            replica.serve_request(replica.requests[b % len(replica.requests)])

    def deliver(self, a: int, b: int) -> None:
        replica = self.get_replica(a)
        served = [ask for ask in replica.requests if ask.answer is not None]
        if served:
            replica.deliver_answer(served[b % len(served)])

    def turn(self, a: int) -> None:
        self.get_replica(a).apply_turn()

    def announce(self, a: int) -> None:
        """Idle clients are told where they stand."""
        replica = self.get_replica(a)
        for channel in replica.channels:
            replica.spread.announce_position(channel)

    def let_go(self, a: int) -> None:
        """A round is over: what everybody has is held no longer."""
        for channel in self.get_replica(a).channels:
            channel.drop_if_caught_up()

    def abandon(self, a: int, b: int) -> None:
        replica = self.get_replica(a)
        if replica.requests:
            replica.abandon_request(replica.requests[b % len(replica.requests)])

    def restart(self, a: int) -> None:
        """Killed; another one starts with an empty memory."""
        for client in self.clients:
            if client.replica is self.get_replica(a):
                client.disconnect()
        self.replicas[a % 2] = Replica(self, a % 2)

    def on_resolved(self, replica: Replica, sub: Subscription | None, ready: Ready) -> None:
        for client, oracle in zip(self.clients, self.oracles, strict=True):
            if client.replica is replica and sub in (None, client.subscription):
                oracle.on_resolved(ready, replica.metadata.incarnation)

    # clients

    def connect(self, a: int, b: int) -> None:
        client, oracle = self.clients[a % CLIENT_COUNT], self.oracles[a % CLIENT_COUNT]
        if client.is_connected:
            return
        if client.last_event_id:
            oracle.on_resume(client.last_event_id)
        else:
            client.start = "earliest" if b // 2 % 4 == 0 else "live"
            oracle.on_start(client.start == "earliest", len(self.get_replica(b).tail.logs))
        client.connect(self.get_replica(b))

    def take(self, a: int, b: int) -> None:
        client = self.clients[a % CLIENT_COUNT]
        if client.is_connected:
            self._take_bytes(client, (1, 50, 200, 1000)[b % 4])

    def _take_bytes(self, client: ModelClient, budget: int) -> None:
        begun = client.has_begun
        client.take_bytes(budget)
        if not begun:
            self.oracles[client.number].on_begin()

    def step_aside(self, a: int) -> None:
        """A client hears no more of its channel, and goes on from where it stood then."""
        client = self.clients[a % CLIENT_COUNT]
        if client.is_connected:
            client.detach()

    def grant(self, a: int, b: int) -> None:
        """A client with a limit lets more records be sent."""
        client = self.clients[a % CLIENT_COUNT]
        if client.is_connected:
            client.grant_credit(b % 8)

    def read(self, a: int, b: int) -> None:
        client, oracle = self.clients[a % CLIENT_COUNT], self.oracles[a % CLIENT_COUNT]
        if client.is_connected:
            for event in client.read_events(b):
                oracle.check_event(event)
            self._disconnect_if_ended(client)

    def flow(self, a: int) -> None:
        """Everything there is goes to the client."""
        client = self.clients[a % CLIENT_COUNT]
        if client.is_connected:
            client.grant_credit(1000)
            self._take_bytes(client, 1 << 20)
            self.read(a, len(client.wire))

    def cut(self, a: int, b: int) -> None:
        """The connection breaks anywhere in what is on its way."""
        client = self.clients[a % CLIENT_COUNT]
        if client.is_connected:
            self._take_bytes(client, 1 << 20)
            self.read(a, len(client.wire) * b // 255)
            client.disconnect()

    def _disconnect_if_ended(self, client: ModelClient) -> None:
        if client.is_connected and client.subscription.end_reason and not client.wire:
            client.disconnect()

    # the end

    def restore_kafka(self) -> None:
        """Kafka is well again."""
        for p in self.kafka.partitions:
            p.is_frozen = False
            if not p.has_leader:
                self.kafka.elect_leader(p)
            while p.open_transactions:
                self.kafka.finish_transaction(p, self._choose_timestamp(0), 0, commit=True)
            # a client that stands where the log was cut off is told when that grows again
            for key in (b"a", b"b") * 4:
                self.kafka.append_record(p, self._choose_timestamp(0), key)

    def quiesce(self) -> None:
        """All is well again: everything must arrive, in a bounded number of rounds."""
        self.restore_kafka()
        # A round reads some records of a partition: 80 were too few for who is 157 behind.
        for _ in range(MAX_QUIET_ROUNDS + sum(p.end_offset for p in self.kafka.partitions)):
            self.now += 1.0
            for replica in self.replicas:
                replica.refresh_metadata(0)
                replica.run_rounds()
            for n in range(CLIENT_COUNT):
                self.connect(n, n)
                self.flow(n)
            if self._is_quiet():
                break
        for oracle in self.oracles:
            oracle.check_complete()
        for client in self.clients:
            if not client.is_connected or client.subscription.private_positions:
                raise BrokenPromise(f"client {client.number} does not come to ride")

    def _is_quiet(self) -> bool:
        for replica in self.replicas:
            for tp, log in replica.tail.logs.items():
                if log.next_offset != self.kafka.partitions[tp.partition].end_offset:
                    return False
        return (
            all(
                c.is_connected and not c.subscription.private_positions and not c.wire
                for c in self.clients
            )
            and self._have_all_taken()
        )

    def _have_all_taken(self) -> bool:
        return all(c.subscription.next_seq == c.subscription.channel.next_seq for c in self.clients)


# What can happen, and how often in comparison with the others of its kind.
KAFKA_WEIGHTS = {
    "produce": 12, "begin": 2, "finish": 3, "compact": 2, "retain": 2, "lose_leader": 1,
    "elect": 2, "elect_unclean": 3, "freeze": 2, "thaw": 2, "recreate": 1, "add_partition": 1,
    "wait": 3,
}  # fmt: skip
GATEWAY_WEIGHTS = {
    "refresh": 3, "pump": 10, "pump_more": 4, "send": 3, "serve": 4, "deliver": 5, "turn": 3,
    "announce": 2, "let_go": 2, "abandon": 1, "restart": 1,
}  # fmt: skip
CLIENT_WEIGHTS = {
    "connect": 6,
    "take": 4,
    "grant": 2,
    "read": 4,
    "flow": 6,
    "cut": 6,
    "step_aside": 2,
}
FAULT_GROUPS = (
    {"compact"}, {"retain"}, {"lose_leader", "elect"}, {"elect_unclean"}, {"freeze"},
    {"recreate"}, {"add_partition"}, {"restart"}, {"begin", "finish"}, {"abandon"},
)  # fmt: skip
ARITY = {
    name: getattr(World, name).__code__.co_argcount - 1
    for name in (*KAFKA_WEIGHTS, *GATEWAY_WEIGHTS, *CLIENT_WEIGHTS)
}


def _sample_weighted(weights: dict[str, int]) -> st.SearchStrategy[str]:
    return st.sampled_from([name for name, weight in weights.items() for _ in range(weight)])


def configurations() -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            "partitions": st.integers(1, 3),
            "policy": st.sampled_from(POLICIES),
            "slow": st.sampled_from(SLOW_POLICIES),
            "ring": st.sampled_from([3000, 600, 1]),
            "cache": st.sampled_from([5000, 1000, 200]),
            "batch": st.sampled_from([False, False, False, True]),
            "credit": st.booleans(),
        }
    )


OMITTED_FAULTS = st.sets(st.sampled_from(range(len(FAULT_GROUPS))), max_size=5)


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
        self.omitted_steps = set().union(*(FAULT_GROUPS[n] for n in without))

    @rule(what=_sample_weighted(KAFKA_WEIGHTS), n=number)
    def kafka(self, what: str, n: int) -> None:
        self._run_step(what, n)

    @rule(what=_sample_weighted(GATEWAY_WEIGHTS), n=number)
    def gateway(self, what: str, n: int) -> None:
        self._run_step(what, n)

    @rule(what=_sample_weighted(CLIENT_WEIGHTS), n=number)
    def client(self, what: str, n: int) -> None:
        self._run_step(what, n)

    def _run_step(self, what: str, n: int) -> None:
        assert self.world is not None
        Machine.steps += 1
        if what not in self.omitted_steps:
            getattr(self.world, what)(*divmod(n, 256)[: ARITY[what]])

    def teardown(self) -> None:
        if self.world is not None:
            self.world.quiesce()
