"""Build the application and run its process: health, metrics, reload, and a graceful end.

`app` puts the parts together as one ASGI application, and `server` runs it with uvicorn. `cli`
calls `server.serve`; programs that mount the gateway call `app.create_app`. Start with `app`.
"""
