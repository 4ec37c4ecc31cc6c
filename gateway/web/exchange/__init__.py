"""Requests with one response: produce, request and reply, the latest record of a key.

`dispatch` admits a request, and passes it to the `Exchange` of its route's capability: `fetch`, or
`reply`, which writes records by `produce`, as WebSockets do. Start reading with `dispatch`, which
`web/streams/middleware.py` calls.
"""
