"""What a client looks at: topics, filter and format. Equal views share one channel."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.filters import Filters
from ..core.token import digest
from ..formats import Binary


@dataclass(frozen=True, slots=True)
class View:
    """topics: in their order. binary: what `value` does with bytes that are not text."""

    topics: tuple[str, ...]
    filters: Filters
    format: str
    binary: Binary

    @property
    def digest(self) -> bytes:
        """The same in every process, so that any replica can tell whether a token is of it."""
        return digest(repr((sorted(self.topics), self.filters, self.format, self.binary)))
