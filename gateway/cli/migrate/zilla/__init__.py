"""Convert a zilla.yaml.

Zilla has a chain of bindings from a port to Kafka. `bindings` finds the chains; `routes` converts
the bindings in them that map paths to topics, `listen` those before and `kafka` those behind.
`guards`, `catalogs` and `telemetry` convert the sections of these names. The names are those of
Zilla's JSON schemas (2.4). Start reading at `convert_zilla`.
"""

from __future__ import annotations

import re
from typing import Any

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue

from .bindings import BindingGraph
from .catalogs import convert_catalogs
from .guards import convert_guards, omit_vaults
from .kafka import ClusterConverter
from .listen import convert_listen
from .routes import RouteConverter
from .telemetry import convert_telemetry

_EXPRESSION = re.compile(r"\$\{\{\s*env\.([A-Za-z_][A-Za-z0-9_]*)\s*\}\}")


def convert_zilla(source: SourceValue, draft: Draft) -> None:
    root = SourceValue(source.report, source.loc, _convert_expressions(source.value))
    draft.carry(root.get("name"), "name")
    graph = BindingGraph(root.get("bindings"))
    graph.imply_chain()
    catalogs = convert_catalogs(root.get("catalogs"), draft)
    clusters = ClusterConverter(graph, root, draft, catalogs)
    convert_listen(graph, draft)
    routes = RouteConverter(graph, clusters, draft)
    routes.convert()
    clusters.convert()
    convert_guards(root, draft, graph, routes.guard_names)
    convert_telemetry(root.get("telemetry"), draft)
    graph.omit_others()
    omit_vaults(root)
    root.get("stores").omit("the gateway stores nothing; tokens and positions are in the clients")


def _convert_expressions(value: Any) -> Any:
    """Return values with `${{env.NAME}}` in the gateway's form, `${env.NAME}`."""
    if isinstance(value, dict):
        return {key: _convert_expressions(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_convert_expressions(item) for item in value]
    return _EXPRESSION.sub(r"${env.\1}", value) if isinstance(value, str) else value
