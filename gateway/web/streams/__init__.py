"""Streams over HTTP, and the registry of all open streams.

`middleware` is the ASGI application in front of all others: it dispatches a request to a stream, a
WebSocket, an exchange or a page. `responses` builds that of a stream. `http_stream`
is such a stream, which gets the connection where that can be taken over. `open_streams` has all
streams of the process, WebSockets' included, and `renewal` renews their tokens. Start reading with
`middleware`, which `web/app/app.py` creates.
"""
