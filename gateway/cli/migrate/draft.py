"""The configuration that a migration builds: values, and the comments at their places."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.types.section import Loc

from .report import MigrationReport, SourceValue
from .source import iter_leaves

_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)(:?)")


@dataclass(slots=True)
class Draft:
    """A configuration that a converter builds and `validation` prunes.

    Attributes:
        report: What became of the source.
        folder: The folder of the file that will be written, where relative paths start.
        values: The values, by the paths of options.
        comments: The comments above options, by path.
        variables: What each environment variable must hold, by name. Those that the source itself
            refers to are not listed.
    """

    report: MigrationReport
    folder: Path
    values: dict[str, Any] = field(default_factory=dict)
    comments: dict[Loc, list[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def set(self, loc: Loc, value: Any) -> None:
        """Set an option; the sections around it are made."""
        section: Any = self.values
        for step in loc[:-1]:
            section = section[step] if isinstance(step, int) else section.setdefault(step, {})
        section[loc[-1]] = value

    def get(self, loc: Loc) -> Any:
        """Return the value of an option; None if it is not set."""
        value: Any = self.values
        for step in loc:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def carry(self, source: SourceValue, *target: str | int, value: Any = None) -> None:
        """Set an option to a value of the source, or to what it becomes here.

        Args:
            source: The value of the source; if it is missing, nothing happens.
            value: What it becomes; None for the same.
        """
        if source.exists:
            self.set(target, source.value if value is None else value)
            source.carry(*target, is_same=value is None)

    def comment(self, loc: Loc, text: str) -> None:
        """Put a comment above an option."""
        lines = self.comments.setdefault(loc, [])
        if text not in lines:
            lines.append(text)

    def need_variable(self, name: str, description: str, default: str | None = None) -> str:
        """Return the reference to an environment variable that must be set.

        Args:
            description: What it must hold.
            default: What it is if it is not set; None if it must be.
        """
        self.variables.setdefault(name, description)
        return f"${{env.{name}}}" if default is None else f"${{env.{name}:{default}}}"

    def add_route(self, route: Mapping[str, Any], comment: str) -> Loc:
        """Add a route, and return its place."""
        routes = self.values.setdefault("routes", [])
        routes.append(dict(route))
        loc = ("routes", len(routes) - 1)
        self.comment(loc, comment)
        return loc

    def remove(self, loc: Loc, reason: str) -> None:
        """Remove an option or an item, with what is below it, and report what was carried there.

        A reason why nothing is there stands in the report, if it came from the source.
        """
        parent, step = self.get(loc[:-1]), loc[-1]
        if isinstance(parent, dict):
            parent.pop(step, None)
        elif isinstance(parent, list) and isinstance(step, int) and step < len(parent):
            count = len(parent)
            del parent[step]
            self.report.drop_target(loc, reason)
            self.comments = {
                place: lines for place, lines in self.comments.items() if not _is_in(place, loc)
            }
            moves = [((*loc[:-1], n), (*loc[:-1], n - 1)) for n in range(step + 1, count)]
            self.report.move_targets(moves)
            self._move_comments(dict(moves))
            return
        self.report.drop_target(loc, reason)

    def list_variables(self) -> dict[str, str]:
        """Return the variables that must be set, each with what it must hold, in their order."""
        return self._find_variables(is_optional=False)

    def list_optional_variables(self) -> dict[str, str]:
        """Return the variables that are taken if they are set, each with what it must hold."""
        return self._find_variables(is_optional=True)

    def _find_variables(self, *, is_optional: bool) -> dict[str, str]:
        """Return the variables with a default, or those without one."""
        found: dict[str, str] = {}
        for _, value in iter_leaves(self.values):
            for name, colon in _VARIABLE.findall(value) if isinstance(value, str) else ():
                if bool(colon) == is_optional:
                    found.setdefault(name, self.variables.get(name, ""))
        return found

    def _move_comments(self, moves: dict[Loc, Loc]) -> None:
        comments: dict[Loc, list[str]] = {}
        for place, lines in self.comments.items():
            prefix = next((old for old in moves if _is_in(place, old)), None)
            comments[place if prefix is None else (*moves[prefix], *place[len(prefix) :])] = lines
        self.comments = comments


def _is_in(loc: Loc, prefix: Loc) -> bool:
    return loc[: len(prefix)] == prefix
