from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.channel.rings import Rings


@dataclass
class Ring:
    """Holds bytes of which followers lack some. `lost`: how often a follower was made to leave."""

    rings: Rings
    taken: int = 0
    lacked: int = 0
    lost: int = 0
    notified: int = 0
    order: list[Ring] = field(default_factory=list, repr=False)

    @property
    def bytes(self) -> int:
        return self.taken + self.lacked

    def drop_taken(self) -> None:
        self.rings.bytes -= self.taken
        self.taken = 0

    def drop_all(self) -> None:
        self.rings.bytes -= self.bytes
        self.lost += self.lacked > 0
        self.taken = self.lacked = 0
        self.order.append(self)

    def notify(self) -> None:
        self.notified += 1


def made(*sizes: tuple[int, int], limit: int) -> tuple[Rings, list[Ring]]:
    found: list[Ring] = []
    rings = Rings(limit, lambda: found)
    order: list[Ring] = []
    for taken, lacked in sizes:
        found.append(Ring(rings, taken, lacked, order=order))
        rings.bytes += taken + lacked
    return rings, found


def test_what_all_have_goes_first_and_nobody_loses_a_chunk():
    rings, found = made((40, 10), (30, 10), limit=100)
    rings.grow(0)
    assert rings.bytes == 90
    found[0].taken += 20
    rings.grow(20)
    assert rings.bytes == 20
    assert [ring.lost for ring in found] == [0, 0]


def test_then_the_largest_rings_go_and_their_followers_are_told():
    rings, found = made((0, 10), (0, 50), (0, 35), limit=90)
    rings.grow(0)
    assert [ring.lacked for ring in found] == [10, 0, 35]
    assert [ring.notified for ring in found] == [0, 1, 0]


def test_the_limit_holds_with_any_number_of_rings():
    rings, found = made(limit=1000)
    for n in range(500):
        found.append(Ring(rings, lacked=n % 7 * 10))
        rings.grow(found[-1].bytes)
        assert rings.bytes <= 1000
        assert rings.bytes == sum(ring.bytes for ring in found)


def test_without_a_limit_nothing_is_dropped():
    rings = Rings()
    rings.grow(1 << 40)
    assert rings.bytes == 1 << 40
