"""Describe what a client is shown. Clients with equal views share one channel."""

from __future__ import annotations

from dataclasses import dataclass, field
from sys import getsizeof

from gateway.core.channel.filters import Filters, get_pointer_cost
from gateway.core.token.resume_token import digest_text
from gateway.formats import Binary

# Copies of the text of a client's view: in its request, in its parameters, in its filter.
TEXT_COPIES = 3
STEP_BYTES = 250  # of a dict for each step of a pointer but the first, in the tree of the fields


@dataclass(frozen=True, slots=True)
class View:
    """What a client is shown. Equal views show the same, so that their clients share a channel.

    Attributes:
        topics: The topics, in the order in which clients see them.
        filters: A record is shown if any of them matches, or if there are none.
        fields: The parts of the value that are shown, as JSON pointers; empty for the whole value.
        interval: Seconds from one step to the next, each with the latest record of each key.
        route: The route whose ids it has, where ids are signed: another route has other ids.
        is_pattern: Some topics were found by a pattern, and may have been deleted since.
        digest: The same in every process, so that any replica can tell whether a token is of this
            view. A position is valid for any interval, and tokens name their cluster anyway.
        size: About how many bytes it takes, which clients may make many.
    """

    topics: tuple[str, ...]
    filters: Filters
    format: str
    binary: Binary
    fields: tuple[str, ...] = ()
    interval: float | None = None
    cluster: str = ""
    route: str = ""
    is_pattern: bool = field(default=False, compare=False)
    digest: bytes = field(init=False, compare=False, repr=False)
    size: int = field(init=False, compare=False, repr=False)
    _hash: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        text = self.text
        size = TEXT_COPIES * getsizeof(text) + self.filters.size
        size += STEP_BYTES * sum(pointer.count("/", 1) for pointer in self.fields)
        object.__setattr__(self, "digest", digest_text(text))
        object.__setattr__(self, "size", size)
        # Computed once, because every connect looks up its channel by it: 1 us each.
        object.__setattr__(self, "_hash", hash((text, self.interval, self.cluster, self.route)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def condition_count(self) -> int:
        """Return how many conditions and fields each record costs."""
        return self.filters.condition_count + sum(map(get_pointer_cost, self.fields))

    @property
    def text(self) -> str:
        """Return what is shown as text, as far as a position is specific to it."""
        shown = (self.format, self.binary, self.fields)
        return repr((sorted(self.topics), self.filters, *shown))
