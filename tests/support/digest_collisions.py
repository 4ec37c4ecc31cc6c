"""Views that differ and yet have one digest: what finds a channel by it would let them share one.

A digest of a view has 30 bits, so among n views about n * n / 2**31 pairs have the same one: a
pair needs some 40,000 views, 5,000 pairs need 3.3 million. A search takes 1.5 us a view.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b

from gateway.hub.reads.view import View

MAX_CANDIDATES = 1 << 24
CANDIDATE_FORMAT = "customer-%d"

ViewFactory = Callable[[str], View]


def find_colliding_pairs(create_view: ViewFactory, pair_count: int) -> list[tuple[str, str]]:
    """Return so many pairs of names whose views have the same digest, no name in two of them."""
    seen: dict[int, int] = {}
    pairs: list[tuple[str, str]] = []
    for number, bits in enumerate(_iter_digests(create_view)):
        other = seen.pop(bits, None)
        if other is None:
            seen[bits] = number
            continue
        pairs.append((CANDIDATE_FORMAT % other, CANDIDATE_FORMAT % number))
        if len(pairs) == pair_count:
            return _check_pairs(pairs, create_view, create_view)
    raise AssertionError(f"only {len(pairs)} pairs among {MAX_CANDIDATES} views")


def find_cross_collision(
    create_view: ViewFactory, create_other_view: ViewFactory, max_candidates: int = 1 << 17
) -> tuple[str, str]:
    """Return a name of one kind of view and a name of another kind that have the same digest."""
    some = dict(zip(_iter_digests(create_view), range(max_candidates), strict=False))
    for number, bits in enumerate(_iter_digests(create_other_view)):
        if bits in some:
            return _check_pairs(
                [(CANDIDATE_FORMAT % some[bits], CANDIDATE_FORMAT % number)],
                create_view,
                create_other_view,
            )[0]
    raise AssertionError(f"no pair among {MAX_CANDIDATES} views")


def _iter_digests(create_view: ViewFactory) -> Iterator[int]:
    """Digests of the views of all candidates, without making the views."""
    before, _, after = _build_digest_text(create_view("<who>")).partition("<who>")
    hashed, name, end = (
        blake2b(before.encode(), digest_size=8),
        CANDIDATE_FORMAT.encode(),
        after.encode(),
    )
    for number in range(MAX_CANDIDATES):
        each = hashed.copy()
        each.update(name % number + end)
        yield int.from_bytes(each.digest()[:4], "big") >> 2


def _build_digest_text(view: View) -> str:
    return repr((sorted(view.topics), view.filters, view.format, view.binary, view.fields))


def _check_pairs(
    pairs: list[tuple[str, str]], create_view: ViewFactory, create_other_view: ViewFactory
) -> list[tuple[str, str]]:
    """Raise AssertionError where the gateway makes digests otherwise by now: adapt `_digests`."""
    for one, other in pairs:
        views = create_view(one), create_other_view(other)
        assert views[0] != views[1]
        assert views[0].digest == views[1].digest, f"{one} and {other} do not collide any more"
    return pairs
