"""HTTP below the routes: uvicorn's protocol with limits, TLS, CORS, headers and problem details.

`transport` is the protocol of every connection, and `outlet` takes a connection over from it for a
stream. `edge` puts the protocol, the TLS listener and the middlewares of a port together for
uvicorn. Each other module covers one header or one rule of HTTP. Start reading with `transport`.

`web/app/server.py` creates the servers of a process from `edge`; `web/streams`, `web/exchange` and
`web/websocket` use the rest for their responses.
"""
