"""A source whose bytes come when the test wants them to."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import RawIOBase


@contextmanager
def open_pipe() -> Iterator[tuple[RawIOBase, RawIOBase]]:
    """The end to read and the end to write, whose close is the end of the input."""
    reading, writing = os.pipe()
    with open(reading, "rb", buffering=0) as source, open(writing, "wb", buffering=0) as sink:
        yield source, sink
