"""Convert paths of a zilla.yaml, and narrow them by the conditions before them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.config import PathPattern

from .bindings import Way

ALL_PATHS = "/*"
_CORRELATION = "${correlationId}"


@dataclass(frozen=True, slots=True)
class NarrowedPath:
    """A path that the conditions before a route let through; `params` have only one value."""

    path: str
    params: Mapping[str, str]

    def bind(self, text: str) -> str:
        for name, value in self.params.items():
            text = text.replace(f"${{params.{name}}}", value)
        return text


def convert_path(path: str) -> str:
    """Return a path of Zilla in the gateway's form; `*` alone is every path."""
    return ALL_PATHS if path in ("", "*") else path


def convert_location(location: str) -> str:
    """Return the path of a later reply, in which the correlation id is a segment of its own."""
    segments: list[str] = []
    for segment in location.split("/"):
        if _CORRELATION in segment and segment != _CORRELATION:
            before = segment.split(_CORRELATION)[0]
            kept = re.match(r"\$\{params\.\w+\}|[\w-]+(?=[;,])", before)
            segments += [kept.group()] if kept else []
            segments.append(_CORRELATION)
        else:
            segments.append(segment)
    return "/".join(segments)


def narrow_path(path: str, ways: list[Way]) -> list[NarrowedPath]:
    """Return the parts of a route's path that the conditions on the ways to it let through."""
    found: dict[str, NarrowedPath] = {}
    for way in ways or [()]:
        for narrowed in _narrow_by_way(path, way):
            found.setdefault(narrowed.path, narrowed)
    return list(found.values())


def list_conditions(way: Way) -> list[list[str]]:
    """Return the paths that each step of a way lets through; none for a step that lets all."""
    conditions: list[list[str]] = []
    for step in way:
        paths: list[str] = []
        for when in step.route.get("when") if step.route is not None else ():
            option = when.get("headers", ":path") if step.binding.type == "http" else None
            if step.binding.type in ("sse", "ws"):
                option = when.get("path")
            paths.append(option.text if option is not None else "")
        if paths and all(paths):
            conditions.append([convert_path(each) for each in paths])
    return conditions


def _narrow_by_way(path: str, way: Way) -> Iterator[NarrowedPath]:
    open_paths = [NarrowedPath(path, {})]
    for conditions in list_conditions(way):
        open_paths = [
            narrowed
            for each in open_paths
            for condition in conditions
            if (narrowed := _narrow(each, condition)) is not None
        ]
    yield from open_paths


def _narrow(narrowed: NarrowedPath, condition: str) -> NarrowedPath | None:
    """Return the part of a path that a condition lets through; None for none or an unknown one."""
    try:
        pattern, limit = PathPattern.parse(narrowed.path), PathPattern.parse(condition)
    except ValueError:
        return narrowed  # the path is refused later, with what is wrong
    if limit.covers(pattern):
        return narrowed
    if not limit.params and not limit.has_wildcard:
        params = pattern.match(condition)
        return None if params is None else NarrowedPath(condition, {**narrowed.params, **params})
    return NarrowedPath(condition, narrowed.params) if pattern.covers(limit) else None
