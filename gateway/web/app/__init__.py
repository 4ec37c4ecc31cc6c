"""The application and its process: health, metrics, reload, and an end without loss.

`app` puts the parts together as one ASGI application; `server` runs it. Start with `app`.
"""
