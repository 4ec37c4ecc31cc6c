"""Write the configuration that `gateway run --topic` serves, and say how to keep it as a file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gateway.config import Settings

SCHEMA_MODELINE = "# yaml-language-server: $schema=gateway.schema.json"
SCHEMA_HINT = "# For completion in editors: gateway check --schema > gateway.schema.json"


def build_stream_path(topic: str) -> str:
    """Return the path of the stream of a topic."""
    return f"/events/{topic}"


def format_text(text: str) -> str:
    """Return a text as YAML, in which nothing of it has a meaning."""
    return json.dumps(text.replace("${", "${$}{"), ensure_ascii=False)


@dataclass(frozen=True)
class QuickStart:
    """What `gateway run` serves without a file: a stream of each topic.

    Attributes:
        servers: The brokers, separated by commas.
        topics: The topics, each once.
        origins: The origins whose pages may connect.
        host: The address to listen on; None for the default.
        port: The port to listen on; None for the default.
    """

    servers: str
    topics: Sequence[str]
    origins: Sequence[str] = ()
    host: str | None = None
    port: int | None = None

    def to_yaml(self) -> str:
        """Return the configuration."""
        return "\n".join(self._iter_lines()) + "\n"

    def _iter_lines(self) -> Iterator[str]:
        yield SCHEMA_MODELINE
        yield SCHEMA_HINT
        if self.host is not None or self.port is not None or self.origins:
            yield "listen:"
        if self.host is not None:
            yield f"  host: {format_text(self.host)}"
        if self.port is not None:
            yield f"  port: {self.port}"
        if self.origins:
            yield "  access-control:"
            yield "    policy: cross-origin"
            yield "    allow:"
            yield f"      origins: [{', '.join(map(format_text, self.origins))}]"
        yield "kafka:"
        yield f"  servers: {format_text(self.servers)}"
        yield f"  topics: [{', '.join(map(format_text, self.topics))}]"
        yield "routes:"
        for topic in self.topics:
            yield f"  - path: {format_text(build_stream_path(topic))}"
            yield f"    topic: {format_text(topic)}"

    def to_command(self) -> str:
        """Return the command line that prints the configuration."""
        words = ["gateway", "run", "--servers", self.servers]
        for topic in self.topics:
            words += ["--topic", topic]
        for origin in self.origins:
            words += ["--origin", origin]
        words += ["--host", self.host] if self.host is not None else []
        words += ["--port", str(self.port)] if self.port is not None else []
        return f"{shlex.join([*words, '--print-config'])} > gateway.yaml"

    def iter_notes(self, settings: Settings) -> Iterator[str]:
        """Yield what is served, how to try it and how to keep it, as lines.

        Args:
            settings: The settings that this configuration was loaded as.
        """
        listen = settings.listen
        host = "localhost" if listen.host in ("0.0.0.0", "::") else listen.host
        address = f"[{host}]" if ":" in host else host
        scheme = "http" if listen.tls is None else "https"
        base = f"{scheme}://{address}:{listen.port}" if listen.port else ""
        for topic in self.topics:
            yield f"topic {topic}: {base}{build_stream_path(topic)}"
        if base:
            yield f"to see records: curl -N {base}{build_stream_path(self.topics[0])}"
        yield f"to keep this as a file: {self.to_command()}"
