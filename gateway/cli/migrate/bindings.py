"""Find the chains of bindings in a zilla.yaml, and the paths that they let through."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gateway.config import PathPattern

from .report import SourceValue, load_reasons

PROXY_TYPES = ("sse-kafka", "http-kafka", "ws-kafka")
"""The types of bindings that map paths to topics."""
_OTHER_REASON = "no chain leads from here to a topic, and the gateway does nothing else"
_CORRELATION = "${correlationId}"


@dataclass(frozen=True, slots=True)
class Binding:
    name: str
    source: SourceValue

    @property
    def type(self) -> str:
        return self.source.get("type").text

    @property
    def kind(self) -> str:
        return self.source.get("kind").text

    @property
    def options(self) -> SourceValue:
        return self.source.get("options")

    @property
    def routes(self) -> list[SourceValue]:
        return list(self.source.get("routes"))

    def iter_conditions(self) -> Iterator[SourceValue]:
        for route in self.routes:
            yield from route.get("when")

    def iter_exits(self) -> Iterator[tuple[SourceValue | None, str]]:
        default = self.source.get("exit").text
        for route in self.routes:
            if name := route.get("exit").text or default:
                yield route, name
        if default:
            yield None, default


@dataclass(frozen=True, slots=True)
class Step:
    """A binding on the way, and the route in it that leads on; None for its `exit`."""

    binding: Binding
    route: SourceValue | None

    @property
    def conditions(self) -> list[SourceValue]:
        return [] if self.route is None else list(self.route.get("when"))


Way = tuple[Step, ...]
"""The steps from a port to a binding, without that."""


class BindingGraph:
    def __init__(self, source: SourceValue) -> None:
        self.bindings = {name: Binding(name, value) for name, value in source.items()}
        self.proxies = [each for each in self.bindings.values() if each.type in PROXY_TYPES]
        self.used: dict[str, None] = {}
        for proxy in self.proxies:
            for way in self.find_ways(proxy):
                self.used |= {step.binding.name: None for step in way}
            self.used |= self._find_behind(proxy)

    def find_ways(self, binding: Binding) -> list[Way]:
        return list(self._iter_ways(binding, ()))

    def follow(self, start: str, topic: str) -> list[Step]:
        steps: list[Step] = []
        binding = self.bindings.get(start)
        while binding is not None and len(steps) <= len(self.bindings):
            exits = binding.iter_exits()
            route, name = next(
                (each for each in exits if _admits_topic(each[0], topic)), (None, "")
            )
            steps.append(Step(binding, route))
            binding = self.bindings.get(name)
        return steps

    def list_used(self, type_: str, *kinds: str) -> list[Binding]:
        used = [self.bindings[name] for name in self.used]
        return [each for kind in kinds for each in used if (each.type, each.kind) == (type_, kind)]

    def imply_chain(self) -> None:
        for name in self.used:
            source = self.bindings[name].source
            for route in self.bindings[name].routes:
                target = self.bindings.get(route.get("exit").text)
                if target is not None and target.name not in self.used:
                    route.omit(f"leads to '{target.name}': {_describe_type(target)}")
            source.explain("binding")

    def explain_rest(self) -> None:
        """Give a reason to what is not carried of each binding."""
        for binding in self.bindings.values():
            if binding.name in self.used:
                binding.source.explain(f"{binding.type} {binding.kind}")
            else:
                binding.source.omit(_describe_type(binding))

    def _find_behind(self, binding: Binding) -> dict[str, None]:
        found: dict[str, None] = {}
        open_names = [binding.name]
        while open_names:
            name = open_names.pop(0)
            if name in self.bindings and name not in found:
                found[name] = None
                open_names += [target for _, target in self.bindings[name].iter_exits()]
        return found

    def _iter_ways(self, binding: Binding, after: Way) -> Iterator[Way]:
        before = [
            Step(other, route)
            for other in self.bindings.values()
            if other is not binding and all(step.binding is not other for step in after)
            for route, name in other.iter_exits()
            if name == binding.name
        ]
        for step in before:
            yield from self._iter_ways(step.binding, (step, *after))
        if not before:
            yield after


def _describe_type(binding: Binding) -> str:
    reason = load_reasons()["unused binding"]["omitted"].get(binding.type, _OTHER_REASON)
    return f"is of type {binding.type or 'none'}; {reason}"


def _admits_topic(route: SourceValue | None, topic: str) -> bool:
    names = [when.get("topic").text for when in route.get("when")] if route is not None else []
    return not names or any(name in ("", "*", topic) for name in names)


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
    return "/*" if path in ("", "*") else path


def convert_location(location: str) -> str:
    """Return the path of a later reply, in which the correlation id is a segment of its own."""
    segments: list[str] = []
    for segment in location.split("/"):
        if _CORRELATION in segment and segment != _CORRELATION:
            kept = re.match(r"\$\{params\.\w+\}|[\w-]+(?=[;,])", segment.split(_CORRELATION)[0])
            segments += [kept.group()] if kept else []
            segments.append(_CORRELATION)
        else:
            segments.append(segment)
    return "/".join(segments)


def narrow_path(path: str, ways: list[Way]) -> list[NarrowedPath]:
    """Return the parts of a route's path that the conditions on the ways to it let through."""
    found: dict[str, NarrowedPath] = {}
    for way in ways or [()]:
        open_paths = [NarrowedPath(path, {})]
        for conditions in list_conditions(way):
            parts = [_narrow(each, limit) for each in open_paths for limit in conditions]
            open_paths = [each for each in parts if each is not None]
        for narrowed in open_paths:
            found.setdefault(narrowed.path, narrowed)
    return list(found.values())


def list_conditions(way: Way) -> list[list[str]]:
    """Return the paths that each step of a way lets through; none for a step that lets all."""
    places = {"http": ("headers", ":path"), "sse": ("path",), "ws": ("path",)}
    limits: list[list[str]] = []
    for step in way:
        place = places.get(step.binding.type)
        paths = [when.get(*place).text if place else "" for when in step.conditions]
        if paths and all(paths):
            limits.append([convert_path(each) for each in paths])
    return limits


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
