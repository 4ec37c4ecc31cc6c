"""Provide what every component needs of HTTP, as the contract has it.

`spec` merges the OpenAPI document and validates requests against it (`integers` normalizes what is
valid); `docs` shows it to people. `status` turns errors into the contract's Status. `ids` has the
ids of a request, `body` reads bodies within limits, `authorization` names the scopes,
`encoded_slash` reads names with slashes from paths, and `request_counts` counts requests.
Start with `status` and `spec`.
"""
