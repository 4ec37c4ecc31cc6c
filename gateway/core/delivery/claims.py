"""Which requests were done, and who works on the others, as told by a log that all replicas read.

Whoever is to do what a key stands for writes a claim; the first claim of a key in the log has it,
until it is released or done. A claim names its owner, by whom it can be taken over when its time
is up. Sans-I/O: times are arguments, in seconds since 1970.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import NamedTuple

from gateway.core.log.record import TopicPartition

SLACK = 3600.0  # seconds for which a claim is known longer than its result could be


class Claim(NamedTuple):
    """owner: who works on it. digest: of what is to be done. until: when it may be taken over."""

    owner: str
    digest: bytes
    offset: int
    until: float


class Result(NamedTuple):
    """digest: of what was done. tp, offset: where its answer is. at: when."""

    digest: bytes
    tp: TopicPartition
    offset: int
    at: float


@dataclass(slots=True)
class Claims:
    """most: results that are remembered, the latest. window: seconds for which they are."""

    most: int
    window: float
    _claims: dict[bytes, dict[str, Claim]] = field(default_factory=dict)
    _results: OrderedDict[bytes, Result] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._results)

    def claimed(self, key: bytes, claim: Claim, now: float) -> None:
        """Heard, in the order of the log."""
        known = self.result(key, now)
        if known is None and claim.until > now - self.window - SLACK:
            self._claims.setdefault(key, {}).setdefault(claim.owner, claim)

    def released(self, key: bytes, owner: str) -> None:
        """What it is for was not done, and its owner is not going to."""
        claims = self._claims.get(key, {})
        claims.pop(owner, None)
        if not claims:
            self._claims.pop(key, None)

    def done(self, key: bytes, result: Result) -> None:
        self._claims.pop(key, None)
        self._results[key] = result
        self._results.move_to_end(key)
        if len(self._results) > self.most:
            self._results.popitem(last=False)

    def result(self, key: bytes, now: float) -> Result | None:
        """Within the window."""
        found = self._results.get(key)
        if found is not None and found.at < now - self.window:
            del self._results[key]
            return None
        return found

    def first(self, key: bytes) -> Claim | None:
        """The claim that has it."""
        claims = self._claims.get(key)
        return min(claims.values(), key=lambda claim: claim.offset) if claims else None

    def sweep(self, now: float) -> None:
        """Forget what is older than the window."""
        while self._results:
            key, oldest = next(iter(self._results.items()))
            if oldest.at >= now - self.window:
                break
            del self._results[key]
        for key, claims in list(self._claims.items()):
            if all(claim.until < now - self.window - SLACK for claim in claims.values()):
                del self._claims[key]
