"""Run `gateway pipeline demo`: a shop in Kafka, Spark jobs over it, and a page with their results.

It starts a local Kafka, a generator of clicks, orders and payments, the jobs of `shop.yaml` in a
process of their own, and a gateway. All of it is temporary and ends together.
`cli` calls `run_shop_demo`.
"""

from __future__ import annotations

import re
import tempfile
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from gateway.kafka.local import LocalKafka
from gateway.pipeline.spark import spark_home
from gateway.web import demo
from gateway.web.app.app import Startup
from gateway.web.demo import build_page_url, find_free_port, open_page

from .generate import ShopTraffic
from .processes import ComponentStates, create_topics, run_jobs, send_events

SHOP_DIRECTORY = Path(__file__).parent
CONFIG = (SHOP_DIRECTORY / "shop.yaml").read_text("utf-8")
PAGES = {
    "/": SHOP_DIRECTORY / "page" / "index.html",
    "/shop.css": SHOP_DIRECTORY / "page" / "shop.css",
    "/shop.js": SHOP_DIRECTORY / "page" / "shop.js",
    "/demo.css": demo.PAGES["/demo.css"],
    "/draw.js": demo.PAGES["/draw.js"],
}


def run_shop_demo(
    *,
    host: str = "127.0.0.1",
    port: int = 8080,
    browser: bool = True,
    traffic: ShopTraffic | None = None,
) -> int:
    """Run the demo until SIGTERM or ^C, and return the exit status.

    Raises:
        PipelineError: There is no Java 17 or no Spark.
        LocalBrokerError: Kafka cannot be started.
    """
    from gateway.config import loads
    from gateway.web.app.server import serve

    spark_home.find_java()
    port = port or find_free_port(host)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gateway-shop-")))
        kafka = stack.enter_context(LocalKafka(properties={"auto.create.topics.enable": "false"}))
        create_topics(kafka.bootstrap)
        file = directory / "shop.yaml"
        file.write_text(build_config(kafka.bootstrap[0], directory, host, port), "utf-8")
        settings = loads(file.read_text("utf-8"), name=str(file))
        assert settings.pipelines is not None
        jobs = [job.name for job in settings.pipelines.jobs]
        url = build_page_url(host, port)
        states = ComponentStates(kafka.bootstrap)
        states.report_state("Kafka", "running", kafka.bootstrap[0])
        startup: list[Startup] = [
            states.run,
            partial(send_events, kafka.bootstrap, traffic or ShopTraffic(), states),
            partial(run_jobs, file, jobs, states),
        ]
        if browser:
            startup.append(partial(open_page, url))
        print(format_invitation(url), flush=True)
        return serve(settings, pages=PAGES, startup=startup)


def build_config(servers: str, directory: Path, host: str, port: int) -> str:
    values = {"KAFKA": servers, "CHECKPOINTS": str(directory / "checkpoints")}
    text = CONFIG.replace("{host: 127.0.0.1, port: 8080}", f"{{host: '{host}', port: {port}}}")
    for name, value in values.items():
        # Backslashes of Windows paths would be escapes in the replacement.
        text = re.sub(rf"\$\{{env\.{name}:[^}}]*\}}", value.replace("\\", r"\\"), text)
    return text


def format_invitation(url: str) -> str:
    return f"""
  {url}/  the page; it shows what Spark's jobs wait for (^C ends it all)

  In another terminal:
    curl -N {url}/events/visits                       # sessions as they grow and end
    curl -N '{url}/events/settled?from=earliest'      # paid and unpaid orders
    curl -N {url}/events/known                        # clicks with what is known of the user
    curl -N {url}/events/progress                     # what Spark does
"""
