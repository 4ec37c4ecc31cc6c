"""Streams over HTTP.

`middleware` is the ASGI application in front of all others: it dispatches a request to a stream, a
WebSocket, an exchange or a page. `responses` builds that of a stream. `http_stream` is such a
stream, which gets the connection where that can be taken over, and whose token can be renewed.
Start reading with `middleware`, which `web/app/app.py` creates.
"""
