"""Commands of the documentation: which there are, and whether each of them can be what is meant."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import typer
from support.doc_blocks import ROOT

from gateway.cli import app

# Of other programs: their options are not checked.
_OTHERS = {
    "cat", "cd", "chmod", "cp", "docker", "echo", "export", "git", "helm", "jq", "kafka-acls.sh",
    "kafka-configs.sh", "kafka-topics.sh", "kafka-transactions.sh", "kill", "kubectl", "ls",
    "mkdir", "nginx", "node", "npm",
    "npx", "openssl", "printf", "python", "python3", "sleep", "sudo", "systemctl", "tail", "uv",
    "uvx", "wc", "head", "grep", "sort", "test", "tr", "rm", "for", "do", "done", "while", "if",
    "fi", "then", "java", "sed", ".", "source", "spark-submit", "curl.exe",
}  # fmt: skip
DEFAULT_CONFIG = "gateway.yaml"  # what commands read without -c
_FILE = re.compile(
    r"[\w./-]+\.(ya?ml|jsonl?|pem|pid|py|txt|token)|spark-events/[\w-]+"  # what commands read
)
# Paths that every gateway or sidecar has; beginnings of them.
_OWN_PATHS = (
    "/health", "/ws", "/asyncapi.json", "/gateway.js", "/metrics", "/streams", "/producers",
    "/consumers", "/replays", "/topics", "/docs", "/openapi.json", "/ksqldb", "/logger", "/chaos",
    "/levels", "/reload", "/routes", "/renew", "/deadLetter", "/server", "/v2", "/adm",
    "/reactive",
)  # fmt: skip


def iter_commands(text: str) -> Iterator[list[str]]:
    """The words of every command of a script, those of a pipe one after the other."""
    text = re.sub(r"\\\n\s*", " ", text)
    text = re.sub(r"<<-?\s*'?(\w+)'?(.*)\n(?:.*\n)*?\s*\1\n", r"\2\n", text)
    for line in _join_quoted(text.splitlines()):
        lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split, lexer.commenters = True, "#"
        command: list[str] = []
        skips = False
        for word in lexer:
            if set(word) <= set("|&;"):
                yield from [command] if command else []
                command = []
            elif set(word) <= set("<>&"):
                skips = True  # the file after it is no argument
            elif skips:
                skips = False
            else:
                command.append(word)
        yield from [command] if command else []


def _join_quoted(lines: Iterable[str]) -> Iterator[str]:
    """Lines, of which those within quotes are one."""
    whole = ""
    for line in lines:
        whole += line
        try:
            shlex.split(whole, comments=True)
        except ValueError:
            whole += "\n"
            continue
        yield whole
        whole = ""
    assert not whole, f"a quote is not closed: {whole[:60]}"


def check_command(words: list[str], directory: Path, is_path: Any) -> None:
    """Raise an AssertionError that says what is wrong with a command.

    is_path: says whether a path of a URL is one of the page's gateway.
    """
    while words and re.fullmatch(r"\w+=.*|time|exec|sudo", words[0], re.S):
        words = words[1:]
    if not words:
        return
    first, *arguments = words
    if first == "gateway":
        parse_gateway_command(arguments, directory)
    elif first == "make":
        _check_make(arguments)
    elif first in ("pip", "pipx"):
        _check_pip(arguments)
    elif first == "curl":
        _check_curl(arguments, is_path)
    else:
        known = _OTHERS | {".venv/bin/activate"}
        assert first in known, f"unknown command {first!r}; add it to doc_commands"


def parse_gateway_command(arguments: list[str], directory: Path) -> None:
    """Parse it as the command line does, without running it.

    Files that it names exist, and so does the default configuration.
    """
    if arguments == ["--version"]:
        return
    default = directory / DEFAULT_CONFIG
    default.touch()
    for word in arguments:
        name = word.rpartition("=")[2]
        if _FILE.fullmatch(name):
            path = directory / name.lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    before = os.environ.get("GATEWAY_CONFIG")
    os.environ["GATEWAY_CONFIG"] = str(default)
    try:
        command = _get_command()
        context = command.make_context("gateway", _place(arguments, directory))
        while hasattr(command, "commands"):
            rest = [*context._protected_args, *context.args]
            if not rest:
                return
            _, command, arguments = command.resolve_command(context, rest)
            context = command.make_context(command.name, arguments, parent=context)
    except Exception as error:
        if not hasattr(error, "format_message"):  # of click, or of typer's own copy of it
            raise
        raise AssertionError(f"gateway: {error.format_message()}") from error
    finally:
        if before is None:
            del os.environ["GATEWAY_CONFIG"]
        else:
            os.environ["GATEWAY_CONFIG"] = before


@cache
def _get_command() -> Any:
    return typer.main.get_command(app)


def _place(arguments: list[str], directory: Path) -> list[str]:
    """Files in the directory, without a change of the working directory."""
    return [
        str(directory / word.lstrip("/")) if (directory / word.lstrip("/")).is_file() else word
        for word in arguments
    ]


def _check_make(arguments: list[str]) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for word in arguments:
        name, assigns, _ = word.partition("=")
        wanted = rf"\$\(.*\b{name}\b.*\)" if assigns else rf"^{name}:"
        assert re.search(wanted, makefile, re.M), f"make has no {name}"


def _check_pip(arguments: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for word in arguments:
        name, _, extras = word.partition("[")
        if (name in (project["name"], ".") or name.endswith(".whl")) and extras:
            wanted = set(extras.partition("]")[0].split(","))
            missing = wanted - set(project["optional-dependencies"])
            assert not missing, f"the package has no extra {missing}"


def _check_curl(arguments: list[str], is_path: Any) -> None:
    urls = [word for word in arguments if re.match(r"https?://(127\.0\.0\.1|localhost)\b", word)]
    for url in urls:
        path = urlsplit(re.sub(r"\$\{?\w+\}?", "x", url)).path or "/"
        known = path == "/" or path.startswith(_OWN_PATHS) or is_path(path)
        assert known, f"no route of this page or of the demo has the path {path}"
