"""Define the section `admin`: a separate port for operators."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from gateway.config.types.address import Host
from gateway.config.types.fields import Number, in_range
from gateway.config.types.guarded import Guarded
from gateway.config.types.section import Section

from .route import Route


class Admin(Section):
    """A separate port with the admin API, where streams are listed and ended.

    Without `guarded`, `host` must be an address of this machine only.
    """

    host: Host = Field(
        default="127.0.0.1",
        description="Address to bind. An address that other machines can reach needs `guarded`. "
        "For operators.",
    )
    port: Annotated[Number, in_range(0, 65_535, str)] = Field(
        default=9901, description="Port to bind; 0 binds a free port. For operators and tests."
    )
    guarded: Guarded = Field(
        default={},
        description="Guards, each with the roles that it must grant; all of them must admit the "
        "request. For operators who connect from other machines.",
    )

    @property
    def route(self) -> Route:
        """The admin API as a route, because guards check requests to routes."""
        raw = {"when": [{"path": "/admin"}], "guarded": self.guarded, "with": {"topic": "admin"}}
        return Route.model_validate(raw)
