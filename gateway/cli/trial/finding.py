"""What was found by trying, and what is being tried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"  # works, but perhaps not as meant
    FAILS = "fails"


class Finding(NamedTuple):
    """subject: what was tried. detail: what came of it; what to do."""

    state: State
    subject: str
    detail: str


def ok(subject: str, detail: str) -> Finding:
    return Finding(State.OK, subject, detail)


def warning(subject: str, detail: str) -> Finding:
    return Finding(State.WARNING, subject, detail)


def fails(subject: str, detail: str) -> Finding:
    return Finding(State.FAILS, subject, detail)


class Steps:
    """What is under way. told: called whenever that changes."""

    def __init__(self, told: Callable[[Steps], None] | None = None) -> None:
        self.begun = 0
        self.done = 0
        self._told = told
        self._names: list[str] = []

    @property
    def waiting(self) -> Sequence[str]:
        """What has not answered yet, the oldest first."""
        return tuple(self._names)

    @contextmanager
    def step(self, name: str) -> Iterator[None]:
        self.begun += 1
        self._names.append(name)
        self._tell()
        try:
            yield
        finally:
            self.done += 1
            self._names.remove(name)
            self._tell()

    def _tell(self) -> None:
        if self._told is not None:
            self._told(self)
