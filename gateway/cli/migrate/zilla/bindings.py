"""Find the chains of bindings in a zilla.yaml that map paths to topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from gateway.cli.migrate.report import SourceValue

PROXY_TYPES = ("sse-kafka", "http-kafka", "ws-kafka")
"""The types of bindings that map paths to topics."""

CHAIN_REASON = "the chain of bindings is the sections listen, kafka and routes here"
_REASONS = {
    "mqtt": "the gateway has no MQTT; keep Zilla, or an MQTT broker, for it",
    "mqtt-kafka": "the gateway has no MQTT; keep Zilla, or an MQTT broker, for it",
    "grpc": "the gateway has no gRPC; keep Zilla for it",
    "grpc-kafka": "the gateway has no gRPC; keep Zilla for it",
    "kafka-grpc": "the gateway has no gRPC; keep Zilla for it",
    "filesystem": "the gateway serves no files; let a web server such as nginx do that",
    "http-filesystem": "the gateway serves no files; let a web server such as nginx do that",
    "asyncapi": "the gateway has no such binding; run `gateway migrate` on the AsyncAPI document",
    "openapi": "the gateway has no such binding; write routes for the paths that Kafka answers",
    "openapi-asyncapi": "the gateway has no such binding; run `gateway migrate` on the AsyncAPI "
    "document",
}
_OTHER_REASON = "no chain leads from here to a topic, and the gateway does nothing else"


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

    def iter_exits(self) -> Iterator[tuple[SourceValue | None, str]]:
        """Yield each route with the name of the binding that it leads to; None for `exit`."""
        for route in self.routes:
            name = route.get("exit").text or self.source.get("exit").text
            if name:
                yield route, name
        if self.source.get("exit").text:
            yield None, self.source.get("exit").text


@dataclass(frozen=True, slots=True)
class Step:
    """A binding on the way, and the route in it that leads on; None for its `exit`."""

    binding: Binding
    route: SourceValue | None


Way = tuple[Step, ...]
"""The steps from a port to a binding, without that."""


class BindingGraph:
    def __init__(self, source: SourceValue) -> None:
        self.bindings = {name: Binding(name, value) for name, value in source.items()}
        self.proxies = [each for each in self.bindings.values() if each.type in PROXY_TYPES]
        self.used = self._find_used()

    def find_ways(self, binding: Binding) -> list[Way]:
        return list(self._iter_ways(binding, ()))

    def follow(self, start: str, topic: str) -> list[Step]:
        steps: list[Step] = []
        binding = self.bindings.get(start)
        while binding is not None and len(steps) <= len(self.bindings):
            exits = list(binding.iter_exits())
            route, name = next(
                (each for each in exits if _admits_topic(each[0], topic)), (None, "")
            )
            steps.append(Step(binding, route))
            binding = self.bindings.get(name)
        return steps

    def list_used(self, type_: str, kind: str) -> list[Binding]:
        return [
            self.bindings[name]
            for name in self.used
            if (self.bindings[name].type, self.bindings[name].kind) == (type_, kind)
        ]

    def imply_chain(self) -> None:
        for name in self.used:
            binding = self.bindings[name]
            for key in ("type", "kind", "exit", "entry"):
                binding.source.get(key).imply(CHAIN_REASON)
            binding.source.get("telemetry").omit(
                "metrics are counted for all routes, and cannot be chosen by binding"
            )
            for route in binding.routes:
                target = self.bindings.get(route.get("exit").text)
                if target is not None and target.name not in self.used:
                    route.omit(f"leads to '{target.name}': {describe_type(target)}")
                route.get("exit").imply(CHAIN_REASON)

    def omit_others(self) -> None:
        for binding in self.bindings.values():
            if binding.name not in self.used:
                binding.source.omit(describe_type(binding))

    def _find_used(self) -> dict[str, None]:
        used: dict[str, None] = {}
        for proxy in self.proxies:
            for way in self.find_ways(proxy):
                used |= {step.binding.name: None for step in way}
            used |= self._find_behind(proxy)
        return used

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
        found = False
        for other in self.bindings.values():
            if other is binding or any(step.binding is other for step in after):
                continue
            for route, name in other.iter_exits():
                if name == binding.name:
                    found = True
                    yield from self._iter_ways(other, (Step(other, route), *after))
        if not found:
            yield after


def describe_type(binding: Binding) -> str:
    reason = _REASONS.get(binding.type, _OTHER_REASON)
    return f"is of type {binding.type or 'none'}; {reason}"


def _admits_topic(route: SourceValue | None, topic: str) -> bool:
    if route is None:
        return True
    names = [when.get("topic").text for when in route.get("when")]
    return not names or any(name in ("", "*", topic) for name in names)
