"""Complete names of the configuration in a shell: topics, guards, and for pipelines jobs.

A shell runs this at each press of the Tab key, so it only parses the file as YAML, without the
checks of a configuration: that is quick, and works if the configuration is wrong elsewhere. A file
that is not YAML completes nothing. No broker is asked.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import typer

from .options import CONFIG_VARIABLE, DEFAULT_CONFIG_FILE, is_given


def read_configuration(ctx: typer.Context) -> dict[str, Any]:
    """Return the configuration of a command line as plain values; an empty one if there is none.

    The file is that of `-c`, before or behind the cursor; without it, the default one.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    parsed = ctx.params["config"] if is_given(ctx, "config") else None
    file = _find_config_option(_read_command_line()) or parsed or _find_default()
    try:
        document: Any = YAML(typ="safe").load(Path(file).read_text())
    except (OSError, ValueError, YAMLError):
        return {}
    return document if isinstance(document, dict) else {}


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    kafka = read_configuration(ctx).get("kafka")
    clusters = [kafka, *kafka.values()] if isinstance(kafka, dict) else []
    names = {name for cluster in clusters for name in _iter_topic_names(cluster)}
    return sorted(name for name in names if name.startswith(incomplete))


def complete_guard(ctx: typer.Context, incomplete: str) -> list[str]:
    guards = read_configuration(ctx).get("guards")
    names = guards if isinstance(guards, dict) else ()
    return [name for name in names if isinstance(name, str) and name.startswith(incomplete)]


def _iter_topic_names(cluster: Any) -> Iterator[str]:
    topics = cluster.get("topics") if isinstance(cluster, dict) else None
    for topic in topics if isinstance(topics, list) else ():
        name = topic.get("name") if isinstance(topic, dict) else topic
        if isinstance(name, str):
            yield name


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
