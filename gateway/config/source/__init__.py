"""Turn YAML into values that know where they stand, and errors into lines with their place.

`yaml_document` reads a file, `nodes` its syntax, `substitution` fills in `${env.NAME}`, `template`
holds texts with placeholders for requests, and `problems` formats errors with line and column.
Start reading at `yaml_document`.
"""
