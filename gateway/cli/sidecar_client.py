"""Ask a running sidecar, for `gateway dlq` and `gateway replay`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gateway.errors import GatewayError

if TYPE_CHECKING:
    import httpx

DEFAULT_URL = "http://127.0.0.1:8080"

UrlOption = Annotated[
    str,
    typer.Option("--url", "-u", envvar="GATEWAY_SIDECAR_URL", help="The address of the sidecar."),
]
TokenOption = Annotated[
    str | None,
    typer.Option(
        envvar="GATEWAY_SIDECAR_TOKEN", metavar="TOKEN", help="A token, if the sidecar is guarded."
    ),
]


class SidecarUnavailable(GatewayError):
    """No sidecar answers, or it cannot do now what it is asked for."""


def send_request(
    method: str,
    url: str,
    token: str | None,
    path: str,
    *,
    parameters: Mapping[str, Any] | None = None,
    body: Mapping[str, Any] | None = None,
) -> httpx.Response:
    """Return a response of a sidecar that is a success.

    Raises:
        SidecarUnavailable: It may succeed later.
        GatewayError: The sidecar refuses the request.
    """
    import httpx

    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        response = httpx.request(
            method, f"{url.rstrip('/')}{path}", params=parameters, json=body, headers=headers,
            timeout=60,
        )  # fmt: skip
        if response.is_success:
            return response
        problem = response.json()
        text = f"{problem.get('message')}; {problem.get('description')}"
    except (httpx.HTTPError, httpx.InvalidURL, ValueError, AttributeError) as exc:
        raise SidecarUnavailable(f"no sidecar answers at {url} ({exc}); give --url") from None
    raise (SidecarUnavailable if response.status_code == 503 else GatewayError)(text)
