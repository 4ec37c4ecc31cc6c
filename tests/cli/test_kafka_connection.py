"""Commands say why they cannot connect to a Kafka, and which of their options to correct."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from support.certificates import CertificateAuthority
from support.commands import run_command
from support.fork_server import run_forked

from gateway.cli.kafka_connection import KafkaSource, find_connection_error


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


async def test_servers_of_the_command_line_are_named_as_their_option(tls_server, tmp_path):
    """`kafka.servers` was to be corrected, in a file that does not exist."""
    assert "correct --servers" in await explain(KafkaSource(None, ["127.0.0.1:1"]), "a")
    file = write_clusters(tmp_path, tls_server)
    assert "correct --servers" in await explain(KafkaSource(file, ["127.0.0.1:1"]), "b")
    assert "in a file for --config" in await explain(KafkaSource(None, [tls_server]), "a")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, as the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", ["topics", "produce"])
async def test_every_command_says_why_in_one_line(command: str, http_server: str, folder: Path):
    """`produce` and `tail` had one vague sentence for every cause."""
    result = await run_command(command, "orders", "--servers", http_server)
    check_http_server(result.exit_code, result.output)


@pytest.mark.needs("process")
async def test_tail_says_why_in_one_line(http_server: str, tmp_path: Path):
    done = await asyncio.to_thread(run_forked, "tail", "orders", "--servers", http_server)
    check_http_server(done.returncode, (done.stdout + done.stderr).decode())
    file = write_config_without_certificates(tmp_path)
    done = await asyncio.to_thread(run_forked, "tail", "a", directory=tmp_path)
    check_certificates(file, done.returncode, (done.stdout + done.stderr).decode())


def check_http_server(code: int, output: str) -> None:
    assert (code, output.count("\n")) == (1, 1), output
    assert "is an HTTP server and not Kafka; correct --servers" in output


@pytest.mark.parametrize("command", ["topics", "produce"])
async def test_a_file_without_certificates_is_named(command: str, folder: Path):
    """OpenSSL's own words and the line of its source were shown."""
    file = write_config_without_certificates(folder)
    result = await run_command(command, "a")
    check_certificates(file, result.exit_code, result.output)


def write_config_without_certificates(folder: Path) -> Path:
    file = folder / "gateway.yaml"
    tls = f"security: {{tls: {{ca: {file}}}}}"
    file.write_text(f"kafka: {{servers: ['127.0.0.1:1'], topics: [a], {tls}}}\n")
    return file


def check_certificates(file: Path, code: int, output: str) -> None:
    assert code == 78 and f"{file}: it has no certificates" in output, output
    assert "_ssl.c" not in output and "kafka.security.tls.ca: file" in output, output
