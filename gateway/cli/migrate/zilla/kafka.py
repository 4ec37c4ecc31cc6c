"""Convert the bindings behind the routes: `kafka` caches and clients, and their `tls` clients."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.config.types.section import Loc

from .bindings import Binding, BindingGraph, Step
from .catalogs import convert_model

_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")


@dataclass(slots=True)
class _Cluster:
    """A Kafka cluster, as a kafka client names it.

    Attributes:
        is_read: Whether a route reads topics that the request chooses.
    """

    section: Loc
    topics: dict[str, Loc] = field(default_factory=dict)
    is_read: bool = False
    read_topics: set[str] = field(default_factory=set)


class ClusterConverter:
    """Converts the kafka bindings; routes register the topics that they use."""

    def __init__(
        self,
        graph: BindingGraph,
        root: SourceValue,
        draft: Draft,
        catalog_types: Mapping[str, str],
    ) -> None:
        self._graph = graph
        self._root = root
        self._draft = draft
        self._catalog_types = catalog_types
        self._models: dict[Loc, Any] = {}
        self._clients = graph.list_used("kafka", "client")
        self._clusters = {
            client.name: _Cluster(("kafka", client.name) if self.has_several else ("kafka",))
            for client in self._clients
        }
        if not self._clients:
            self._clusters[""] = _Cluster(("kafka",))

    @property
    def has_several(self) -> bool:
        return len(self._clients) > 1

    def use_topic(self, start: str, topic: str, *, is_read: bool) -> tuple[str, list[Step]]:
        """Register a topic of a route, and return the name of its cluster and the way to it."""
        steps = self._graph.follow(start, topic)
        name = next((s.binding.name for s in steps if s.binding.name in self._clusters), None)
        name = next(iter(self._clusters)) if name is None else name
        cluster = self._clusters[name]
        if "${params." in topic or "${guarded" in topic:
            cluster.is_read |= is_read
        elif topic:
            self._add_topic(cluster, topic)
            if is_read:
                cluster.read_topics.add(topic)
        return name, steps

    def convert(self) -> None:
        """Convert the clusters, after all routes are converted."""
        for client in self._clients:
            self._convert_client(client, self._clusters[client.name])
        for kind in ("cache_server", "cache_client"):
            for cache in self._graph.list_used("kafka", kind):
                self._convert_cache(cache)
        for binding in self._graph.list_used("kafka", "cache_client"):
            self._convert_conditions(binding)
        for binding in self._graph.list_used("kafka", "cache_server"):
            self._convert_conditions(binding)
        for cluster in self._clusters.values():
            for topic, loc in cluster.topics.items():
                is_read = cluster.is_read or topic in cluster.read_topics
                if is_read and self._draft.get((*loc, "defaultOffset")) is None:
                    self._draft.set((*loc, "defaultOffset"), "historical")
                    comment = (
                        "Zilla's default: clients without a position begin at the oldest record"
                    )
                    self._draft.comment((*loc, "defaultOffset"), comment)
        for tcp in self._graph.list_used("tcp", "client"):
            tcp.options.omit("the addresses of Kafka are in kafka.servers")
            for route in tcp.routes:
                route.omit("connections to Kafka are not restricted by address")

    def _add_topic(self, cluster: _Cluster, name: str) -> Loc:
        if name not in cluster.topics:
            topics = self._draft.get((*cluster.section, "topics")) or []
            self._draft.set((*cluster.section, "topics"), [*topics, {"name": name}])
            cluster.topics[name] = (*cluster.section, "topics", len(topics))
        return cluster.topics[name]

    def _convert_client(self, client: Binding, cluster: _Cluster) -> None:
        draft, section = self._draft, cluster.section
        # The servers come first in the section.
        topics = draft.get(section) or {}
        draft.set(section, {})
        draft.carry(client.options.get("servers"), *section, "servers")
        for key, value in topics.items():
            draft.set((*section, key), value)
        if not client.options.get("servers").exists:
            servers = draft.need_variable("KAFKA_SERVERS", "HOST:PORT of some brokers")
            draft.set((*section, "servers"), servers)
        draft.comment(section, f"from binding {client.name}")
        for tls in self._graph.follow(client.name, ""):
            if tls.binding.type == "tls":
                self._convert_tls(tls.binding, section)
        for name, authorization in client.options.get("authorization").items():
            self._convert_sasl(authorization.get("credentials"), section, name)
        self._convert_sasl(client.options.get("sasl"), section, "")

    def _convert_tls(self, tls: Binding, section: Loc) -> None:
        draft, target = self._draft, (*section, "security", "tls")
        authority = draft.need_variable(
            "KAFKA_CA", "a PEM file, if the brokers' authority is not a public one", ""
        )
        draft.set((*target, "ca"), authority)
        draft.comment(target, f"from binding {tls.name}; keys are PEM files here, not in a vault")
        tls.options.get("trust").carry(*target, "ca")
        tls.source.get("vault").omit("the gateway reads PEM files; KAFKA_CA names one", target)
        if tls.options.get("keys").exists:
            certificate = draft.need_variable("KAFKA_CERTIFICATE", "PEM file of a certificate")
            key = draft.need_variable("KAFKA_KEY", "PEM file of its private key")
            draft.set((*target, "certificate"), certificate)
            draft.set((*target, "key"), key)
            tls.options.get("keys").carry(*target, "certificate")
        tls.options.get("trustcacerts").imply("those of the system are trusted without a file")
        tls.options.get("sni").imply("the name of each broker is sent and verified")
        tls.options.get("alpn").imply("Kafka's protocol has no ALPN")
        tls.options.get("version").omit("TLS 1.2 and 1.3 are spoken")
        tls.options.get("mutual").imply("brokers always have a certificate")

    def _convert_sasl(self, credentials: SourceValue, section: Loc, guard: str) -> None:
        mechanism = credentials.get("mechanism")
        if not mechanism.exists:
            return
        draft, target = self._draft, (*section, "security", "sasl")
        if mechanism.text in _MECHANISMS:
            draft.carry(mechanism, *target, "mechanism")
        else:
            draft.set((*target, "mechanism"), "scram-sha-512")
            mechanism.omit(
                f"{mechanism.text} is not supported; give the user a password of scram-sha-512",
                target,
            )
        names = ("token",) if mechanism.text == "oauthbearer" else ("username", "password")
        for name in names:
            option = credentials.get(name)
            text = self._resolve_guard(option.text, guard, target)
            if not text or (name != "username" and not text.startswith("${env.")):
                descriptions = {
                    "username": "the user of the gateway in Kafka",
                    "password": "the password of the gateway's user in Kafka",
                    "token": "the token of the gateway for Kafka",
                }
                text = draft.need_variable(f"KAFKA_{name.upper()}", descriptions[name])
            draft.set((*target, name), text)
            option.carry(*target, name)

    def _resolve_guard(self, text: str, name: str, target: Loc) -> str:
        """Return a text in which a guard with a fixed user has filled its placeholders."""
        guard = self._root.get("guards", name) if name else None
        if guard is None or ("{identity}" not in text and "{credentials}" not in text):
            return text
        if guard.get("type").text != "inline":
            guard.omit(
                "the gateway has one user in Kafka for all clients; its name and password are "
                "environment variables",
                target,
            )
            return ""
        guard.get("type").carry(*target)
        option = "username" if "{identity}" in text else "password"
        source = guard.get("options", "identity" if option == "username" else "credentials")
        source.carry(*target, option)
        return text.replace("{identity}", source.text).replace("{credentials}", source.text)

    def _find_cluster(self, binding: Binding, topic: str) -> _Cluster:
        steps = self._graph.follow(binding.name, topic)
        names = (step.binding.name for step in steps if step.binding.name in self._clusters)
        return self._clusters[next(names, next(iter(self._clusters)))]

    def _convert_cache(self, cache: Binding) -> None:
        draft = self._draft
        for name in cache.options.get("bootstrap"):
            cluster = self._find_cluster(cache, name.text)
            self._add_topic(cluster, name.text)
            target = (*cluster.section, "bootstrap")
            names = draft.get(target) or []
            if name.text not in names:
                draft.set(target, [*names, name.text])
            name.carry(*target)
        for topic in cache.options.get("topics"):
            name = topic.get("name")
            cluster = self._find_cluster(cache, name.text)
            loc = self._add_topic(cluster, name.text)
            name.carry(*loc, "name")
            draft.carry(topic.get("defaultOffset"), *loc, "defaultOffset")
            draft.carry(topic.get("transforms"), *loc, "transforms")
            delta = topic.get("deltaType")
            if delta.text == "none":
                delta.imply("values are sent as they are")
            delta.omit("values are sent as they are; see `fields` and `interval` of routes", loc)
            for part in ("key", "value"):
                # The cache server and the cache client often say the same of a topic.
                earlier = draft.get((*loc, part))
                if topic.get(part).exists and earlier is None:
                    convert_model(topic.get(part), (*loc, part), draft, self._catalog_types)
                    self._models[*loc, part] = topic.get(part).value
                elif topic.get(part).value == self._models.get((*loc, part)):
                    topic.get(part).carry(*loc, part)
                topic.get(part).omit("another binding says something else of this topic", loc)

    def _convert_conditions(self, binding: Binding) -> None:
        """Record the conditions on topics, which choose the cluster of a route's topic."""
        for route in binding.routes:
            for when in route.get("when"):
                topic = when.get("topic")
                cluster = self._find_cluster(binding, topic.text)
                if topic.text in cluster.topics:
                    topic.carry(*cluster.topics[topic.text], "name")
                topic.omit("no route reads or writes this topic")
            route.get("with").omit("has no counterpart here")
