"""Streams over HTTP: which wire a request is about, and its answer.

`streams` is the ASGI application in front of all others. `sse` and `ndjson` answer, by
`http_stream` where the connection can be taken over; `open_streams` knows all that run. Start with
`streams`.
"""
