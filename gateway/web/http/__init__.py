"""HTTP below the routes: the protocol over uvicorn's, TLS, headers, CORS, problems.

`transport` is the protocol of a connection, and `outlet` takes a connection over for a stream. The
others are each about one part of HTTP. Start with `transport`.
"""
