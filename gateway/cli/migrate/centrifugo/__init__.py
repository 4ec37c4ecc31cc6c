"""Convert a configuration of Centrifugo 6, in JSON, YAML or TOML.

Centrifugo's consumers read Kafka and publish into channels; here clients read the topics, and a
channel is a path whose filter matches the records of that channel. `consumers` converts the
consumers to topics, `access` the tokens to guards, `channels` the namespaces to routes, and
`server` the rest. Facts are from Centrifugo's types of options (6.9). Start reading at
`convert_centrifugo`.
"""

from __future__ import annotations

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import escape_texts

from .access import convert_access
from .channels import ChannelConverter
from .consumers import convert_consumers
from .server import convert_client_limits, convert_server, omit_services


def convert_centrifugo(source: SourceValue, draft: Draft) -> None:
    """Fill a draft with what a configuration of Centrifugo says."""
    root = SourceValue(source.report, source.loc, escape_texts(source.value))
    convert_server(root, draft)
    topics = convert_consumers(root.get("consumers"), draft)
    access = convert_access(root.get("client"), draft)
    if topics:
        ChannelConverter(root, draft, topics, access).convert()
    convert_client_limits(root.get("client"), draft)
    omit_services(root)
