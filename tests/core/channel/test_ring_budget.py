from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.channel.chunk_ring import RingBudget


@dataclass
class FakeRing:
    """Holds bytes of which followers lack some. `lost`: how often a follower was made to leave."""

    rings: RingBudget
    consumed_bytes: int = 0
    unread_bytes: int = 0
    lost_count: int = 0
    notified_count: int = 0
    drop_order: list[FakeRing] = field(default_factory=list, repr=False)

    @property
    def bytes(self) -> int:
        return self.consumed_bytes + self.unread_bytes

    def drop_consumed(self) -> None:
        self.rings.bytes -= self.consumed_bytes
        self.consumed_bytes = 0

    def drop_all(self) -> None:
        self.rings.bytes -= self.bytes
        self.lost_count += self.unread_bytes > 0
        self.consumed_bytes = self.unread_bytes = 0
        self.drop_order.append(self)

    def notify_followers(self) -> None:
        self.notified_count += 1


def build_rings(*sizes: tuple[int, int], limit: int) -> tuple[RingBudget, list[FakeRing]]:
    found: list[FakeRing] = []
    rings = RingBudget(limit, lambda: found)
    order: list[FakeRing] = []
    for taken, lacked in sizes:
        found.append(FakeRing(rings, taken, lacked, drop_order=order))
        rings.bytes += taken + lacked
    return rings, found


def test_what_all_have_goes_first_and_nobody_loses_a_chunk():
    rings, found = build_rings((40, 10), (30, 10), limit=100)
    rings.grow(0)
    assert rings.bytes == 90
    found[0].consumed_bytes += 20
    rings.grow(20)
    assert rings.bytes == 20
    assert [ring.lost_count for ring in found] == [0, 0]


def test_then_the_largest_rings_go_and_their_followers_are_told():
    rings, found = build_rings((0, 10), (0, 50), (0, 35), limit=90)
    rings.grow(0)
    assert [ring.unread_bytes for ring in found] == [10, 0, 35]
    assert [ring.notified_count for ring in found] == [0, 1, 0]


def test_the_limit_holds_with_any_number_of_rings():
    rings, found = build_rings(limit=1000)
    for n in range(500):
        found.append(FakeRing(rings, unread_bytes=n % 7 * 10))
        rings.grow(found[-1].bytes)
        assert rings.bytes <= 1000
        assert rings.bytes == sum(ring.bytes for ring in found)


def test_without_a_limit_nothing_is_dropped():
    rings = RingBudget()
    rings.grow(1 << 40)
    assert rings.bytes == 1 << 40
