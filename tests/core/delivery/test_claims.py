from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from gateway.core.delivery.claims import CLAIM_SLACK_S, Claim, ClaimResult, Claims
from gateway.core.log.record import TopicPartition

KEY, PLACE = b"k" * 16, TopicPartition("claims", 1)


def claim(owner: str, offset: int, until: float = 10.0) -> Claim:
    return Claim(owner, b"digest", offset, until)


def result(at: float = 0.0, offset: int = 7) -> ClaimResult:
    return ClaimResult(b"digest", PLACE, offset, at)


def test_the_first_claim_has_it_until_it_is_released():
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 3), now=0.0)
    claims.on_claim(KEY, claim("b", 5), now=0.0)
    assert claims.get_first_claim(KEY) == claim("a", 3)
    claims.on_release(KEY, "a", 6)
    assert claims.get_first_claim(KEY) == claim("b", 5)
    claims.on_release(KEY, "b", 7)
    assert claims.get_first_claim(KEY) is None


def test_a_claim_that_comes_again_is_the_one_it_was():
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 3), now=0.0)
    claims.on_claim(KEY, claim("a", 9), now=0.0)
    assert claims.get_first_claim(KEY) == claim("a", 3)


def test_what_is_done_needs_no_claim_whichever_is_heard_first():
    for order in ((0, 1), (1, 0)):
        claims = Claims(10, 100.0)
        for step in order:
            if step:
                claims.on_result(KEY, result())
            else:
                claims.on_claim(KEY, claim("a", 3), now=0.0)
        assert claims.get_first_claim(KEY) is None
        assert claims.get_result(KEY, now=1.0) == result()


def test_a_result_is_known_for_the_window():
    claims = Claims(10, 100.0)
    claims.on_result(KEY, result(at=0.0))
    assert claims.get_result(KEY, now=100.0) is not None
    assert claims.get_result(KEY, now=100.1) is None
    assert len(claims) == 0


def test_a_claim_outlives_the_result_that_it_may_have():
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 3, until=0.0), now=100.0 + CLAIM_SLACK_S - 1)
    assert claims.get_first_claim(KEY) is not None
    claims.expire(now=100.0 + CLAIM_SLACK_S + 1)
    assert claims.get_first_claim(KEY) is None
    claims.on_claim(KEY, claim("a", 3, until=0.0), now=100.0 + CLAIM_SLACK_S + 1)
    assert claims.get_first_claim(KEY) is None


def test_the_latest_results_are_remembered():
    claims = Claims(2, 100.0)
    for name in (b"a", b"b", b"c"):
        claims.on_result(name, result())
    assert [claims.get_result(name, now=1.0) is None for name in (b"a", b"b", b"c")] == [
        True,
        False,
        False,
    ]


def test_a_sweep_forgets_what_is_older_than_the_window():
    claims = Claims(10, 100.0)
    claims.on_result(b"a", result(at=0.0))
    claims.on_result(b"b", result(at=50.0))
    claims.expire(now=120.0)
    assert len(claims) == 1
    assert claims.get_result(b"b", now=120.0) is not None


@given(st.permutations(range(5)))
def test_all_who_hear_the_same_claims_agree_on_the_first(order: list[int]):
    """Partitions of claims are read in order; but a reader may begin anywhere, and hear again."""
    claims = Claims(10, 100.0)
    for offset in order:
        claims.on_claim(KEY, claim(f"owner-{offset}", offset), now=0.0)
    first = claims.get_first_claim(KEY)
    assert first is not None and first.offset == 0


def test_a_release_is_known_before_it_is_read():
    """The key was refused to the client that had been told to use it again, until it was read."""
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 3), now=0.0)
    claims.set_read_position(PLACE, 4)
    claims.apply_release(KEY, "a", PLACE, 9)
    assert claims.get_first_claim(KEY) is None
    claims.on_claim(KEY, claim("b", 5), now=0.0)
    assert claims.get_first_claim(KEY) == claim("b", 5)


def test_a_claim_that_is_read_after_its_release_was_acknowledged_is_over():
    claims = Claims(10, 100.0)
    claims.apply_release(KEY, "a", PLACE, 9)
    claims.on_claim(KEY, claim("a", 3), now=0.0)
    assert claims.get_first_claim(KEY) is None


def test_a_release_that_is_acknowledged_late_ends_no_claim_behind_it():
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 3), now=0.0)
    claims.on_release(KEY, "a", 4)
    claims.on_claim(KEY, claim("a", 5), now=0.0)
    claims.set_read_position(PLACE, 6)
    claims.apply_release(KEY, "a", PLACE, 4)
    assert claims.get_first_claim(KEY) == claim("a", 5)


def test_a_result_that_was_applied_ends_no_later_claim_when_it_is_read():
    """A claim is made once the window of the result is over, and the result is read then."""
    claims = Claims(10, 100.0)
    claims.apply_result(KEY, result(at=0.0, offset=7))
    assert claims.get_result(KEY, now=1.0) == result(at=0.0, offset=7)
    assert not claims.has_read_result(KEY)
    assert claims.get_result(KEY, now=101.0) is None
    claims.on_claim(KEY, claim("b", 3, until=110.0), now=101.0)
    claims.on_result(KEY, result(at=0.0, offset=7))
    claims.set_read_position(PLACE, 8)
    assert claims.get_first_claim(KEY) == claim("b", 3, until=110.0)
    assert claims.has_read_result(KEY)


def test_a_result_that_was_read_before_it_is_acknowledged_changes_nothing():
    claims = Claims(10, 100.0)
    claims.on_result(KEY, result(at=0.0, offset=7))
    claims.on_result(KEY, result(at=200.0, offset=8))
    claims.set_read_position(PLACE, 9)
    claims.apply_result(KEY, result(at=0.0, offset=7))
    assert claims.get_result(KEY, now=201.0) == result(at=200.0, offset=8)
    assert claims.has_read_result(KEY)


def test_claims_of_a_topic_that_was_deleted_are_released_in_the_one_made_anew():
    """The offsets of the new topic are smaller."""
    claims = Claims(10, 100.0)
    claims.on_claim(KEY, claim("a", 500), now=0.0)
    claims.on_claim(KEY, claim("b", 501), now=0.0)
    claims.apply_release(b"other", "a", PLACE, 600)
    claims.restart()
    claims.on_claim(b"other", claim("a", 0), now=0.0)
    assert claims.get_first_claim(b"other") == claim("a", 0)
    first = claims.get_first_claim(KEY)
    assert first is not None and first.owner == "a"
    claims.on_release(KEY, "a", 1)
    claims.on_claim(KEY, claim("c", 2), now=0.0)
    first = claims.get_first_claim(KEY)
    assert first is not None and first.owner == "b"


EVENTS = st.tuples(st.sampled_from(["claim", "release"]), st.sampled_from("abc"))


@given(st.lists(EVENTS, max_size=12), st.data())
def test_when_releases_are_acknowledged_makes_no_difference(log: list[Any], data: Any):
    """At each moment, what is known is what the log says of all that is read or acknowledged."""
    releases = [offset for offset, (kind, _) in enumerate(log) if kind == "release"]
    acknowledged = data.draw(st.lists(st.sampled_from(releases))) if releases else []
    moments = [(data.draw(st.integers(0, len(log))), offset) for offset in acknowledged]
    claims, known = Claims(10, 100.0), set[int]()
    for position in range(len(log) + 1):
        for moment, offset in moments:
            if moment == position:
                claims.apply_release(KEY, log[offset][1], PLACE, offset)
                known.add(offset)
        assert claims.get_first_claim(KEY) == find_first_claim(log, known)
        if position < len(log):
            apply_event(claims, position, log[position])
            claims.set_read_position(PLACE, position + 1)
            known.add(position)
    assert claims.get_first_claim(KEY) == find_first_claim(log, set(range(len(log))))


def find_first_claim(log: list[Any], known: set[int]) -> Claim | None:
    """Return the first claim by the part of a log that is known."""
    held: dict[str, int] = {}
    for offset in sorted(known):
        kind, owner = log[offset]
        if kind == "claim":
            held.setdefault(owner, offset)
        else:
            held.pop(owner, None)
    owner = min(held, key=held.__getitem__, default=None)
    return None if owner is None else claim(owner, held[owner])


def apply_event(claims: Claims, offset: int, event: tuple[str, str]) -> None:
    kind, owner = event
    if kind == "claim":
        claims.on_claim(KEY, claim(owner, offset), now=0.0)
    elif kind == "release":
        claims.on_release(KEY, owner, offset)
    else:
        claims.on_result(KEY, result(offset=offset))


class Replica:
    """One of the processes that share a log, as `Ledger` goes about it.

    Owners are transactional ids: `epochs` has the last of each, and whoever works under an older
    one is fenced. All share `log` and `epochs`.
    """

    def __init__(self, name: str, log: list[tuple[str, str]], epochs: dict[str, int]) -> None:
        self.claims = Claims(10, 100.0)
        self._name = name
        self._log = log
        self._epochs = epochs
        self._position = 0
        self._working: list[tuple[str, int]] = []
        self._acknowledged: list[tuple[str, int]] = []

    def act(self, action: str) -> None:
        getattr(self, action)()

    def claim(self) -> None:
        if self.claims.get_result(KEY, 0.0) is None and self.claims.get_first_claim(KEY) is None:
            self._write("claim", f"{self._name}-{len(self._log)}")

    def read(self) -> None:
        if self._position < len(self._log):
            apply_event(self.claims, self._position, self._log[self._position])
            self._position += 1
            self.claims.set_read_position(PLACE, self._position)

    def work(self) -> None:
        first = self.claims.get_first_claim(KEY)
        if first is None or not first.owner.startswith(self._name) or first.owner in self._epochs:
            return
        self._epochs[first.owner] = 0
        self._working.append((first.owner, 0))

    def take_over(self) -> None:
        first = self.claims.get_first_claim(KEY)
        if first is None:
            return
        epoch = self._epochs[first.owner] = self._epochs.get(first.owner, 0) + 1
        while self._position < len(self._log):
            self.read()
        if self.claims.get_first_claim(KEY) == first and self.claims.get_result(KEY, 0.0) is None:
            self._working.append((first.owner, epoch))

    def refuse(self) -> None:
        for owner in self._end_work():
            self._acknowledged.append((owner, self._write("release", owner)))

    def finish(self) -> None:
        for owner in self._end_work():
            self.claims.apply_result(KEY, result(offset=self._write("done", owner)))

    def acknowledge(self) -> None:
        for owner, offset in self._acknowledged:
            self.claims.apply_release(KEY, owner, PLACE, offset)
        self._acknowledged.clear()

    def _write(self, kind: str, owner: str) -> int:
        self._log.append((kind, owner))
        return len(self._log) - 1

    def _end_work(self) -> list[str]:
        """Return the owners under which something was written, unless they are fenced."""
        if not self._working:
            return []
        owner, epoch = self._working.pop(0)
        return [owner] if self._epochs[owner] == epoch else []


ACTIONS = st.sampled_from(
    ["claim", "read", "read", "work", "take_over", "refuse", "acknowledge", "finish"]
)


# Two has read the claim of one, and takes it over when it is released, and one does it once more.
LATE = [(0, "claim"), (0, "read"), (0, "work"), (1, "read"), (0, "refuse"), (0, "acknowledge")]
LATE += [(0, "claim"), (0, "read"), (0, "read"), (0, "work")]
LATE += [(1, "take_over"), (1, "finish"), (0, "finish")]
# Each has written a claim and read none; it would be the first of each that applied its own.
UNREAD = [(0, "claim"), (1, "claim"), (0, "work"), (1, "work"), (0, "finish"), (1, "finish")]


@example(LATE)
@example(UNREAD)
@given(st.lists(st.tuples(st.integers(0, 1), ACTIONS), max_size=60))
def test_of_two_processes_that_claim_a_key_at_once_one_does_it(steps: list[tuple[int, str]]):
    """However late each reads, and however early it knows what it wrote itself."""
    log: list[tuple[str, str]] = []
    epochs: dict[str, int] = {}
    replicas = [Replica(name, log, epochs) for name in ("one", "two")]
    for number, action in steps:
        replicas[number].act(action)
        assert [kind for kind, _ in log].count("done") <= 1
