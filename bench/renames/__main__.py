"""Apply tables of renames by a language server: `python -m bench.renames [--dry] TABLE ...`.

Every rename is asked of basedpyright (`pip install basedpyright`) in the tree as it is, and all
edits are made at once at the end. So names may be swapped, and none is looked for twice. Names in
`__slots__` follow; other strings, comments and documents do not. 60 renames take about 30 s, after
20 s in which the server loads the tree.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote, urlparse

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 900.0
SETTINGS = {"typeCheckingMode": "off", "diagnosticMode": "openFilesOnly"}


class Rename(NamedTuple):
    """A line of a table.

    Attributes:
        path: Of the file that defines the name, from the root.
        name: `function`, `Class.method`, `Class.attribute`, `function(parameter)`.
        new: The last part of it, as it is to be.
    """

    path: str
    name: str
    new: str


class Place(NamedTuple):
    """Some characters of a line, from 0."""

    line: int
    start: int
    end: int


class Server:
    """A language server over its standard input and output."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            ["basedpyright-langserver", "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "NODE_OPTIONS": "--max-old-space-size=8192"},
        )
        self._count = 0
        self._answers: dict[int, dict[str, Any]] = {}
        self._arrived = threading.Condition()
        threading.Thread(target=self._receive, daemon=True).start()
        folder = {"uri": ROOT.as_uri(), "name": "root"}
        workspace = {"configuration": True, "workspaceEdit": {"documentChanges": True}}
        self.call(
            "initialize",
            {"rootUri": ROOT.as_uri(), "workspaceFolders": [folder],
             "processId": os.getpid(), "capabilities": {"workspace": workspace}},
        )  # fmt: skip
        self._send({"method": "initialized", "params": {}})

    def call(self, method: str, params: object) -> Any:
        """Return the result of a request. Raises RuntimeError for what the server refuses."""
        self._count += 1
        number = self._count
        self._send({"id": number, "method": method, "params": params})
        with self._arrived:
            if not self._arrived.wait_for(lambda: number in self._answers, TIMEOUT_S):
                raise TimeoutError(method)
            answer = self._answers.pop(number)
        if "error" in answer:
            raise RuntimeError(answer["error"]["message"])
        return answer["result"]

    def open(self, path: Path) -> None:
        """Give the server the text of a file."""
        document = {"uri": path.as_uri(), "languageId": "python", "version": 1}
        params = {"textDocument": {**document, "text": path.read_text("utf-8")}}
        self._send({"method": "textDocument/didOpen", "params": params})

    def load(self) -> None:
        """Wait until all files are loaded: until then a name is found in ever more of them."""
        path = ROOT / "gateway/errors.py"
        self.open(path)
        lines = path.read_text("utf-8").split("\n")
        line = next(at for at, each in enumerate(lines) if each.startswith("class GatewayError"))
        params = {
            "textDocument": {"uri": path.as_uri()},
            "position": {"line": line, "character": len("class ")},
            "context": {"includeDeclaration": True},
        }
        counts: list[int] = []
        while len(counts) < 4 or counts[-1] < 5 or len(set(counts[-4:])) > 1:
            counts.append(len(self.call("textDocument/references", params) or ()))
            time.sleep(3)

    def rename(self, path: Path, place: Place, new: str) -> Iterator[tuple[Path, Place]]:
        """Yield where a name stands."""
        position = {"line": place.line, "character": place.start}
        asked = {"textDocument": {"uri": path.as_uri()}, "position": position, "newName": new}
        found = self.call("textDocument/rename", asked) or {}
        changes = [
            (each["textDocument"]["uri"], each["edits"])
            for each in found.get("documentChanges", ())
            if "edits" in each
        ]
        for uri, edits in [*changes, *found.get("changes", {}).items()]:
            for edit in edits:
                start, end = edit["range"]["start"], edit["range"]["end"]
                where = Place(start["line"], start["character"], end["character"])
                yield Path(unquote(urlparse(uri).path)), where

    def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps({"jsonrpc": "2.0", **message}).encode()
        assert self._process.stdin is not None
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n" % len(data) + data)
        self._process.stdin.flush()

    def _receive(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while head := stream.readline():
            size = 0
            while head != b"\r\n":
                name, _, value = head.partition(b":")
                size = int(value) if name.lower() == b"content-length" else size
                head = stream.readline()
            message = json.loads(stream.read(size))
            if "method" not in message:
                with self._arrived:
                    self._answers[message["id"]] = message
                    self._arrived.notify_all()
            elif "id" in message:
                self._send({"id": message["id"], "result": _answer(message)})


def _answer(message: dict[str, Any]) -> Any:
    """Return what the server asks of its client."""
    if message["method"] != "workspace/configuration":
        return None
    known = {"python": {"pythonPath": sys.executable}, "basedpyright.analysis": SETTINGS}
    known["basedpyright"] = {"analysis": SETTINGS}
    return [known.get(each.get("section", ""), {}) for each in message["params"]["items"]]


def find_definition(text: str, name: str) -> Place:
    """Return where a name is defined. Raises KeyError."""
    lines, node = text.split("\n"), ast.parse(text)
    qualified, _, parameter = name.rstrip(")").partition("(")
    found: ast.AST = node
    for part in qualified.split("."):
        found = _find_part(found, part, name)
    if parameter:
        assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
        every = found.args
        given = [*every.posonlyargs, *every.args, *every.kwonlyargs, every.vararg, every.kwarg]
        found = next((each for each in given if each and each.arg == parameter), None) or ast.Pass()
    last = parameter or qualified.rpartition(".")[2]
    if not hasattr(found, "lineno"):
        raise KeyError(name)
    line = found.lineno - 1
    if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        while f"def {last}" not in lines[line] and f"class {last}" not in lines[line]:
            line += 1  # decorators come first
        start = lines[line].index(f" {last}") + 1
    elif isinstance(found, ast.Attribute):
        assert found.end_col_offset is not None
        start = len(lines[line].encode()[: found.end_col_offset].decode()) - len(last)
    else:
        start = lines[line].index(last, len(lines[line].encode()[: found.col_offset].decode()))
    return Place(line, start, start + len(last))


def _find_part(scope: ast.AST, part: str, name: str) -> ast.AST:
    for each in _in_scope(scope):
        if getattr(each, "name", None) == part and not isinstance(each, ast.alias):
            return each
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each.id == part:
            return each
    if isinstance(scope, ast.ClassDef):
        for each in ast.walk(scope):
            if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store):
                owner = each.value
                if each.attr == part and isinstance(owner, ast.Name) and owner.id == "self":
                    return each
    raise KeyError(name)


def _in_scope(node: ast.AST) -> Iterator[ast.AST]:
    for each in ast.iter_child_nodes(node):
        yield each
        if not isinstance(each, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_scope(each)


def find_slots(text: str, name: str) -> Iterator[Place]:
    """Yield where an attribute stands in the `__slots__` of its class."""
    owner, _, attribute = name.rpartition(".")
    if not owner or "(" in name:
        return
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.ClassDef) or node.name != owner.rpartition(".")[2]:
            continue
        for each in node.body:
            if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "__slots__":
                for text_of in ast.walk(each.value):
                    if isinstance(text_of, ast.Constant) and text_of.value == attribute:
                        start = text_of.col_offset + 1
                        yield Place(text_of.lineno - 1, start, start + len(attribute))


def read_table(path: Path) -> list[Rename]:
    """Return the lines of a table, each once."""
    lines = path.read_text("utf-8").splitlines()
    found = [Rename(*each.split("\t")) for each in lines if each.strip() and each[0] != "#"]
    return list(dict.fromkeys(found))


def write(edits: dict[Path, dict[Place, str]]) -> None:
    """Write the edits of all files."""
    for path, places in edits.items():
        lines = path.read_text("utf-8").split("\n")
        for place, new in sorted(places.items(), reverse=True):
            units = lines[place.line].encode("utf-16-le")  # as the protocol counts
            head, tail = units[: 2 * place.start], units[2 * place.end :]
            lines[place.line] = (head + new.encode("utf-16-le") + tail).decode("utf-16-le")
        path.write_text("\n".join(lines), "utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.renames", description=__doc__)
    parser.add_argument("tables", nargs="+", type=Path, metavar="TABLE")
    parser.add_argument("--dry", action="store_true", help="Write nothing.")
    options = parser.parse_args()
    renames = list(dict.fromkeys(each for table in options.tables for each in read_table(table)))
    server = Server()
    server.load()
    edits: dict[Path, dict[Place, str]] = {}
    opened: set[Path] = set()
    failed = 0
    for number, (name, qualified, new) in enumerate(renames, 1):
        path = ROOT / name
        try:
            if path not in opened:
                server.open(path)
                opened.add(path)
            text = path.read_text("utf-8")
            places = list(server.rename(path, find_definition(text, qualified), new))
            places += [(path, each) for each in find_slots(text, qualified)]
            for file, place in places:
                known = edits.setdefault(file, {}).setdefault(place, new)
                if known != new:
                    raise ValueError(f"{file}:{place.line + 1} is to be {known}, too")
            if not places:
                raise KeyError("the server knows no place of it")
        except (KeyError, OSError, RuntimeError, ValueError) as error:
            failed += 1
            print(f"{name} {qualified}: {error}", file=sys.stderr)
        if number % 50 == 0 or number == len(renames):
            print(f"{number} of {len(renames)}, {failed} failed", file=sys.stderr, flush=True)
    if not options.dry:
        write(edits)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
