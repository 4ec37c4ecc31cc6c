"""Which requests were done, and who works on the others, as told by a log that all replicas read.

Whoever is to do what a key stands for writes a claim; the first claim of a key in the log has it,
until it is released or done. A claim names its owner, by whom it can be taken over when its time
is up. Sans-I/O: times are arguments, in seconds since 1970.

A reader may be behind the log, by seconds while a partition has no leader. What its own process
wrote there, and Kafka acknowledged, it need not read to know: `apply_release` and `apply_result`
take effect at once, by their offsets, so that the order in which a change is acknowledged and read
makes no difference. A release ends the claims of its owner that stand before it in the log, those
that are read later too, and no claim behind it.

Claims are not applied like that: which one is the first is decided by what others wrote before it.
A process therefore knows its own claim only by reading, and has then read all that stands before
it. That is why two processes that claim a key at once never both have it: both read the two claims
in the order of the log, and the one whose claim is the second has read the first as well. To know a
release early does not change that. It takes away only the claim of an owner that did not do it and
is not going to, and the next claim then is first in the log, too: all before it has been read.
(Unless that one has been given up meanwhile by somebody who took it over, and so fenced its owner.)
To take over a claim of another owner is not safe by this alone: its release may be there, not yet
read, and its key somebody else's. Whoever takes over reads to the end of the log first. Nor
may a release be written once its claim is taken over: all readers would drop the claim that another
works under. Writing one has to fail for whoever is fenced.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

CLAIM_SLACK_S = 3600.0  # seconds for which a claim is known longer than its result could be
OFFSET_SHIFT = 1 << 63  # more than any offset


class Claim(NamedTuple):
    """owner: who works on it. digest: of what is to be done. until: when it may be taken over."""

    owner: str
    digest: bytes
    offset: int
    expires_at: float


class ClaimResult(NamedTuple):
    """digest: of what was done. tp, offset: where its answer is. at: when."""

    digest: bytes
    tp: TopicPartition
    offset: int
    finished_at: float


class UnreadChange(NamedTuple):
    """Where a change stands that was applied before it was read."""

    tp: TopicPartition
    offset: int


@dataclass(slots=True)
class Claims:
    """What one reader of the log knows, including what its process wrote and has not read yet.

    Attributes:
        most: How many results are remembered, the latest.
        window: For how many seconds they are.
    """

    max_results: int
    window_s: float
    _claims: dict[bytes, dict[str, Claim]] = field(default_factory=dict)
    _results: OrderedDict[bytes, ClaimResult] = field(default_factory=OrderedDict)
    # The latest changes that were applied and not read, by key and owner; "" for results.
    _unread_changes: dict[tuple[bytes, str], UnreadChange] = field(default_factory=dict)
    _positions: dict[TopicPartition, int] = field(default_factory=dict)  # what is read next

    def __len__(self) -> int:
        return len(self._results)

    def on_claim(self, key: bytes, claim: Claim, now: float) -> None:
        """Heard, in the order of the log."""
        ahead = self._unread_changes.get((key, claim.owner))
        if ahead is not None and claim.offset < ahead.offset:
            return
        known = self.get_result(key, now)
        if known is None and claim.expires_at > now - self.window_s - CLAIM_SLACK_S:
            self._claims.setdefault(key, {}).setdefault(claim.owner, claim)

    def on_release(self, key: bytes, owner: str, offset: int) -> None:
        """What it is for was not done, and its owner is not going to."""
        claims = self._claims.get(key, {})
        claim = claims.get(owner)
        if claim is not None and claim.offset < offset:
            del claims[owner]
        if not claims:
            self._claims.pop(key, None)

    def apply_release(self, key: bytes, owner: str, tp: TopicPartition, offset: int) -> None:
        """Release a claim as this process has written, whether or not that was read yet."""
        self.on_release(key, owner, offset)
        self._note_unread(key, owner, tp, offset)

    def on_result(self, key: bytes, result: ClaimResult) -> None:
        """Heard. What was applied already, or is older, changes nothing.

        Claims that came since are of a time when the window of that result was over.
        """
        ahead = self._unread_changes.get((key, ""))
        if ahead is None or result.offset > ahead.offset:
            self._set_result(key, result)
        elif result.offset == ahead.offset and key in self._results:
            self._results[key] = result  # Kafka may have given it another time

    def apply_result(self, key: bytes, result: ClaimResult) -> None:
        """Finish a key as this process has written, unless that was read already."""
        if result.offset >= self._positions.get(result.tp, 0):
            self._set_result(key, result)
            self._note_unread(key, "", result.tp, result.offset)

    def has_read_result(self, key: bytes) -> bool:
        """Return whether the result of a key is known by reading, not only by having written it."""
        return (key, "") not in self._unread_changes

    def set_read_position(self, tp: TopicPartition, position: int) -> None:
        """Record that a partition is read up to before this offset."""
        self._positions[tp] = position
        read = [
            name
            for name, each in self._unread_changes.items()
            if each.tp == tp and each.offset < position
        ]
        for name in read:
            del self._unread_changes[name]

    def restart(self) -> None:
        """Begin to read anew, perhaps a topic that was made anew: its offsets begin anew.

        What was claimed stays so until it is released, done or taken over; it comes before all
        that is read from now on.
        """
        self._unread_changes.clear()
        self._positions.clear()
        for claims in self._claims.values():
            for owner, claim in claims.items():
                claims[owner] = claim._replace(offset=claim.offset - OFFSET_SHIFT)

    def _note_unread(self, key: bytes, owner: str, tp: TopicPartition, offset: int) -> None:
        known = self._unread_changes.get((key, owner))
        if offset >= self._positions.get(tp, 0) and (known is None or known.offset < offset):
            self._unread_changes[key, owner] = UnreadChange(tp, offset)

    def _set_result(self, key: bytes, result: ClaimResult) -> None:
        self._claims.pop(key, None)
        self._results[key] = result
        self._results.move_to_end(key)
        if len(self._results) > self.max_results:
            self._results.popitem(last=False)

    def get_result(self, key: bytes, now: float) -> ClaimResult | None:
        """Within the window."""
        found = self._results.get(key)
        if found is not None and found.finished_at < now - self.window_s:
            del self._results[key]
            return None
        return found

    def get_claim(self, key: bytes, owner: str) -> Claim | None:
        """Return the claim of an owner, whether or not it is the first."""
        return self._claims.get(key, {}).get(owner)

    def get_first_claim(self, key: bytes) -> Claim | None:
        """The claim that has it."""
        claims = self._claims.get(key)
        return min(claims.values(), key=lambda claim: claim.offset) if claims else None

    def expire(self, now: float) -> None:
        """Forget what is older than the window."""
        while self._results:
            key, oldest = next(iter(self._results.items()))
            if oldest.finished_at >= now - self.window_s:
                break
            del self._results[key]
        for key, claims in list(self._claims.items()):
            if all(
                claim.expires_at < now - self.window_s - CLAIM_SLACK_S for claim in claims.values()
            ):
                del self._claims[key]
