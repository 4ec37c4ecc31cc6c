"""Define the capability `fetch`, which gets the latest record of a key as a document."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from pydantic import Field

from gateway.config.types.section import Problem

from .options import With


class FetchWith(With):
    """The latest record of a key as a document: of which topic and key, and how it is shown."""

    capability: Literal["fetch"] = Field(
        description="What a request does: `fetch` gets the latest record of a key as a document. "
        "For clients."
    )

    @classmethod
    def check_raw(cls, raw: Mapping[str, Any]) -> Iterable[Problem]:
        yield from super().check_raw(raw)
        filters = raw.get("filters")
        if not isinstance(filters, (list, tuple)) or len(filters) != 1:
            what = "a document is the latest record of one key"
            hint = 'write filters: [{key: "${params.id}"}]'
            yield Problem(("filters",) if "filters" in raw else (), f"{what}; {hint}")
            return
        key = filters[0].get("key") if isinstance(filters[0], Mapping) else None
        if key is None or isinstance(key, Mapping):
            what = "names no key, and a document is the record of a key; add key: ${params.id}"
            yield Problem(("filters", 0), what)
