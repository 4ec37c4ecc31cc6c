"""The code blocks of the documentation, and how each of them is checked.

The language of a block says how. A comment before it says otherwise, and has attributes:

    <!-- check: config at=kafka.topics[0] -->
    ```yaml
    cache: {bytes: 256MiB}
    ```

By its language alone, a block is:

config    yaml: a configuration without a warning, once it is completed (`doc_configs`).
          at=kafka.topics[0]: where it stands. warns=TEXT: a warning that it is to have.
commands  sh, bash: each command is known, with its options, files and paths (`doc_commands`).
json      json, jsonl: each value can be parsed.
types     js, jsx, ts: TypeScript accepts it with the types of `gateway.js`. A js is run as well, in
          a browser, until it has opened a stream (`docs/test_snippets.py`).
          declare=a,b: names that a reader's program has. unrun=TEXT: why it is not run.
html      html: as `types`, for its scripts.
python    py: it compiles, its names exist, and mypy accepts it.
events    text with `event:` or `data:` lines: names and members of the events.
messages  text with lines of `> {` and `< {`: types of the WebSocket's messages.

Any other text needs a comment. By a comment alone, a block is:

yaml, toml, ini  A file of another program: it can be parsed.
file PATH        A part of this file of the repository, which is tested for itself.
help             A help text: the commands in it exist.
log              Lines of the log: the phrases that they begin with are in the source.
findings         Lines of `gateway check --front`: their states and subjects are in the source.
diagram          A picture: nothing is checked.

Commands that are run, in the order of the page, in one folder with its titled files:

broker topics=a  A Kafka is started for the page, with these topics; the command stands for it.
serve            Its command is started, and stays until the page's end.
run exit=0       It ends so. until=TEXT: it is repeated until it prints that.
stream until=A   It is ended when it has printed A.
output           What the `run` or `stream` before it printed; `...` is anything.

A block with `title="gateway.yaml"` after its language is the file of this name for the commands of
its page.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

_COMMENT = re.compile(r"^<!-- check: ([a-z]+)((?: .*)?) -->$")
_FENCE = re.compile(r"^(`{3,})([\w+-]*) ?(.*)$")
_KINDS = {
    "yaml": "config",
    "sh": "commands",
    "bash": "commands",
    "json": "json",
    "jsonl": "json",
    "js": "types",
    "jsx": "types",
    "ts": "types",
    "html": "html",
    "py": "python",
    "python": "python",
    "sse": "events",
}
KINDS = {
    *_KINDS.values(), "messages", "yaml", "toml", "ini", "file", "help", "log", "findings",
    "diagram", "broker", "serve", "start", "run", "stream", "output",
}  # fmt: skip
RUN_KINDS = ("broker", "serve", "start", "run", "stream", "output")


class Block(NamedTuple):
    """A code block of a page.

    kind:       how it is checked; empty if nothing says so.
    attributes: of the comment; words without `=` are in `words`.
    """

    page: Path
    line: int
    language: str
    title: str
    text: str
    kind: str
    words: list[str]
    attributes: dict[str, str]

    @property
    def place(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def explain_unrun(block: Block) -> str:
    """Why a block is not run, but only read by a test; empty if it is run."""
    if block.kind in RUN_KINDS or block.kind == "config":
        return ""
    if block.kind == "html" and "<script" not in block.text:
        return "no script"
    if block.language in ("jsx", "ts"):
        return "needs a build"
    if block.kind in ("types", "html"):
        return block.attributes.get("unrun", "")
    return block.kind


def list_pages() -> list[Path]:
    """All pages of the site."""
    return sorted(DOCS.rglob("*.md"))


def list_checked_pages() -> list[Path]:
    """All pages of the site, and the README, whose blocks are checked in the same way."""
    return [*list_pages(), ROOT / "README.md"]


def read_blocks(page: Path) -> list[Block]:
    """The code blocks of a page, in order."""
    return list(parse_blocks(page, page.read_text()))


def parse_blocks(page: Path, text: str) -> Iterator[Block]:
    comment, lines = "", iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        opened = _FENCE.match(line.strip())
        if opened is None:
            comment = line.strip() if line.strip() else comment
            continue
        indent = line[: len(line) - len(line.lstrip())]
        body = []
        for _, below in lines:
            if below.strip() == opened[1]:
                break
            body.append(below.removeprefix(indent))
        yield _build_block(page, number, opened[2], opened[3], "\n".join(body) + "\n", comment)
        comment = ""


def _build_block(page: Path, line: int, language: str, info: str, text: str, comment: str) -> Block:
    title = dict(_split_attributes(info)[1]).get("title", "")
    found = _COMMENT.match(comment)
    words, attributes = _split_attributes(found[2] if found else "")
    kind = found[1] if found else guess_kind(language, text)
    return Block(page, line, language, title, text, kind, words, attributes)


def _split_attributes(text: str) -> tuple[list[str], dict[str, str]]:
    parts = [part.partition("=") for part in shlex.split(text)]
    named = {name: value for name, equals, value in parts if equals}
    return [name for name, equals, _ in parts if not equals], named


def guess_kind(language: str, text: str) -> str:
    """How a block without a comment is checked; empty if that has to be said."""
    if language != "text":
        return _KINDS.get(language, "")
    if re.search(r"^(event|data|retry|id): ", text, re.M):
        return "events"
    return "messages" if re.search(r"^[<>] \{", text, re.M) else ""
