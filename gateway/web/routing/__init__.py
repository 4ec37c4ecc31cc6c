"""From a request to a view: paths, queries, access, limits.

`routes` finds the route of a request and lets its client in; `paths`, `query` and `views` say what
it asks for; `limits` counts connections. Start with `routes`.
"""
