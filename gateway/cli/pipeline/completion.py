"""Complete the names of jobs in a shell.

A shell runs this at each press of the Tab key, so it only parses the file as YAML, without the
checks of a configuration: that is quick, and works if the configuration is wrong elsewhere. A file
that is not YAML completes nothing.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from gateway.cli.options import CONFIG_VARIABLE, DEFAULT_CONFIG_FILE


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of jobs that begin with a text.

    The file is that of `-c`, before or behind the cursor; without it, gateway.yaml in the current
    directory.

    Args:
        ctx: The command line as click has parsed it so far.
        incomplete: The text that the user has typed.
    """
    file = _find_config_option(_read_command_line()) or ctx.params.get("config") or _find_default()
    return [name for name in _iter_job_names(Path(file)) if name.startswith(incomplete)]


def complete_job_or_all(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of jobs, and `all`, that begin with a text; see `complete_job`."""
    return [*complete_job(ctx, incomplete), *(["all"] if "all".startswith(incomplete) else [])]


def _read_command_line() -> list[str]:
    """Return the words of the line, which bash has in COMP_WORDS and typer's scripts for others."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        return shlex.split(line)
    except ValueError:  # a quote is not closed yet
        return line.split()


def _find_config_option(words: Sequence[str]) -> str | None:
    for word, following in zip(words, [*words[1:], None], strict=True):
        if word in ("-c", "--config"):
            return following
        if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


def _find_default() -> Path:
    named = os.environ.get(CONFIG_VARIABLE)
    return Path(named) if named else DEFAULT_CONFIG_FILE


def _iter_job_names(file: Path) -> Iterator[str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        document: Any = YAML(typ="safe").load(file.read_text())
    except (OSError, ValueError, YAMLError):
        return
    section: Any = document.get("pipelines") if isinstance(document, dict) else None
    jobs = section.get("jobs") if isinstance(section, dict) else None
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and isinstance(job.get("name"), str):
            yield job["name"]
