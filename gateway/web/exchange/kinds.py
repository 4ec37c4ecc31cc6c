"""List what responds to the requests of each capability."""

from __future__ import annotations

from gateway.config import FetchWith, ProduceWith, With

from .exchange import Exchange
from .fetch import FetchExchange
from .reply import ProduceExchange

EXCHANGES: dict[type[With], Exchange] = {
    FetchWith: FetchExchange(),
    ProduceWith: ProduceExchange(),
}
"""All exchanges, by the options of their capability. Streams are none: see `web.streams`."""


def get_exchange(with_: With) -> Exchange:
    return EXCHANGES[type(with_)]
