"""Names of jobs for a shell that completes them.

It runs at every press of the key, so it reads the file as YAML and nothing else: a configuration
that is wrong elsewhere still has names, and what is no YAML has none.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

_DEFAULT_FILE = "gateway.yaml"


def complete_job(ctx: typer.Context, incomplete: str) -> list[str]:
    """Of the jobs in the file of `-c`, before or behind the cursor; else of gateway.yaml here."""
    file = ctx.params.get("config") or _find_config_option(_read_command_line()) or _DEFAULT_FILE
    return [name for name in _iter_job_names(Path(file)) if name.startswith(incomplete)]


def complete_job_or_all(ctx: typer.Context, incomplete: str) -> list[str]:
    return [*complete_job(ctx, incomplete), *(["all"] if "all".startswith(incomplete) else [])]


def _read_command_line() -> list[str]:
    """The whole line, as bash, or zsh and fish, hand it over."""
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS") or ""
    try:
        return shlex.split(line)
    except ValueError:  # a quote that is still open
        return line.split()


def _find_config_option(words: Sequence[str]) -> str | None:
    for word, after in zip(words, [*words[1:], None], strict=True):
        if word in ("-c", "--config"):
            return after
        if word.startswith("--config="):
            return word.removeprefix("--config=")
    return None


def _iter_job_names(file: Path) -> Iterator[str]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        whole: Any = YAML(typ="safe").load(file.read_text())
    except (OSError, ValueError, YAMLError):
        return
    section: Any = whole.get("pipelines") if isinstance(whole, dict) else None
    jobs = section.get("jobs") if isinstance(section, dict) else None
    for job in jobs if isinstance(jobs, list) else ():
        if isinstance(job, dict) and isinstance(job.get("name"), str):
            yield job["name"]
