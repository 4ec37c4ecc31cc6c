"""Real proxies in front of gateways, by the files of deploy/proxies.

Each runs its file as it is, but for the ports and paths of the test, and for what a test breaks on
purpose.
"""

from __future__ import annotations

import asyncio
import base64
import getpass
import hashlib
import os
import shutil
import signal
import socket
import ssl
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import ClassVar

import httpx
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from support.certificates import CertificateAuthority
from support.ports import find_free_port
from support.waiting import wait_until

PROXIES = Path(__file__).parents[2] / "deploy" / "proxies"
PORT_OF_FILES = "8443"
PORT_OF_GATEWAY = "8080"


class Proxy(ABC):
    """A proxy in front of gateways, for a test.

    url:       where browsers ask it, https://localhost:PORT.
    authority: who signed its certificate.
    """

    NAME: ClassVar[str]
    FILE: ClassVar[str]
    SPEAKS_HTTP3: ClassVar[bool] = False

    def __init__(
        self, folder: Path, ports: Sequence[int], changes: Mapping[str, str], port: int
    ) -> None:
        self.port = port
        self.url = f"https://localhost:{port}"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.authority = CertificateAuthority(folder)
        self._write_certificate(folder)
        text = self.set_gateways((PROXIES / self.FILE).read_text(), ports)
        text = text.replace(PORT_OF_FILES, str(self.port))
        for old, new in changes.items():
            assert old in text, f"{old!r} is not in {self.FILE}"
            text = text.replace(old, new)
        self._path = folder / self.FILE
        self.write_files(text)
        self._process: asyncio.subprocess.Process | None = None

    def create_http_client(
        self, *, http2: bool = True, local_address: str | None = None
    ) -> httpx.AsyncClient:
        """A client that trusts its certificate. local_address: where it connects from."""
        transport = httpx.AsyncHTTPTransport(
            verify=self.create_client_context(),
            http2=http2,
            local_address=local_address,
            limits=httpx.Limits(max_connections=None),  # each stream takes one over HTTP/1.1
        )
        return httpx.AsyncClient(base_url=self.url, transport=transport, timeout=60.0)

    def create_client_context(self) -> ssl.SSLContext:
        return self.authority.create_client_context()

    @property
    def key_digest(self) -> str:
        """Of the public key of its certificate, as browsers pin it: base64 of SHA-256."""
        certificate = x509.load_pem_x509_certificate((self._folder / "gateway.crt").read_bytes())
        key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
        return base64.b64encode(hashlib.sha256(key).digest()).decode()

    @property
    def log(self) -> str:
        return (self._folder / "log").read_text(errors="replace")

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    async def start(self) -> None:
        environment = {**os.environ, "HOME": str(self._folder)}
        environment |= {"XDG_DATA_HOME": str(self._folder), "XDG_CONFIG_HOME": str(self._folder)}
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.build_command(),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._folder,
                env=environment,
                start_new_session=True,
            )
        await wait_until(self._answers, lambda: f"{self.NAME} does not listen: {self.log}")

    async def stop(self) -> None:
        if self._process is not None:
            if self._process.returncode is None:
                os.killpg(self._process.pid, signal.SIGKILL)
            await self._process.wait()

    @abstractmethod
    async def reload(self) -> None:
        """Have it read its file again, as an operator does."""

    @abstractmethod
    def build_command(self) -> Sequence[str]: ...

    @abstractmethod
    def set_gateways(self, text: str, ports: Sequence[int]) -> str:
        """The file with these gateways in place of the one that it has."""

    def write_files(self, text: str) -> None:
        self._path.write_text(text)

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.returncode is None, f"{self.NAME} ended: {self.log}"
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def _write_certificate(self, folder: Path) -> None:
        key, begin, certificate = (
            self.authority.issue_certificate("localhost")
            .read_text()
            .partition("-----BEGIN CERTIFICATE-----")
        )
        (folder / "gateway.key").write_text(key)
        (folder / "gateway.crt").write_text(begin + certificate)

    def _repeat_line(self, text: str, ports: Sequence[int], address: str = "127.0.0.1:{}") -> str:
        """The line of the gateway once for each; `gateway1` in it is the name of the first."""
        made = []
        for line in text.splitlines():
            if address.format(PORT_OF_GATEWAY) not in line:
                made.append(line)
                continue
            for number, port in enumerate(ports, 1):
                one = line.replace(PORT_OF_GATEWAY, str(port))
                made.append(one.replace("gateway1", f"gateway{number}"))
        return "\n".join(made) + "\n"


class Nginx(Proxy):
    NAME = "nginx"
    FILE = "nginx.conf"

    def build_command(self) -> Sequence[str]:
        command = shutil.which("nginx") or "/usr/sbin/nginx"
        return command, "-p", str(self._folder), "-c", str(self._folder / "main.conf")

    def set_gateways(self, text: str, ports: Sequence[int]) -> str:
        return self._repeat_line(text, ports)

    def write_files(self, text: str) -> None:
        super().write_files(text)
        kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        temporary = "".join(f"{kind}_temp_path {self._folder}/{kind};\n" for kind in kinds)
        (self._folder / "main.conf").write_text(
            f"daemon off;\nuser {getpass.getuser()};\n"
            "worker_processes 1;\nworker_rlimit_nofile 20000;\n"
            f"pid {self._folder}/pid;\nerror_log stderr notice;\n"
            "events { worker_connections 10000; }\n"
            "http {\nlog_format connections '$connection $server_protocol $request_uri';\n"
            f"access_log {self._folder}/access.log connections;\n"
            f"{temporary}include {self._folder}/{self.FILE};\n}}\n"
        )

    async def reload(self) -> None:
        before = self.log.count("start worker process ")
        os.kill(self.pid, signal.SIGHUP)
        await wait_until(lambda: self.log.count("start worker process ") > before, lambda: self.log)


class Caddy(Proxy):
    NAME = "caddy"
    FILE = "Caddyfile"
    SPEAKS_HTTP3 = True

    def build_command(self) -> Sequence[str]:
        return "caddy", "run", "--config", str(self._path), "--adapter", "caddyfile"

    def set_gateways(self, text: str, ports: Sequence[int]) -> str:
        text = text.replace(
            f"127.0.0.1:{PORT_OF_GATEWAY}", " ".join(f"127.0.0.1:{port}" for port in ports)
        )
        # Its admin API is how it reloads, at a port that all Caddies of a machine share.
        return text.replace("auto_https", f"admin {self._admin}\n\tauto_https", 1)

    @property
    def _admin(self) -> str:
        return f"unix/{self._folder}/admin.sock"

    async def reload(self) -> None:
        process = await asyncio.create_subprocess_exec(
            "caddy", "reload", "--force", "--config", str(self._path), "--adapter", "caddyfile",
            "--address", self._admin, stderr=asyncio.subprocess.PIPE, cwd=self._folder,
        )  # fmt: skip
        _, stderr = await process.communicate()
        assert process.returncode == 0, stderr.decode()


class HaProxy(Proxy):
    NAME = "haproxy"
    FILE = "haproxy.cfg"

    def build_command(self) -> Sequence[str]:
        command = shutil.which("haproxy") or "/usr/sbin/haproxy"
        return command, "-W", "-f", str(self._path)

    def set_gateways(self, text: str, ports: Sequence[int]) -> str:
        return self._repeat_line(text, ports)

    async def reload(self) -> None:
        before = self.log.count("Loading success")
        os.kill(self.pid, signal.SIGUSR2)
        await wait_until(lambda: self.log.count("Loading success") > before, lambda: self.log)


class Envoy(Proxy):
    NAME = "envoy"
    FILE = "envoy.yaml"
    SPEAKS_HTTP3 = True

    def build_command(self) -> Sequence[str]:
        beside = Path(sys.executable).parent / "envoy"
        command = str(beside) if beside.exists() else "envoy"
        # Envoys of one machine share memory by this number, if they are told to restart hot.
        return command, "-c", str(self._path), "--disable-hot-restart", "--concurrency", "1"

    def set_gateways(self, text: str, ports: Sequence[int]) -> str:
        return self._repeat_line(text, ports, "address: 127.0.0.1, port_value: {}")

    async def reload(self) -> None:
        """A new process: a file that it reads at its start is not read again."""
        await self.stop()
        await self.start()


ALL_PROXIES: Sequence[type[Proxy]] = (Nginx, Caddy, HaProxy, Envoy)


@asynccontextmanager
async def running_proxy(
    kind: type[Proxy], folder: Path, *ports: int, changes: Mapping[str, str] | None = None
) -> AsyncIterator[Proxy]:
    """A proxy in front of the gateways of these ports, ended with the block.

    changes: what is replaced in its file by what, after ports and paths.
    """
    proxy = kind(folder, ports, changes or {}, find_free_port())
    try:
        await proxy.start()
        yield proxy
    finally:
        await proxy.stop()
