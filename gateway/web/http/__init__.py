"""HTTP below the routes: uvicorn's protocol with limits, TLS, headers, CORS and problem details.

`transport` is the protocol of every connection, and `outlet` takes a connection over from it for a
stream. `limits` bounds connections and requests by the `shared_counts` of all workers. `edge` puts
the protocol, the TLS listener and the `asgi_middleware` of a port together for uvicorn. `query`
says what a request asks for, `content` is about media types, codings and documents (such as
`assets`), and `browsers` about what pages may do. Start reading with `transport`.

`web/app/server.py` creates the servers of a process from `edge`; `web/streams`, `web/exchange` and
`web/websocket` use the rest for their responses.
"""
