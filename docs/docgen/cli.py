"""Write the reference of the command line, from its commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from gateway.cli import app

from .markdown import escape_markdown

Command = Any  # click's, or that of typer's own copy of click, which is not public


def build_cli_page() -> str:
    """Return the page."""
    parts = [
        "# Command line\n\n"
        "What the commands do, and how they are called; `--help` lists their options. `gateway "
        "--install-completion` sets up completion of your shell.\n\n"
        "Exit codes: 0 success, 1 failure or what a command says, 2 wrong usage, 78 wrong "
        "configuration, 130 interrupted by ^C.\n"
    ]
    for words, command in iter_commands():
        parts.append(_build_command(words, command))
    return "\n".join(parts)


def iter_commands() -> Iterator[tuple[tuple[str, ...], Command]]:
    """Yield every command with the words that call it, groups before their commands."""
    yield from _iter_below(("gateway",), typer.main.get_command(app))


def _iter_below(
    words: tuple[str, ...], command: Command
) -> Iterator[tuple[tuple[str, ...], Command]]:
    if not command.hidden:
        yield words, command
        for name, below in getattr(command, "commands", {}).items():
            yield from _iter_below((*words, name), below)


def _build_command(words: tuple[str, ...], command: Command) -> str:
    name = " ".join(words)
    parts = [f"## `{name}`\n"]
    paragraphs = inspect.cleandoc(command.help or "").split("\n\n")
    # What it does, and how it is called; `--help` says the rest, where it is used. Of a group, its
    # commands say how they are called.
    is_group = hasattr(command, "commands") and len(words) > 1
    parts += [
        _format_help(text)
        for text in paragraphs
        if text is paragraphs[0] or (text[0] == "\b" and not is_group)
    ]
    failure = re.search(r"\b1 (.*), 2 wrong usage", command.epilog or "")
    if failure and failure[1] != "failure" and not is_group:
        parts.append(f"Exit code 1: {failure[1]}.\n")
    return "\n".join(part for part in parts if part)


def _format_help(paragraph: str) -> str:
    r"""Return a paragraph of a help text as Markdown; behind `\b` lines are kept, as a block."""
    if paragraph.startswith("\b\n"):
        return _format_block(paragraph.removeprefix("\b\n").rstrip())
    return escape_markdown(paragraph) + "\n"


def _format_block(block: str) -> str:
    """Return lines of a help text as a block: of commands, or of words with commands behind."""
    if all(re.match(r"gateway( \S+)+( +#.*)?$", line) for line in block.splitlines()):
        return f"```sh\n{block}\n```\n"
    return f"<!-- check: help -->\n```text\n{block}\n```\n"
