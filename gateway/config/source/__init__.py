"""Turn YAML into values that know where they stand, and errors into lines with their place.

`yaml_document` reads a file, `nodes` its syntax, `values_file` what `${values.X}` stands for, and
`problems` formats errors with line and column. Start reading at `yaml_document`.
"""
