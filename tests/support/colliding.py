"""Views that differ and yet have one digest: what finds a channel by it would let them share one.

A digest of a view has 30 bits, so among n views about n * n / 2**31 pairs have the same one: a
pair needs some 40,000 views, 5,000 pairs need 3.3 million. A search takes 1.5 us a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

from gateway.hub.fanout.view import View

MAX_CANDIDATES = 1 << 24
CANDIDATE = "customer-%d"

ViewOf = Callable[[str], View]


def colliding_pairs(view_of: ViewOf, count: int) -> list[tuple[str, str]]:
    """Return so many pairs of names whose views have the same digest, no name in two of them."""
    seen: dict[int, int] = {}
    pairs: list[tuple[str, str]] = []
    for number, bits in enumerate(_digests(view_of)):
        other = seen.pop(bits, None)
        if other is None:
            seen[bits] = number
            continue
        pairs.append((CANDIDATE % other, CANDIDATE % number))
        if len(pairs) == count:
            return _checked(pairs, view_of, view_of)
    raise AssertionError(f"only {len(pairs)} pairs among {MAX_CANDIDATES} views")


def colliding_across(
    view_of: ViewOf, other_view_of: ViewOf, candidates: int = 1 << 17
) -> tuple[str, str]:
    """Return a name of one kind of view and a name of another kind that have the same digest."""
    some = dict(zip(_digests(view_of), range(candidates), strict=False))
    for number, bits in enumerate(_digests(other_view_of)):
        if bits in some:
            return _checked([(CANDIDATE % some[bits], CANDIDATE % number)], view_of, other_view_of)[
                0
            ]
    raise AssertionError(f"no pair among {MAX_CANDIDATES} views")


def _digests(view_of: ViewOf) -> Iterator[int]:
    """Digests of the views of all candidates, without making the views."""
    before, _, after = _text_of(view_of("<who>")).partition("<who>")
    hashed, name, end = blake2b(before.encode(), digest_size=8), CANDIDATE.encode(), after.encode()
    for number in range(MAX_CANDIDATES):
        each = hashed.copy()
        each.update(name % number + end)
        yield int.from_bytes(each.digest()[:4], "big") >> 2


def _text_of(view: View) -> str:
    return repr((sorted(view.topics), view.filters, view.format, view.binary, view.fields))


def _checked(
    pairs: list[tuple[str, str]], view_of: ViewOf, other_view_of: ViewOf
) -> list[tuple[str, str]]:
    """Raise AssertionError where the gateway makes digests otherwise by now: adapt `_digests`."""
    for one, other in pairs:
        views = view_of(one), other_view_of(other)
        assert views[0] != views[1]
        assert views[0].digest == views[1].digest, f"{one} and {other} do not collide any more"
    return pairs
