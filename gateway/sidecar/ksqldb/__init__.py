"""Query ksqlDB for clients, and deliver the rows of configured queries to a back end.

Start with `component`, which has the route and runs the configured queries. `client` speaks to a
ksqlDB server, `rows` parses its answers, and `push` keeps a configured query running and hands its
rows to the back end.
"""

from .component import KsqldbComponent

__all__ = ["KsqldbComponent"]
