"""Convert an AsyncAPI document, version 2 or 3.

`document` follows references and reads both versions as the same channels. `servers` converts the
server of Kafka, `messages` how values and keys are encoded, and `channels` the channels to routes.
Start reading at `convert_asyncapi`.
"""

from __future__ import annotations

from gateway.cli.migrate.draft import Draft
from gateway.cli.migrate.report import SourceValue
from gateway.cli.migrate.settle import escape_texts
from gateway.errors import GatewayError

from .channels import convert_channels
from .document import Document
from .servers import convert_servers

DOCUMENTATION = "is documentation; the gateway serves its own AsyncAPI document at /asyncapi.json"
NO_GUARDS = (
    "No route has a guard: add `guards`, and `guarded` to the routes, before other machines can "
    "connect (listen.host)."
)


def convert_asyncapi(source: SourceValue, draft: Draft) -> None:
    """Fill a draft with what an AsyncAPI document says.

    Raises:
        GatewayError: It has another version than 2 or 3.
    """
    root = SourceValue(source.report, source.loc, escape_texts(source.value))
    version = root.get("asyncapi").text
    if version.split(".")[0] not in ("2", "3"):
        raise GatewayError(
            f"{source.report.source.name} is AsyncAPI {version or 'of no version'}; convert it to "
            "3.0.0 first, by `asyncapi convert`"
        )
    root.get("asyncapi").imply("is the version of the document")
    draft.carry(root.get("info", "title"), "name")
    document = Document(root, is_version_3=version.startswith("3"))
    servers = convert_servers(document, draft)
    convert_channels(document, servers, draft)
    if draft.get(("routes",)):
        draft.comment(("routes",), NO_GUARDS)
    for key in ("info", "id", "tags", "externalDocs"):
        root.get(key).omit(DOCUMENTATION)
    root.get("defaultContentType").imply("is the model of values")
    components = root.get("components")
    components.get("schemas").omit(
        "schemas come from a registry; register them there, and add it to catalogs"
    )
    for _, kind in components.items():
        for _, item in kind.items():
            item.omit("is part of no route, or only as documentation")
