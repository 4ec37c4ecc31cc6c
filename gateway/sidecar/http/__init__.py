"""Provide what every component needs of HTTP, as the contract has it.

`spec` merges the OpenAPI document and validates requests against it (`integers` normalizes valid
bodies, and finds unknown fields); `docs` shows it to people. `status` turns errors into the
contract's Status. `ids` has the ids of a request, and `body` reads bodies within limits.
`disconnect` ends what waits for a client that has left.
`middleware` names the scopes, reads names with slashes from paths, and counts requests. Start with
`status` and `spec`.
"""
