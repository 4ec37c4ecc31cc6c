"""Convert the bindings behind the routes: `kafka` caches and clients, `tls` clients, catalogs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gateway.config.types.section import Loc

from .bindings import Binding, BindingGraph, Step
from .draft import Draft
from .report import SourceValue

_MECHANISMS = ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
_CREDENTIALS = {
    "username": "the user of the gateway in Kafka",
    "password": "the password of the gateway's user in Kafka",
    "token": "the token of the gateway for Kafka",
}
_REGISTRY_TYPES = {
    "schema-registry": "", "karapace": "", "karapace-schema-registry": "",
    # Apicurio has Confluent's API there, too.
    "apicurio": "/apis/ccompat/v7", "apicurio-registry": "/apis/ccompat/v7",
}  # fmt: skip
_PLAIN_MODELS = {
    "int32": "int", "int64": "long", "float": "float", "double": "double", "boolean": "boolean",
    "string": "string", "bytes": "bytes", "json": "json",
}  # fmt: skip
_SCHEMA_MODELS = {"avro": "avro", "protobuf": "protobuf", "json": "jsonschema"}
_BEGINNING = "Zilla's default: clients without a position begin at the oldest record"


@dataclass(slots=True)
class _Cluster:
    """A Kafka cluster, as a kafka client names it.

    Attributes:
        reads_any: Whether a route reads topics that the request chooses.
    """

    section: Loc
    topics: dict[str, Loc] = field(default_factory=dict)
    reads_any: bool = False
    read_topics: set[str] = field(default_factory=set)


class ClusterConverter:
    """Converts the kafka bindings; routes register the topics that they use."""

    def __init__(
        self, graph: BindingGraph, root: SourceValue, draft: Draft, catalog_types: Mapping[str, str]
    ) -> None:
        self._graph = graph
        self._root = root
        self._draft = draft
        self._catalog_types = catalog_types
        self._models: dict[Loc, Any] = {}
        self._clients = graph.list_used("kafka", "client")
        self.has_several = len(self._clients) > 1
        self._clusters = {
            client.name: _Cluster(("kafka", client.name) if self.has_several else ("kafka",))
            for client in self._clients
        } or {"": _Cluster(("kafka",))}

    def use_topic(self, start: str, topic: str, *, is_read: bool) -> tuple[str, list[Step]]:
        """Register a topic of a route, and return the name of its cluster and the way to it."""
        steps = self._graph.follow(start, topic)
        name = self._find_name(steps)
        cluster = self._clusters[name]
        if "${params." in topic or "${guarded" in topic:
            cluster.reads_any |= is_read
        elif topic:
            self._add_topic(cluster, topic)
            if is_read:
                cluster.read_topics.add(topic)
        return name, steps

    def convert(self) -> None:
        """Convert the clusters, after all routes are converted."""
        for client in self._clients:
            self._convert_client(client, self._clusters[client.name])
        caches = self._graph.list_used("kafka", "cache_server", "cache_client")
        for cache in caches:
            self._convert_cache(cache)
        for cache in caches:
            self._convert_conditions(cache)
        for cluster in self._clusters.values():
            for topic, loc in cluster.topics.items():
                place = (*loc, "defaultOffset")
                is_read = cluster.reads_any or topic in cluster.read_topics
                if is_read and self._draft.get(place) is None:
                    self._draft.set(place, "historical")
                    self._draft.comment(place, _BEGINNING)

    def _add_topic(self, cluster: _Cluster, name: str) -> Loc:
        if name not in cluster.topics:
            cluster.topics[name] = self._draft.append((*cluster.section, "topics"), {"name": name})
        return cluster.topics[name]

    def _convert_client(self, client: Binding, cluster: _Cluster) -> None:
        draft, section = self._draft, cluster.section
        servers = client.options.get("servers")
        # The servers come first in the section.
        draft.set(section, {"servers": None, **(draft.get(section) or {})})
        draft.carry(servers, *section, "servers")
        if not servers.exists:
            what = "HOST:PORT of some brokers"
            draft.set_variable((*section, "servers"), "KAFKA_SERVERS", what)
        draft.comment(section, f"from binding {client.name}")
        for step in self._graph.follow(client.name, ""):
            if step.binding.type == "tls":
                self._convert_tls(step.binding, section)
        for name, authorization in client.options.get("authorization").items():
            self._convert_sasl(authorization.get("credentials"), section, name)
        self._convert_sasl(client.options.get("sasl"), section, "")

    def _convert_tls(self, tls: Binding, section: Loc) -> None:
        draft, target = self._draft, (*section, "security", "tls")
        authority = "a PEM file, if the brokers' authority is not a public one"
        draft.set((*target, "ca"), draft.need_variable("KAFKA_CA", authority, ""))
        draft.comment(target, f"from binding {tls.name}; keys are PEM files here, not in a vault")
        tls.options.get("trust").carry(*target, "ca")
        if tls.options.get("keys").exists:
            certificate = (*target, "certificate")
            draft.set_variable(certificate, "KAFKA_CERTIFICATE", "PEM file of a certificate")
            draft.set_variable((*target, "key"), "KAFKA_KEY", "PEM file of its private key")
            tls.options.get("keys").carry(*certificate)
        tls.source.explain("tls client", target)

    def _convert_sasl(self, credentials: SourceValue, section: Loc, guard: str) -> None:
        mechanism = credentials.get("mechanism")
        if not mechanism.exists:
            return
        draft, target = self._draft, (*section, "security", "sasl")
        if mechanism.text in _MECHANISMS:
            draft.carry(mechanism, *target, "mechanism")
        else:
            draft.set((*target, "mechanism"), "scram-sha-512")
            what = "is not supported; give the user a password of scram-sha-512"
            mechanism.omit(f"{mechanism.text} {what}", target)
        is_token = mechanism.text == "oauthbearer"
        for name in ("token",) if is_token else ("username", "password"):
            option, place = credentials.get(name), (*target, name)
            text = self._resolve_guard(option.text, guard, target)
            draft.set(place, text)
            if not text or (name != "username" and not text.startswith("${env.")):
                draft.set_variable(place, f"KAFKA_{name.upper()}", _CREDENTIALS[name])
            option.carry(*place)

    def _resolve_guard(self, text: str, name: str, target: Loc) -> str:
        """Return a text in which a guard with a fixed user has filled its placeholders."""
        if not name or ("{identity}" not in text and "{credentials}" not in text):
            return text
        guard = self._root.get("guards", name)
        if guard.get("type").text != "inline":
            guard.omit(
                "the gateway has one user in Kafka for all clients; its name and password are "
                "environment variables",
                target,
            )
            return ""
        guard.get("type").carry(*target)
        is_username = "{identity}" in text
        source = guard.get("options", "identity" if is_username else "credentials")
        source.carry(*target, "username" if is_username else "password")
        return text.replace("{identity}", source.text).replace("{credentials}", source.text)

    def _find_cluster(self, binding: Binding, topic: str) -> _Cluster:
        return self._clusters[self._find_name(self._graph.follow(binding.name, topic))]

    def _find_name(self, steps: list[Step]) -> str:
        names = (step.binding.name for step in steps if step.binding.name in self._clusters)
        return next(names, next(iter(self._clusters)))

    def _convert_cache(self, cache: Binding) -> None:
        draft = self._draft
        for name in cache.options.get("bootstrap"):
            cluster = self._find_cluster(cache, name.text)
            self._add_topic(cluster, name.text)
            target = (*cluster.section, "bootstrap")
            if name.text not in (draft.get(target) or []):
                draft.append(target, name.text)
            name.carry(*target)
        for topic in cache.options.get("topics"):
            name = topic.get("name")
            loc = self._add_topic(self._find_cluster(cache, name.text), name.text)
            name.carry(*loc, "name")
            for option in ("defaultOffset", "transforms"):
                draft.carry(topic.get(option), *loc, option)
            delta = topic.get("deltaType")
            if delta.text == "none":
                delta.imply("values are sent as they are")
            for part in ("key", "value"):
                model, place = topic.get(part), (*loc, part)
                # The cache server and the cache client often say the same of a topic.
                if model.exists and draft.get(place) is None:
                    self._convert_model(model, place)
                    self._models[place] = model.value
                elif model.value == self._models.get(place):
                    model.carry(*place)
            topic.explain("topic", loc)

    def _convert_conditions(self, binding: Binding) -> None:
        """Record the conditions on topics, which choose the cluster of a route's topic."""
        for when in binding.iter_conditions():
            topic = when.get("topic")
            cluster = self._find_cluster(binding, topic.text)
            if topic.text in cluster.topics:
                topic.carry(*cluster.topics[topic.text], "name")

    def _convert_model(self, source: SourceValue, target: Loc) -> None:
        draft = self._draft
        written = source if isinstance(source.value, str) else source.get("model")
        name = written.text
        catalogs = [each for each, _ in source.get("catalog").items()]
        registries = [each for each in catalogs if self._catalog_types.get(each) in _REGISTRY_TYPES]
        if name == "int32" and source.get("format").text == "text":
            name = "string"
        if registries and name in _SCHEMA_MODELS:
            draft.carry(written, *target, "model", value=_SCHEMA_MODELS[name])
            draft.set((*target, "catalog"), registries[0])
            for item in source.get("catalog", registries[0]):
                item.get("strategy").carry(*target, "catalog")
                item.explain("schema", target)
        elif name in _PLAIN_MODELS:
            draft.carry(written, *target, "model", value=_PLAIN_MODELS[name])
            source.get("catalog").omit(
                "JSON is read without a schema, because the catalog is no registry; register the "
                "schema, and use model: jsonschema",
                target,
            )
        else:
            source.omit(
                f"model {name or 'none'} needs a schema registry; register the schema, add the "
                "registry to catalogs, and name it here",
                target[:-1],
            )
            return
        source.explain("model", target)
        for key, value in source.items():
            if key not in ("model", "catalog"):
                value.omit(
                    "the gateway checks the encoding only, or the schema of a registry", target
                )


def convert_catalogs(source: SourceValue, draft: Draft) -> Mapping[str, str]:
    """Convert the catalogs, and return their types by name."""
    types = {name: catalog.get("type").text for name, catalog in source.items()}
    for name, catalog in source.items():
        if types[name] in _REGISTRY_TYPES:
            _convert_registry(name, catalog, _REGISTRY_TYPES[types[name]], draft)
        elif types[name] in ("inline", "filesystem"):
            catalog.omit(
                "schemas come from a registry here; register these there, and add it to catalogs"
            )
        else:
            catalog.omit(f"there is no catalog of type {types[name]}; use schema-registry")
    return types


def _convert_registry(name: str, catalog: SourceValue, path: str, draft: Draft) -> None:
    section = ("catalogs", name)
    options = catalog.get("options")
    draft.comment(section, f"from catalog {name}")
    draft.carry(catalog.get("type"), *section, "type", value="schema-registry")
    url = options.get("url")
    if path:
        draft.comment((*section, "url"), "Apicurio's API for clients of Confluent's registry")
    draft.carry(url, *section, "url", value=url.text.rstrip("/") + path if path else None)
    draft.carry_seconds(options.get("max-age"), *section, "maxAge")
    for option in ("context", "group-id", "id-encoding"):
        if options.get(option).value in ("default", ""):
            options.get(option).imply("is the registry's default")
    tls = options.get("tls")
    if tls.exists or catalog.get("vault").exists:
        authority = "PEM file, if the registry's authority is not a public one"
        draft.set((*section, "tls", "ca"), draft.need_variable("REGISTRY_CA", authority, ""))
        tls.get("trust").carry(*section, "tls", "ca")
    catalog.explain("catalog", section)
    _convert_authorization(options.get("credentials", "headers", "authorization"), section, draft)


def _convert_authorization(header: SourceValue, section: Loc, draft: Draft) -> None:
    bearer = re.fullmatch(r"Bearer\s+(\$\{env\.\w+\})", header.text)
    if bearer:
        draft.set((*section, "token"), bearer[1])
    elif header.exists and not header.text.startswith("Basic"):
        what = "the bearer token for the schema registry"
        draft.set_variable((*section, "token"), "REGISTRY_TOKEN", what)
    elif header.exists:
        what = "user name for the schema registry"
        draft.set_variable((*section, "username"), "REGISTRY_USERNAME", what)
        draft.set_variable((*section, "password"), "REGISTRY_PASSWORD", "its password")
        header.carry(*section, "username")
    header.carry(*section, "token")
