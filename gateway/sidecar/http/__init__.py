"""Provide what every component needs of HTTP, as the contract has it.

`spec` merges the OpenAPI document and validates requests against it (`body_fields` corrects
integers, and finds unknown fields); `docs` shows it to people. `status` turns errors into the
contract's Status. `requests` has the ids of a request, reads its body within limits, and ends what
waits for a client that has left. `middleware` names the scopes, reads names with slashes from
paths, and counts requests. Start with `status` and `spec`.
"""
