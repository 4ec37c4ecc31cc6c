"""Convert the server, limits and telemetry of Centrifugo, and report its other services."""

from __future__ import annotations

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import convert_duration, settle

from .consumers import carry_file

DEFAULT_PORT = 8000
_LISTEN = ("listen",)
_OWN_PATHS = "paths are those of routes; clients change to them anyway"
_ALWAYS_ON = "every stream is served as Server-Sent Events, NDJSON and WebSocket"
_SIZES = "clients send little; the body of a record may have what the topic allows"
_NO_COUNTERPART = "has no counterpart here"
_ENDS_WITH_TOKEN = "a stream ends with its token; `challenge` says when a new one is asked for"
_LEVELS = {
    "trace": "debug", "debug": "debug", "info": "info", "warn": "warning", "error": "error",
    "fatal": "error", "none": "error",
}  # fmt: skip
_SERVER_REASONS = {
    "internal_address": "operators have the section `admin`, with a host and port of its own",
    "internal_port": "operators have the section `admin`, with a host and port of its own",
    "internal_tls": "operators have the section `admin`, which listens on this machine",
    "tls_autocert": "let a proxy such as Caddy get certificates, or name PEM files in listen.tls",
    "tls_external": "listen.tls is for the port of clients only",
    "http3": "the gateway speaks HTTP/1.1 and WebSocket; let a proxy in front speak HTTP/3",
    "h2c_external": "the gateway speaks HTTP/1.1 and WebSocket; let a proxy in front speak HTTP/2",
}
_TRANSPORTS = ("websocket", "sse", "http_stream", "uni_sse", "uni_http_stream", "uni_websocket")
_TRANSPORT_REASONS = {
    "handler_prefix": _OWN_PATHS,
    "disabled": "every stream is a WebSocket too",
    "compression_min_size": "messages are compressed once for all clients, whatever their size",
    "compression_level": "messages are compressed once for all clients",
    "read_buffer_size": _SIZES,
    "use_write_buffer_pool": "is about buffers of Centrifugo",
    "write_buffer_size": "is about buffers of Centrifugo",
    "write_timeout": "a client that takes nothing for 60 s is disconnected",
    "message_size_limit": _SIZES,
    "decompressed_message_size_limit": _SIZES,
    "max_request_body_size": _SIZES,
    "ping_interval": "`heartbeat` of routes is how often something is written to an idle stream",
    "pong_timeout": "a client that takes nothing for 60 s is disconnected",
    "connect_code_to_http_response": "responses are problems (RFC 9457) with statuses of HTTP",
    "join_push_messages": "what waits for a client is written at once",
    "join_messages": "what waits for a client is written at once",
}
_CLIENT_REASONS = {
    "pong_timeout": "a client that takes nothing for 60 s is disconnected",
    "disallow_anonymous_connection_tokens": "a token without `sub` has no identity, and is refused "
    "where a filter needs one",
    "expired_close_delay": _ENDS_WITH_TOKEN,
    "expired_sub_close_delay": _ENDS_WITH_TOKEN,
    "stale_close_delay": "a request without credentials is refused at once",
    "channel_limit": "a WebSocket has up to 100 streams",
    "queue_max_size": "what waits for a slow client is bound by `memory`; see slowClient of routes",
    "presence_update_interval": "there is no presence",
    "concurrency": "has no counterpart: clients of one process share an event loop",
    "channel_position_check_delay": "positions are exact, and gaps are sent",
    "channel_position_max_time_lag": "positions are exact, and gaps are sent",
    "connection_rate_limit": "listen.limits.rate is for each address, such as 20/s",
    "connect_include_server_time": _NO_COUNTERPART,
    "history_max_publication_limit": "a client may read as far back as `history` of its route",
    "recovery_max_publication_limit": "a client may read as far back as `history` of its route",
    "insecure_skip_token_signature_verify": "signatures are always verified",
    "user_id_http_header": "use a guard of type jwt, http or x509 for what a proxy knows",
    "connect_code_to_unidirectional_disconnect": _NO_COUNTERPART,
    "proxy": "use a guard of type http",
    "subscription_token": "there are no tokens of clients",
    "subscribe_to_user_personal_channel": "no topic is consumed",
}
_SERVICE_REASONS = {
    "engine": "gateways share nothing; each reads Kafka itself",
    "broker": "gateways share nothing; each reads Kafka itself",
    "presence_manager": "there is no presence; keep Centrifugo for it",
    "map_broker": "for the latest record of each key use mode: snapshot",
    "controller": "gateways share nothing; each reads Kafka itself",
    "shared_poll": "streams come from topics only; write to one",
    "rpc": "use capability: produce with replyTo: a service behind Kafka replies",
    "proxies": "use a guard of type http, or capability: produce with replyTo",
    "http_api": "write to the topic; there is no other way to publish. The admin API disconnects",
    "grpc_api": "write to the topic; there is no other way to publish. The admin API disconnects",
    "admin": "add the section `admin`: an API to list and disconnect clients",
    "swagger": "GET / and /asyncapi.json describe the routes",
    "debug": "telemetry.logs.levels has detail by component",
    "init": _NO_COUNTERPART,
    "emulation": "Server-Sent Events need no emulation; clients write by POST",
    "graphite": "use telemetry.metrics: Prometheus, OTLP or InfluxDB",
    "opentelemetry": "set telemetry.traces.otlp to the collector",
    "usage_stats": "no statistics are sent",
    "webtransport": "use WebSocket or Server-Sent Events",
    "uni_grpc": "use WebSocket or Server-Sent Events",
    "pid_file": "let systemd or Kubernetes know the process",
    "enable_unreleased_features": _NO_COUNTERPART,
    "node": _NO_COUNTERPART,
    "channel": "no topic is consumed, so there are no channels",
}


def convert_server(root: SourceValue, draft: Draft) -> None:
    """Convert the address, TLS, logs and metrics."""
    server = root.get("http_server")
    address, port = server.get("address"), server.get("port")
    draft.set((*_LISTEN, "host"), address.text or "0.0.0.0")
    if not address.text:
        comment = "Centrifugo's default: all addresses. 127.0.0.1 is this machine only"
        draft.comment((*_LISTEN, "host"), comment)
    address.carry(*_LISTEN, "host")
    draft.set((*_LISTEN, "port"), int(port.text) if port.text.isdecimal() else DEFAULT_PORT)
    if port.text.isdecimal():
        port.carry(*_LISTEN, "port")
    port.omit(f"is no number; the port is {DEFAULT_PORT}, Centrifugo's default")
    _convert_tls(server.get("tls"), draft)
    settle(server, _SERVER_REASONS)
    compression = root.get("websocket", "compression")
    draft.carry(compression, *_LISTEN, "websocket", "compression")
    timeout = root.get("shutdown", "timeout")
    duration = convert_duration(timeout.text)
    if duration is not None:
        draft.carry(timeout, *_LISTEN, "drainTimeout", value=duration)
    draft.carry(root.get("node", "name"), "name")
    level = root.get("log", "level")
    if level.text in _LEVELS:
        draft.carry(level, "telemetry", "logs", "level", value=_LEVELS[level.text])
    root.get("log", "file").omit("logs go to standard error; let the service manager keep them")
    _convert_metrics(root.get("prometheus"), draft)
    health = root.get("health")
    health.get("enabled").imply("/health/live and /health/ready are always there")
    health.get("handler_prefix").omit("health is at /health/live and /health/ready")
    for name in _TRANSPORTS:
        root.get(name, "enabled").imply(_ALWAYS_ON)
        settle(root.get(name), _TRANSPORT_REASONS)


def convert_client_limits(client: SourceValue, draft: Draft) -> None:
    """Convert the limits and pings of clients, and report its other options."""
    for name, option in (
        ("connection_limit", "connections"),
        ("user_connection_limit", "perIdentity"),
    ):
        limit = client.get(name)
        if isinstance(limit.value, int) and limit.value > 0:
            draft.carry(limit, *_LISTEN, "limits", option)
        limit.imply("there is no limit")
    interval = client.get("ping_interval")
    heartbeat = convert_duration(interval.text)
    streams = [
        index
        for index, route in enumerate(draft.get(("routes",)) or ())
        if route.get("capability") != "produce"
    ]
    for index in streams if heartbeat is not None else ():
        draft.set(("routes", index, "heartbeat"), heartbeat)
        interval.carry("routes", index, "heartbeat")
    interval.omit("`heartbeat` of routes is how often something is written to an idle stream")
    settle(client, _CLIENT_REASONS)


def omit_services(root: SourceValue) -> None:
    """Report what Centrifugo does besides."""
    settle(root, _SERVICE_REASONS)


def _convert_tls(tls: SourceValue, draft: Draft) -> None:
    if tls.get("enabled").value is not True:
        tls.get("enabled").imply("is off, as here")
        tls.omit("is not enabled")
        return
    section = (*_LISTEN, "tls")
    files = (
        ("cert_pem", "certificate", "LISTEN_CERTIFICATE", "PEM file of the certificate chain"),
        ("key_pem", "key", "LISTEN_KEY", "PEM file of its private key"),
        ("client_ca_pem", "ca", "LISTEN_CA", "PEM file of the certificate authorities of clients"),
    )
    for name, option, variable, description in files:
        if name != "client_ca_pem" and not tls.get(name).exists:
            draft.set((*section, option), draft.need_variable(variable, description))
        carry_file(tls.get(name), (*section, option), variable, description, draft)
    if tls.get("client_ca_pem").exists:
        draft.set((*section, "mutual"), "required")
    tls.get("enabled").carry(*section)
    for name in ("server_ca_pem", "insecure_skip_verify", "server_name"):
        tls.get(name).omit("is for clients, and this is a server", section)


def _convert_metrics(prometheus: SourceValue, draft: Draft) -> None:
    target = ("telemetry", "metrics", "prometheus")
    enabled = prometheus.get("enabled")
    if enabled.value is True:
        draft.set(target, "/metrics")
        enabled.carry(*target)
        draft.carry(prometheus.get("handler_prefix"), *target)
    enabled.imply("metrics are served at /metrics unless telemetry.metrics.prometheus is null")
    reason = "metrics have the gateway's own names and buckets"
    prometheus.omit(reason)
