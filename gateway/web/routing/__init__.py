"""Turn a request into a view: paths, queries, access and limits.

`routes` finds the route of a request and admits its client; `paths`, `query` and `views` say what
it asks for; `limits` counts connections and requests, and `attempts` those on one socket. The
packages `streams`, `websocket` and `exchange` call it. Start with `routes`.
"""
