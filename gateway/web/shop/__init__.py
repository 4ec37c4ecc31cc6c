"""`gateway pipeline demo`: a shop in Kafka, Spark jobs over it, and a page that shows the rows.

A local Kafka, a Redis, someone who clicks, orders and pays, the jobs of `shop.yaml` in a process
of their own, and a gateway. All of it is temporary and ends together.
"""

from __future__ import annotations

import asyncio
import re
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from gateway.kafka.local import LocalKafka
from gateway.pipeline.generate import Traffic
from gateway.pipeline.spark import java
from gateway.web.app.app import Startup
from gateway.web.demo import free_port, open_page, page_url

from .jobs import jobs
from .parts import Parts
from .redis import redis
from .send import create_topics, send

HERE = Path(__file__).parent
CONFIG = (HERE / "shop.yaml").read_text("utf-8")
PAGES = {
    "/": HERE / "page" / "index.html",
    "/shop.css": HERE / "page" / "shop.css",
    "/shop.js": HERE / "page" / "shop.js",
    "/demo.css": HERE.parent / "demo" / "page" / "demo.css",
}


def shop(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    browser: bool = True,
    traffic: Traffic | None = None,
) -> int:
    """Run until SIGTERM or ^C. port 0: any free one. The exit status.

    Raises PipelineError without Java 17 or Spark, LocalBrokerError where Kafka cannot start.
    """
    from gateway.config import loads
    from gateway.web.app.server import serve

    java.found()
    port = port or free_port(host)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-shop-")))
        server = stack.enter_context(redis(directory))
        kafka = stack.enter_context(LocalKafka(properties={"auto.create.topics.enable": "false"}))
        create_topics(kafka.bootstrap)
        file = directory / "shop.yaml"
        file.write_text(config(kafka.bootstrap[0], server.url, directory, host, port), "utf-8")
        url = page_url(host, port)
        parts = Parts(kafka.bootstrap)
        startup: list[Startup] = [
            parts.run,
            partial(_told, parts, server.name, kafka.bootstrap[0]),
            partial(send, kafka.bootstrap, traffic or Traffic(), parts),
            partial(jobs, file, parts),
        ]
        if browser:
            startup.append(partial(open_page, url))
        print(invitation(url), flush=True)
        settings = loads(file.read_text("utf-8"), name=str(file))
        return serve(settings, pages=PAGES, startup=startup)


async def _told(parts: Parts, redis: str, servers: str) -> None:
    parts.tell("Kafka", "running", servers)
    parts.tell("Redis", "running", redis)
    await asyncio.Event().wait()


def config(servers: str, redis: str, directory: Path, host: str, port: int) -> str:
    """`CONFIG` for one run."""
    given = {"KAFKA": servers, "REDIS": redis, "CHECKPOINTS": str(directory / "checkpoints")}
    text = CONFIG.replace("{host: 127.0.0.1, port: 8080}", f"{{host: '{host}', port: {port}}}")
    for name, value in given.items():
        text = re.sub(rf"\$\{{env\.{name}:[^}}]*\}}", value.replace("\\", r"\\"), text)
    return text


def invitation(url: str) -> str:
    """What the terminal says."""
    return f"""
  {url}/  the page; Spark's jobs begin in some 20 s (^C ends it all)

  In another terminal:
    curl -N {url}/events/visits                       # sessions as they grow and end
    curl -N '{url}/events/settled?from=earliest'      # paid and unpaid orders
    curl -N {url}/events/known                        # clicks with what Redis knows
    curl -N {url}/events/progress                     # what Spark does
"""
