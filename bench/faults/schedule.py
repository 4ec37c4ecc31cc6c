"""Which fault happens when: a pure function of the seed.

Faults alternate in two rows, so that most of the time one or two are in effect. Each kind claims
what it takes away or changes, such as a broker or a topic. Two faults whose claims have something
in common never overlap, since the effect of neither could be verified. Kinds are drawn like cards:
no kind comes twice in a seed before all others that fit have come once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from random import Random

BROKERS, LAYOUT, GATEWAY, TRANSACTIONS = "brokers", "layout", "gateway", "transactions"
BROKER_NETWORK, CLIENT_NETWORK, FRONT, LOGIN = "broker-network", "client-network", "front", "login"
TRIMMED, VOLATILE, UNCLEAN, TABLE = "trimmed", "volatile", "unclean", "table"
REGISTRY, BACKEND, CLOCK, JOB = "registry", "backend", "clock", "job"

FIRST_FAULT_S = 2.0  # clients have begun by then
LONGEST_PAUSE_S = 3.0
ROW_COUNT = 2
MIN_FAULT_S = 1.0


@dataclass(frozen=True, slots=True)
class FaultKind:
    """A fault that the bench knows.

    Attributes:
        name: Its name, in schedules and reports.
        claims: What it takes away or changes.
        shortest_s: How long it is in effect at least, in seconds.
        longest_s: How long it is in effect at most.
        is_cheap: Whether the short run of `make test` may draw it: it is over within seconds, also
            on a busy machine, and nothing restarts.
    """

    name: str
    claims: frozenset[str]
    shortest_s: float
    longest_s: float
    is_cheap: bool = False


def _kind(
    name: str, claims: Iterable[str], shortest_s: float, longest_s: float, *, cheap: bool = False
) -> FaultKind:
    return FaultKind(name, frozenset(claims), shortest_s, longest_s, cheap)


KINDS: Sequence[FaultKind] = (
    _kind("broker-killed", [BROKERS], 3, 10),
    _kind("broker-frozen", [BROKERS], 3, 10),
    _kind("broker-restarted", [BROKERS], 0, 1),
    _kind("broker-shut-down", [BROKERS], 4, 12),
    _kind("no-leader", [BROKERS], 8, 30),
    _kind("isr-shrunk", [BROKERS], 2, 6),
    _kind("leader-moved", [BROKERS, LAYOUT], 2, 6, cheap=True),
    _kind("partitions-reassigned", [BROKERS, LAYOUT], 2, 6),
    _kind("partitions-added", [BROKERS, LAYOUT], 1, 2, cheap=True),
    _kind("disk-full", [BROKERS], 2, 6),
    _kind("unclean-election", [BROKERS, UNCLEAN], 1, 3),
    _kind("records-deleted", [TRIMMED], 1, 5, cheap=True),
    _kind("retention", [TRIMMED], 2, 5),
    _kind("tiny-segments", [TRIMMED], 3, 8),
    _kind("compaction", [TABLE], 3, 8),
    _kind("topic-recreated", [BROKERS, VOLATILE], 1, 4),
    _kind("hanging-transaction", [TRANSACTIONS], 3, 8),
    _kind("brokers-half-open", [BROKER_NETWORK], 2, 8),
    _kind("brokers-reset", [BROKER_NETWORK], 2, 8, cheap=True),
    _kind("brokers-slow", [BROKER_NETWORK], 3, 8),
    _kind("brokers-stalling", [BROKER_NETWORK], 4, 8),
    _kind("brokers-throttled", [BROKER_NETWORK], 3, 8),
    _kind("broker-errors", [BROKER_NETWORK], 2, 6, cheap=True),
    _kind("clients-cut", [CLIENT_NETWORK], 2, 8, cheap=True),
    _kind("clients-stalled", [CLIENT_NETWORK], 2, 8),
    _kind("clients-half-open", [CLIENT_NETWORK], 2, 8),
    _kind("gateway-killed", [GATEWAY], 1, 5),
    _kind("worker-killed", [GATEWAY], 1, 2),
    _kind("gateway-restarted", [GATEWAY], 0, 1),
    _kind("gateway-reloaded", [GATEWAY], 1, 3, cheap=True),
    _kind("worker-frozen", [GATEWAY], 2, 3, cheap=True),
    _kind("clock-stepped", [CLOCK], 3, 8),
    # What Kafka does by its clock, such as retention, cannot be verified meanwhile.
    _kind("broker-clock-stepped", [BROKERS, TRIMMED, TABLE, TRANSACTIONS], 3, 8),
    _kind("descriptors-exhausted", [GATEWAY], 3, 6),
    _kind("memory-limited", [GATEWAY], 3, 6),
    _kind("proxy-reloaded", [FRONT], 1, 2),
    _kind("login-away", [LOGIN], 3, 8, cheap=True),
    _kind("login-hangs", [LOGIN], 3, 8),
    _kind("registry-away", [REGISTRY], 3, 8, cheap=True),
    _kind("backend-away", [BACKEND], 3, 8, cheap=True),
)
JOB_KINDS: Sequence[FaultKind] = (_kind("job-killed", [JOB], 1, 5),)  # of a world with a Spark job
KINDS_BY_NAME = {kind.name: kind for kind in (*KINDS, *JOB_KINDS)}


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """A fault of a schedule.

    Attributes:
        kind: What happens.
        at_s: When it begins, in seconds from the beginning of the schedule.
        duration_s: How long it is in effect, in seconds, before it is healed.
        choice: What its own choices are drawn from, such as the broker.
    """

    kind: FaultKind
    at_s: float
    duration_s: float
    choice: int

    @property
    def until_s(self) -> float:
        """Return when it is to be healed, in seconds from the beginning of the schedule."""
        return self.at_s + self.duration_s

    def overlaps(self, other: PlannedFault) -> bool:
        """Return whether both are in effect at some time."""
        return self.at_s < other.until_s and other.at_s < self.until_s


def build_schedule(
    seed: int, seconds: float, kinds: Sequence[FaultKind] = KINDS
) -> list[PlannedFault]:
    """Build the schedule of a seed: its faults by the time of their beginning.

    Args:
        seed: The same one gives the same schedule, for the same `seconds` and `kinds`.
        seconds: How long the schedule lasts. All faults are to be healed by then.
        kinds: What is drawn from.
    """
    random = Random(f"{seed}/{seconds:g}/{','.join(kind.name for kind in kinds)}")
    deck = _shuffle(kinds, random)
    planned: list[PlannedFault] = []
    row_ends = [FIRST_FAULT_S + random.uniform(0, LONGEST_PAUSE_S) for _ in range(ROW_COUNT)]
    while True:
        row = min(range(ROW_COUNT), key=row_ends.__getitem__)
        at_s = row_ends[row]
        left_s = seconds - at_s
        if left_s < MIN_FAULT_S:
            return sorted(planned, key=lambda each: (each.at_s, each.kind.name))
        fault = _draw_fault(deck, planned, at_s, left_s, random)
        if fault is None:
            row_ends[row] += MIN_FAULT_S
            continue
        planned.append(fault)
        deck.remove(fault.kind)
        deck = deck or _shuffle(kinds, random)
        row_ends[row] = fault.until_s + random.uniform(0, LONGEST_PAUSE_S)


def _shuffle(kinds: Sequence[FaultKind], random: Random) -> list[FaultKind]:
    return random.sample(list(kinds), len(kinds))


def _draw_fault(
    deck: Sequence[FaultKind],
    planned: Sequence[PlannedFault],
    at_s: float,
    left_s: float,
    random: Random,
) -> PlannedFault | None:
    """Return the first of the deck that fits into the time and beside the others."""
    for kind in deck:
        longest_s = min(kind.longest_s, left_s)
        if kind.shortest_s > longest_s:
            continue
        duration_s = round(random.uniform(kind.shortest_s, longest_s), 2)
        fault = PlannedFault(kind, round(at_s, 2), duration_s, random.getrandbits(32))
        if not any(
            other.kind.claims & kind.claims
            and other.overlaps(PlannedFault(kind, fault.at_s, max(duration_s, MIN_FAULT_S), 0))
            for other in planned
        ):
            return fault
    return None


def list_overlaps(schedule: Sequence[PlannedFault]) -> set[frozenset[str]]:
    """Return the pairs of kinds that are in effect together at some time."""
    return {
        frozenset((first.kind.name, second.kind.name))
        for index, first in enumerate(schedule)
        for second in schedule[index + 1 :]
        if first.overlaps(second)
    }
