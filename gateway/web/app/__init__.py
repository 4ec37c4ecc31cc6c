"""Build the application and run its processes.

`app` puts the parts together as one ASGI application, and `server` runs it with uvicorn: in this
process, or with `listen.workers` above 1 in `worker` processes, which the `supervisor` starts, and
starts again when they crash. `cli` calls `server.serve`; programs that mount the gateway call
`app.create_app`. Start with `app`.
"""
