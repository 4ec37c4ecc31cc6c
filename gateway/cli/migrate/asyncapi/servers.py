"""Convert the server of Kafka: its address, TLS, SASL and schema registry."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue

from .document import KAFKA_PROTOCOLS, Document

CATALOG = "registry"
_SECTION = ("kafka",)
_MECHANISMS = {
    "userPassword": "plain",
    "plain": "plain",
    "scramSha256": "scram-sha-256",
    "scramSha512": "scram-sha-512",
    "oauth2": "oauthbearer",
}
_ONE_CLUSTER = (
    "the first server of Kafka is used; set GATEWAY_KAFKA__SERVERS for another one of the same "
    "topics, or name several clusters in `kafka`"
)


@dataclass(frozen=True, slots=True)
class Servers:
    """The servers of a document.

    Attributes:
        chosen: The name of the server of Kafka that is used; empty for none.
    """

    chosen: str
    kafka_names: frozenset[str]


def convert_servers(document: Document, draft: Draft) -> Servers:
    """Convert the first server of Kafka, and return which there are."""
    resolved = {
        name: document.resolve(server) for name, server in document.root.get("servers").items()
    }
    names = [
        name for name, each in resolved.items() if each.get("protocol").text in KAFKA_PROTOCOLS
    ]
    chosen = names[0] if names else ""
    if chosen:
        _convert_server(chosen, resolved[chosen], document, draft)
    else:
        servers = draft.need_variable("KAFKA_SERVERS", "HOST:PORT of some brokers, with commas")
        draft.set((*_SECTION, "servers"), servers)
        draft.comment(_SECTION, "The document names no server of Kafka.")
    for name, server in resolved.items():
        if name == chosen:
            server.omit("says nothing that the gateway needs: it is documentation", _SECTION)
        elif name in names:
            server.omit(_ONE_CLUSTER)
        else:
            server.omit(f"is no server of Kafka, but of {server.get('protocol').text or 'nothing'}")
    return Servers(chosen, frozenset(names))


def _convert_server(name: str, server: SourceValue, document: Document, draft: Draft) -> None:
    draft.comment(_SECTION, f"from server {name}")
    address = server.get("host") if server.get("host").exists else server.get("url")
    target = (*_SECTION, "servers")
    draft.set(target, _fill_variables(address.text, server.get("variables")))
    address.carry(*target)
    for variable, value in server.get("variables").items():
        if f"{{{variable}}}" in address.text:
            document.resolve(value).get("default").carry(*target)
    server.get("protocol").carry(*target)
    server.get("protocolVersion").imply("the versions of the brokers' protocol are asked for")
    if server.get("protocol").text == "kafka-secure":
        authority = draft.need_variable(
            "KAFKA_CA", "a PEM file, if the brokers' authority is not a public one", ""
        )
        draft.set((*_SECTION, "security", "tls", "ca"), authority)
    for index, scheme in enumerate(_iter_schemes(server, document)):
        if index == 0:
            _convert_scheme(scheme, draft)
        scheme.omit("the first of several schemes is used", (*_SECTION, "security"))
    _convert_registry(server.get("bindings", "kafka"), draft)


def _fill_variables(address: str, variables: SourceValue) -> str:
    """Return the brokers of an address, without a scheme, and with the defaults of variables."""
    for name, variable in variables.items():
        address = address.replace(f"{{{name}}}", variable.get("default").text)
    return re.sub(r"[\w-]+://", "", address).rstrip("/")


def _iter_schemes(server: SourceValue, document: Document) -> Iterator[SourceValue]:
    """Yield the security schemes, which version 2 names and version 3 refers to."""
    known = document.root.get("components", "securitySchemes")
    for written in server.get("security"):
        names = [name for name, _ in written.items()]
        if len(names) == 1 and known.get(names[0]).exists:
            written.get(names[0]).imply("names a scheme of components.securitySchemes")
            yield document.resolve(known.get(names[0]))
        else:
            yield document.resolve(written)


def _convert_scheme(scheme: SourceValue, draft: Draft) -> None:
    kind = scheme.get("type")
    security = (*_SECTION, "security")
    if kind.text == "X509":
        certificate = draft.need_variable("KAFKA_CERTIFICATE", "PEM file of a client certificate")
        key = draft.need_variable("KAFKA_KEY", "PEM file of its private key")
        draft.set((*security, "tls", "certificate"), certificate)
        draft.set((*security, "tls", "key"), key)
        kind.carry(*security, "tls", "certificate")
        scheme.omit("is documentation", security)
        return
    mechanism = _MECHANISMS.get(kind.text)
    if mechanism is None:
        scheme.omit(f"{kind.text or 'it'} is no scheme that is known; see kafka.security.sasl")
        return
    section = (*security, "sasl")
    draft.set((*section, "mechanism"), mechanism)
    kind.carry(*section, "mechanism")
    if mechanism == "oauthbearer":
        for option, variable, description in (
            ("tokenUrl", "KAFKA_TOKEN_URL", "the URL that issues tokens for Kafka"),
            ("clientId", "KAFKA_CLIENT_ID", "the client id for it"),
            ("clientSecret", "KAFKA_CLIENT_SECRET", "the client secret for it"),
        ):
            draft.set((*section, option), draft.need_variable(variable, description))
        token_url = scheme.get("flows", "clientCredentials", "tokenUrl")
        draft.carry(token_url, *section, "tokenUrl")
    else:
        username = draft.need_variable("KAFKA_USERNAME", "the user of the gateway in Kafka")
        password = draft.need_variable("KAFKA_PASSWORD", "its password")
        draft.set((*section, "username"), username)
        draft.set((*section, "password"), password)
    scheme.omit("is documentation", section)


def _convert_registry(binding: SourceValue, draft: Draft) -> None:
    url, vendor = binding.get("schemaRegistryUrl"), binding.get("schemaRegistryVendor")
    if not url.text:
        return
    section = ("catalogs", CATALOG)
    draft.set((*section, "type"), "schema-registry")
    is_apicurio = vendor.text == "apicurio" and "/ccompat/" not in url.text
    path = "/apis/ccompat/v7" if is_apicurio else ""
    draft.carry(url, *section, "url", value=url.text.rstrip("/") + path)
    vendor.carry(*section, "type")
