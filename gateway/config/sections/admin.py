"""Where operators come in: a port of its own."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.types.address import Host
from gateway.config.types.fields import Number, Text, in_range
from gateway.config.types.section import Section

from .route import Route


class Admin(Section):
    """Without `guarded` only this machine is let in, which `crosscheck` sees to."""

    host: Host = Field(
        default="127.0.0.1",
        description="Address to bind; one that other machines reach needs guarded. For operators.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=9901, description="Port to bind, 0 for a free one. For operators and tests."
    )
    guarded: dict[Text, tuple[Text, ...]] = Field(
        default={},
        description="Guards and the roles they must grant, all of them. For operators who come "
        "from other machines.",
    )

    @property
    def route(self) -> Route:
        """As guards are asked."""
        own = {"when": [{"path": "/admin"}], "guarded": self.guarded, "with": {"topic": "admin"}}
        return Route.model_validate(own)
