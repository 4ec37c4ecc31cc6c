"""Run the gateway without its counters: `python -m bench.uncounted_gateway run -c FILE`.

Deliveries, their latencies and their bytes are not counted; nothing else is changed. The timestamp
that goes along with each event remains.
"""

from __future__ import annotations

import runpy
from typing import Any

from gateway.core.client.shared_cursor import SharedCursor
from gateway.hub.fanout.broadcaster import Audience
from gateway.telemetry.counts import BrokerRequestCounts
from gateway.telemetry.traffic import StreamCounts


def do_nothing(*_: Any, **__: Any) -> None: ...


def main() -> None:
    StreamCounts.count_sent = StreamCounts.count_gaps = do_nothing  # type: ignore[method-assign, assignment]
    Audience._note_writes = Audience.count_round = do_nothing  # type: ignore[method-assign, assignment]
    SharedCursor.count_sent = do_nothing  # type: ignore[method-assign, assignment]
    BrokerRequestCounts.observe_response = do_nothing  # type: ignore[method-assign, assignment]
    runpy.run_module("gateway", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
