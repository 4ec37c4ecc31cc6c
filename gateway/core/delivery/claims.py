"""Know which requests were done and who works on the others, from a log that all replicas read.

A process writes a claim before it does the request of a key. The first claim of a key in the log
holds the key until the claim is released or a result is written. A claim names its owner, so that
others can fence that owner and take the key over when the claim has expired. Sans-I/O: times are
arguments, in seconds since 1970.

A reader may be behind the log, by seconds while a partition has no leader. It knows the
acknowledged writes of its own process without reading: `apply_release` and `apply_result` take
effect at once, by their offsets, so that it makes no difference whether a change is acknowledged or
read first. A release ends the claims of its owner that are before it in the log, including those
that are read later, and no claim behind it.

Claims are not applied early, because writes of others before it decide which claim is the first. A
process therefore knows its own claim only by reading, and has then read everything before it. That
is why two processes that claim a key at the same time never both hold it: both read the two claims
in the order of the log, and the process whose claim is the second has read the first as well.
Knowing a release early does not change that. It removes only the claim of an owner that did not do
the request and is not going to, and the claim that is the first after that is the first in the log,
too: everything before it has been read. (Unless that claim has been given up in the meantime by a
process that took it over, and so fenced its owner.)

Callers have to see to two more things. A claim's release may be in the log, not read yet, and the
key may be held by a third process: so a process reads to the end of the log before it takes a claim
over. And all readers would drop the claim of the process that took over if the former owner
released it: so writing a release has to fail for an owner that is fenced.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

CLAIM_SLACK_S = 3600.0  # seconds for which an expired claim is kept beyond the window
OFFSET_SHIFT = 1 << 63  # more than any offset


class Claim(NamedTuple):
    """A process's claim of a key at an offset; it may be taken over from `expires_at` on."""

    owner: str
    digest: bytes
    offset: int
    expires_at: float


class ClaimResult(NamedTuple):
    digest: bytes
    tp: TopicPartition
    offset: int
    finished_at: float


class UnreadChange(NamedTuple):
    """The place in the log of a change that was applied before it was read."""

    tp: TopicPartition
    offset: int


@dataclass(slots=True)
class Claims:
    """The knowledge of one reader of the log, with unread writes of its own process.

    Owned by the process's `IdempotencyStore`. It remembers the latest `max_results` results, for
    `window_s` seconds. Invariants between calls:

    - A key with a known result has no claims.
    - Each owner has at most one claim of a key. The claim with the lowest offset holds the key.
    - `_unread_changes` has only changes at or above the read position of their partition.
    """

    max_results: int
    window_s: float
    by_key: dict[bytes, dict[str, Claim]] = field(default_factory=dict)
    _results: OrderedDict[bytes, ClaimResult] = field(default_factory=OrderedDict)
    # The latest changes that were applied and not read, by key and owner; "" for results.
    _unread_changes: dict[tuple[bytes, str], UnreadChange] = field(default_factory=dict)
    _positions: dict[TopicPartition, int] = field(default_factory=dict)  # what is read next

    def __len__(self) -> int:
        return len(self._results)

    def on_claim(self, key: bytes, claim: Claim, now: float) -> None:
        unread = self._unread_changes.get((key, claim.owner))
        if unread is not None and claim.offset < unread.offset:
            return  # released further on in the log, by a release that was applied early
        result = self.get_result(key, now)
        if result is None and claim.expires_at > now - self.window_s - CLAIM_SLACK_S:
            # After `restart` known claims are read again; the known one is the earlier one.
            self.by_key.setdefault(key, {}).setdefault(claim.owner, claim)

    def on_release(self, key: bytes, owner: str, offset: int) -> None:
        """Apply a release by an owner that did not do the request; claims behind it stay."""
        claims = self.by_key.get(key, {})
        claim = claims.get(owner)
        if claim is not None and claim.offset < offset:
            del claims[owner]
        if not claims:
            self.by_key.pop(key, None)

    def apply_release(self, key: bytes, owner: str, tp: TopicPartition, offset: int) -> None:
        """Apply a release that this process has written, whether or not it was read yet."""
        self.on_release(key, owner, offset)
        self._note_unread(key, owner, tp, offset)

    def on_result(self, key: bytes, result: ClaimResult) -> None:
        """Apply a result that was read, unless a later one, or it, was applied already.

        Claims of the key end with it: those that came before it in the log lost, and a newer claim
        would mean that the window of this result is over.
        """
        unread = self._unread_changes.get((key, ""))
        if unread is None or result.offset > unread.offset:
            self._set_result(key, result)
        elif result.offset == unread.offset and key in self._results:
            self._results[key] = result  # the same one, with the timestamp that Kafka gave it

    def apply_result(self, key: bytes, result: ClaimResult) -> None:
        """Apply a result that this process has written, unless it was read already."""
        if result.offset >= self._positions.get(result.tp, 0):
            self._set_result(key, result)
            self._note_unread(key, "", result.tp, result.offset)

    def has_read_result(self, key: bytes) -> bool:
        """Return whether the result of a key was read, and not only written by this process."""
        return (key, "") not in self._unread_changes

    def set_read_position(self, tp: TopicPartition, position: int) -> None:
        """Record that a partition is read up to here: earlier unread changes can be forgotten."""
        self._positions[tp] = position
        read = [
            change_key
            for change_key, change in self._unread_changes.items()
            if change.tp == tp and change.offset < position
        ]
        for change_key in read:
            del self._unread_changes[change_key]

    def restart(self) -> None:
        """Begin to read again from the start, perhaps of a topic that was created again.

        Offsets may begin at 0 again. Claims stay until they are released, finished or taken over,
        and count as earlier in the log than all that is read from now on.
        """
        self._unread_changes.clear()
        self._positions.clear()
        for claims in self.by_key.values():
            for owner, claim in claims.items():
                claims[owner] = claim._replace(offset=claim.offset - OFFSET_SHIFT)

    def _note_unread(self, key: bytes, owner: str, tp: TopicPartition, offset: int) -> None:
        unread = self._unread_changes.get((key, owner))
        if offset >= self._positions.get(tp, 0) and (unread is None or unread.offset < offset):
            self._unread_changes[key, owner] = UnreadChange(tp, offset)

    def _set_result(self, key: bytes, result: ClaimResult) -> None:
        self.by_key.pop(key, None)
        self._results[key] = result
        self._results.move_to_end(key)
        if len(self._results) > self.max_results:
            self._results.popitem(last=False)

    def get_result(self, key: bytes, now: float) -> ClaimResult | None:
        result = self._results.get(key)
        if result is not None and result.finished_at < now - self.window_s:
            del self._results[key]
            return None
        return result

    def get_claim(self, key: bytes, owner: str) -> Claim | None:
        return self.by_key.get(key, {}).get(owner)

    def get_first_claim(self, key: bytes) -> Claim | None:
        claims = self.by_key.get(key)
        return min(claims.values(), key=lambda claim: claim.offset) if claims else None

    def expire(self, now: float) -> None:
        while self._results:
            key, oldest = next(iter(self._results.items()))
            if oldest.finished_at >= now - self.window_s:
                break
            del self._results[key]
        for key, claims in list(self.by_key.items()):
            # An expired claim still holds its key until it is taken over, so it outlives the
            # time in which anybody could know a result of it.
            if all(
                claim.expires_at < now - self.window_s - CLAIM_SLACK_S for claim in claims.values()
            ):
                del self.by_key[key]
