"""A real Prometheus that scrapes what a test runs, and evaluates the rules of deploy/prometheus.

with running_prometheus(directory) as prometheus:
    with prometheus.scraping("gateway", gateway.base_url):
        await prometheus.wait_until_firing("GatewayKafkaUnreachable")

It scrapes and evaluates once per second. In its rules, windows of minutes are of `WINDOW`, and an
alert fires after `HOLD` in place of its `for`.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
from support.promql import RULE_FILES
from support.waiting import wait_until

WINDOW, HOLD = "5s", "1s"
START_TIMEOUT_S = 60.0
CONFIG = {
    "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
    "rule_files": ["recording.yaml", "alerts.yaml"],
    "scrape_configs": [
        {
            "job_name": "tested",
            "file_sd_configs": [{"files": ["targets.json"], "refresh_interval": "1s"}],
        }
    ],
}


def quicken_rules(text: str) -> str:
    """Rules that answer within seconds: their windows of minutes and their patience are cut."""
    return re.sub(r"\bfor: \w+", f"for: {HOLD}", re.sub(r"\[(?:5|10)m\]", f"[{WINDOW}]", text))


class PrometheusServer:
    """The server's API, and the targets that it scrapes."""

    def __init__(self, directory: Path, base_url: str) -> None:
        self._targets = directory / "targets.json"
        self._entries: list[Mapping[str, Any]] = []
        self._http = httpx.Client(base_url=base_url, trust_env=False, timeout=30)

    @contextmanager
    def scraping(self, job: str, base_url: str, *, every_s: int = 1) -> Iterator[str]:
        """Scrape a server within the block. The name of its instance is yielded.

        every_s: The seconds from one scrape to the next, and for its answer.
        """
        address = urlsplit(base_url).netloc
        labels = {"job": job, "__scrape_interval__": f"{every_s}s",
                  "__scrape_timeout__": f"{every_s}s"}  # fmt: skip
        entry = {"targets": [address], "labels": labels}
        self._write_targets([*self._entries, entry])
        try:
            yield address
        finally:
            self._write_targets([each for each in self._entries if each is not entry])

    def query(self, expression: str) -> list[dict[str, Any]]:
        """The samples of an expression now."""
        answer = self._http.get("/api/v1/query", params={"query": expression}).json()
        assert answer["status"] == "success", f"{expression}: {answer}"
        data = answer["data"]
        return [data["result"]] if data["resultType"] == "scalar" else data["result"]

    def list_firing(self, name: str, instance: str) -> list[dict[str, Any]]:
        """The alerts of a name that fire, with `labels` and `annotations`."""
        alerts = self._http.get("/api/v1/alerts").json()["data"]["alerts"]
        return [
            each
            for each in alerts
            if each["state"] == "firing"
            and each["labels"]["alertname"] == name
            and each["labels"].get("instance", instance) == instance
        ]

    async def wait_until_firing(self, name: str, instance: str) -> Mapping[str, Any]:
        """The alert, once it fires."""
        await wait_until(
            lambda: self.list_firing(name, instance),
            lambda: f"{name} fires: {self._describe(name)}",
            interval_s=0.25,
        )
        return self.list_firing(name, instance)[0]

    async def wait_until_resolved(self, name: str, instance: str) -> None:
        await wait_until(
            lambda: not self.list_firing(name, instance), f"{name} is over", interval_s=0.25
        )

    async def wait_until_scraped(self, instance: str) -> None:
        """Until the counters of a target have values from before what is about to happen."""
        await wait_until(
            lambda: self.query(f'count_over_time(up{{instance="{instance}"}}[1m]) > 2'),
            "the first scrapes",
            interval_s=0.25,
        )

    def close(self) -> None:
        self._http.close()

    def is_ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.HTTPError:
            return False

    def _write_targets(self, entries: list[Mapping[str, Any]]) -> None:
        self._entries = entries
        new = self._targets.with_suffix(".new")
        new.write_text(json.dumps(entries))
        new.replace(self._targets)

    def _describe(self, name: str) -> str:
        rules = self._http.get("/api/v1/rules").json()["data"]["groups"]
        return str([each for group in rules for each in group["rules"] if each["name"] == name])


@contextmanager
def running_prometheus(directory: Path) -> Iterator[PrometheusServer]:
    """A Prometheus on a port of the OS, ended with the block."""
    for path in RULE_FILES:
        (directory / path.name).write_text(quicken_rules(path.read_text()))
    (directory / "targets.json").write_text("[]")
    (directory / "prometheus.yml").write_text(json.dumps(CONFIG))
    with socket.socket() as free:  # it cannot say which port it chose itself
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={directory / 'prometheus.yml'}",
                f"--storage.tsdb.path={directory / 'data'}",
                f"--web.listen-address={address}",
                "--log.level=warn",
            ],
            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
        )  # fmt: skip
    server = PrometheusServer(directory, f"http://{address}")
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not server.is_ready():
            assert process.poll() is None, (directory / "log").read_text()
            assert time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.1)
        yield server
    finally:
        server.close()
        process.kill()
        process.wait()
        shutil.rmtree(directory / "data", ignore_errors=True)
