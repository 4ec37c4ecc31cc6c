"""What a client looks at: topics, filters, format, fields. Equal views share one channel."""

from __future__ import annotations

from dataclasses import dataclass, field

from gateway.core.channel.filters import Filters
from gateway.core.token.resume_token import digest_text
from gateway.formats import Binary


@dataclass(frozen=True, slots=True)
class View:
    """
    topics: in their order.
    binary: what `value` does with bytes that are not text.
    fields: of the value that are shown, by JSON pointer; all of it where there are none.
    cluster: that has the topics, by its name; a position is of one cluster anyway.
    interval: seconds in which the latest of each key is sent; None for every record, at once.
    is_pattern: some of its topics were found by a pattern, and may be gone again.
    digest: the same in every process, so that any replica can tell whether a token is of it. A
            position is one of the view whatever its interval.
    size:   characters of what it says, which a client may make long.
    route:  whose ids it has, where ids are signed: those of another route are others.
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
        object.__setattr__(self, "digest", digest_text(text))
        object.__setattr__(self, "size", len(text))
        # Channels are found by it, and it is made once for all who ask alike: 1 us of a connect.
        object.__setattr__(self, "_hash", hash((text, self.interval, self.cluster, self.route)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def text(self) -> str:
        """What is seen by it, as far as a position is of it."""
        shown = (self.format, self.binary, self.fields)
        return repr((sorted(self.topics), self.filters, *shown))
