"""Define the result of a check, and the progress of all checks."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple


class FindingState(StrEnum):
    OK = "ok"
    WARNING = "warning"  # it works, but maybe not as intended
    FAILS = "fails"


class Finding(NamedTuple):
    state: FindingState
    subject: str
    detail: str


def ok(subject: str, detail: str) -> Finding:
    return Finding(FindingState.OK, subject, detail)


def warning(subject: str, detail: str) -> Finding:
    return Finding(FindingState.WARNING, subject, detail)


def failure(subject: str, detail: str) -> Finding:
    return Finding(FindingState.FAILS, subject, detail)


class CheckError(Exception):
    """Something is wrong; the message says what, and what to do."""

    def __init__(self, message: str, state: FindingState = FindingState.FAILS) -> None:
        super().__init__(message)
        self.state = state


class CheckProgress:
    def __init__(self, on_change: Callable[[CheckProgress], None] | None = None) -> None:
        self.started = 0
        self.done = 0
        self._on_change = on_change
        self._names: list[str] = []

    @property
    def pending(self) -> Sequence[str]:
        return tuple(self._names)

    @contextmanager
    def track(self, name: str) -> Iterator[None]:
        self.started += 1
        self._names.append(name)
        self._notify()
        try:
            yield
        finally:
            self.done += 1
            self._names.remove(name)
            self._notify()

    def _notify(self) -> None:
        if self._on_change is not None:
            self._on_change(self)


async def judge(subject: str, place: str, check: Awaitable[str], steps: CheckProgress) -> Finding:
    """Report a check, which returns what is well."""
    with steps.track(f"{subject} {place}"):
        try:
            return ok(subject, await check)
        except CheckError as exc:
            return Finding(exc.state, subject, str(exc))
