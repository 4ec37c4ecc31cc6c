"""Commands of `gateway` in this process."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from typer.testing import CliRunner, Result

from gateway.cli import app


async def run_command(*arguments: str) -> Result:
    """Run one in a thread with an event loop of its own: the test's may serve what it asks.

    It has no log handlers but its own, as in a process of its own.
    """
    with _removing_log_handlers("", "gateway", "aiokafka"):
        return await asyncio.to_thread(CliRunner().invoke, app, arguments, prog_name="gateway")


@contextmanager
def _removing_log_handlers(*names: str) -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in names]
    handlers = [list(logger.handlers) for logger in loggers]
    try:
        for logger in loggers:
            logger.handlers.clear()
        yield
    finally:
        for logger, before in zip(loggers, handlers, strict=True):
            logger.handlers[:] = before


def complete(shell: str, line: str, position: int | None = None, **environment: str) -> list[str]:
    """Return what a shell is told for a line of which one word is to be completed.

    position: Of that word; by default the last one.
    """
    words = line.split(" ")
    position = len(words) - 1 if position is None else position
    if shell == "bash":
        variables = {"COMP_WORDS": line, "COMP_CWORD": str(position)}
    else:
        variables = {
            "_TYPER_COMPLETE_ARGS": " ".join(words[: position + 1]),
            "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        }
    return ask_for_completion(f"complete_{shell}", **variables, **environment).splitlines()


def ask_for_completion(instruction: str, **environment: str) -> str:
    absent = {name: None for name in os.environ if name.startswith("GATEWAY_")}
    variables = {**absent, "_GATEWAY_COMPLETE": instruction, **environment}
    result = CliRunner().invoke(app, prog_name="gateway", env=variables)
    assert result.stderr == ""
    return result.stdout
