"""Serve streams and requests over HTTP and WebSocket, and report errors as problem details.

A request enters at `http.transport`, finds its route in `routing`, passes the guards of `access`,
and is answered by `streams`, `websocket` or `exchange`. `app` puts all of it together and runs the
processes, which talk by `workers`; `admin` is the API of operators. This layer sees the exceptions
of `gateway.errors`, never Kafka's error codes. `cli` calls `app.server.serve`, and
programs that mount the gateway call `app.app.create_app`. Start with `app.app`.
"""
