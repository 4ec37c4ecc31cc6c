"""The configuration that a migration builds: values, and the comments at their places."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gateway.config.types.section import Loc

from .report import MigrationReport, SourceValue, iter_leaves, move

_VARIABLE = re.compile(r"\$\{env\.([A-Za-z_][A-Za-z0-9_]*)(:?)")


@dataclass(slots=True)
class Draft:
    """A configuration that the converters build and `validation` prunes.

    Attributes:
        folder: The folder of the file that will be written, where relative paths start.
        variables: The description of each environment variable, by name, except those that the
            source itself refers to.
    """

    report: MigrationReport
    folder: Path
    values: dict[str, Any] = field(default_factory=dict)
    comments: dict[Loc, list[str]] = field(default_factory=dict)
    variables: dict[str, str] = field(default_factory=dict)

    def set(self, loc: Loc, value: Any) -> None:
        section: Any = self.values
        for step in loc[:-1]:
            section = section[step] if isinstance(step, int) else section.setdefault(step, {})
        section[loc[-1]] = value

    def get(self, loc: Loc) -> Any:
        value: Any = self.values
        for step in loc:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value

    def carry(self, source: SourceValue, *target: str | int, value: Any = None) -> None:
        """Set an option to a value of the source, or to `value`, if the source has it."""
        if source.exists:
            self.set(target, source.value if value is None else value)
            source.carry(*target, is_same=value is None)

    def carry_seconds(self, source: SourceValue, *target: str | int) -> None:
        self.carry(source, *target, value=f"{source.text}s")

    def comment(self, loc: Loc, text: str) -> None:
        lines = self.comments.setdefault(loc, [])
        if text not in lines:
            lines.append(text)

    def need_variable(self, name: str, description: str, default: str | None = None) -> str:
        """Return the reference to a variable, which must be set if it has no default."""
        self.variables.setdefault(name, description)
        return f"${{env.{name}}}" if default is None else f"${{env.{name}:{default}}}"

    def set_variable(self, loc: Loc, name: str, description: str) -> None:
        self.set(loc, self.need_variable(name, description))

    def append(self, loc: Loc, item: Any) -> Loc:
        items = self.get(loc) or []
        self.set(loc, [*items, item])
        return (*loc, len(items))

    def remove(self, loc: Loc, reason: str) -> None:
        """Remove an option or an item with all below it, and report the values carried there."""
        parent, step = self.get(loc[:-1]), loc[-1]
        self.report.drop_target(loc, reason)
        if isinstance(parent, dict):
            parent.pop(step, None)
        elif isinstance(parent, list) and isinstance(step, int) and step < len(parent):
            changes = {(*loc[:-1], n): (*loc[:-1], n - 1) for n in range(step + 1, len(parent))}
            del parent[step]
            self.report.move_targets(changes)
            self.comments = {
                move(place, changes): lines
                for place, lines in self.comments.items()
                if place[: len(loc)] != loc
            }

    def list_variables(self, *, is_optional: bool = False) -> dict[str, str]:
        """Return the descriptions of variables that must be set, or of those that may be."""
        return {
            name: self.variables.get(name, "")
            for _, value in iter_leaves(self.values)
            for name, colon in (_VARIABLE.findall(value) if isinstance(value, str) else ())
            if bool(colon) == is_optional
        }
