"""Commands say why they cannot connect to a Kafka, and which of their options to correct."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.certificates import CertificateAuthority

from gateway.cli.kafka_connection import find_connection_error
from gateway.cli.options import KafkaSource


async def answer_as_http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
        await reader.readexactly(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
    writer.close()


@contextlib.asynccontextmanager
async def running_http_server(context: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    server = await asyncio.start_server(answer_as_http, "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.fixture
async def http_server() -> AsyncIterator[str]:
    async with running_http_server() as address:
        yield address


@pytest.fixture
async def tls_server(tmp_path: Path) -> AsyncIterator[str]:
    pem = CertificateAuthority(tmp_path).issue_certificate("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    async with running_http_server(context) as address:
        yield address


async def explain(source: KafkaSource, *topics: str) -> str:
    error = await find_connection_error(source, topics, "topics")
    assert error is not None
    return str(error)


def write_clusters(folder: Path, server: str) -> Path:
    ca = CertificateAuthority(folder, "another").certificate_path
    file = folder / "gateway.yaml"
    file.write_text(
        f"kafka:\n  east: {{servers: ['{server}'], topics: [a], security: {{tls: {{ca: {ca}}}}}}}\n"
        "  west: {servers: ['127.0.0.1:1'], topics: [b]}\n"
    )
    return file


async def test_options_of_a_file_are_named_by_their_cluster(tls_server: str, tmp_path: Path):
    """The name of a logger was taken for that of the cluster: kafka.gateway.kafka.security."""
    file = write_clusters(tmp_path, tls_server)
    assert "correct kafka.east.security.tls.ca" in await explain(KafkaSource(file, None), "a")
    assert "correct kafka.west.servers" in await explain(KafkaSource(file, None), "b")


async def test_servers_of_the_command_line_are_named_as_their_option(
    tls_server: str, tmp_path: Path
):
    """`kafka.servers` was to be corrected, in a file that does not exist."""
    assert "correct --servers" in await explain(KafkaSource(None, ["127.0.0.1:1"]), "a")
    file = write_clusters(tmp_path, tls_server)
    assert "correct --servers" in await explain(KafkaSource(file, ["127.0.0.1:1"]), "b")
    assert "in a file for --config" in await explain(KafkaSource(None, [tls_server]), "a")


async def run(folder: Path, *arguments: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "gateway", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT, cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode()


@pytest.mark.parametrize("command", ["topics", "produce", "tail"])
async def test_every_command_says_why_in_one_line(command: str, http_server: str, tmp_path: Path):
    """`produce` and `tail` had one vague sentence for every cause."""
    code, out = await run(tmp_path, command, "orders", "--servers", http_server)
    assert (code, out.count("\n")) == (1, 1), out
    assert "is an HTTP server and not Kafka; correct --servers" in out


@pytest.mark.parametrize("command", ["topics", "produce", "tail"])
async def test_a_file_without_certificates_is_named(command: str, tmp_path: Path):
    """OpenSSL's own words and the line of its source were shown."""
    file = tmp_path / "gateway.yaml"
    tls = f"security: {{tls: {{ca: {file}}}}}"
    file.write_text(f"kafka: {{servers: ['127.0.0.1:1'], topics: [a], {tls}}}\n")
    code, out = await run(tmp_path, command, "a")
    assert code == 78 and f"{file}: it has no certificates" in out and "_ssl.c" not in out, out
    assert "kafka.security.tls.ca: file" in out
