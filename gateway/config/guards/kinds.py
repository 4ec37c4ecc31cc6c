"""List the kinds of guards."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from gateway.config.types.forms import Kinds

from .guard_section import GuardSection
from .http import Http
from .inline import Inline
from .jwt import Jwt
from .x509 import X509

GUARD_KINDS: Kinds[GuardSection] = Kinds(
    "guard", {"jwt": Jwt, "http": Http, "x509": X509, "inline": Inline}
)
"""The sections of all kinds of guards, by their `type`."""

AnyGuardSection: TypeAlias = Annotated[GuardSection, GUARD_KINDS]
"""The section of a guard of any kind, which its `type` names."""
