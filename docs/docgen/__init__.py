"""Write the reference pages of the documentation from what the code declares.

`make docs` writes docs/reference, the runbooks and the alerts of Prometheus, and `python -m docgen
--check` says whether they are up to date; `make docs` and the tests call it. The pages are kept in
the repository, so that a change of an option shows in its diff, and so that they can be read
without the site. `pages` lists all pages, and there is one module for each source: `configuration`
reads the JSON Schema, `cli` the commands, `metrics`, `events`, `errors` and `faults` what their
names say. `schema` walks the JSON Schema, and `examples` has a configuration for each of its
sections.
"""
