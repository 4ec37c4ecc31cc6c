"""YAML as values that know where they stand: nodes, substitution, templates, problems.

`yaml_source` is a file, `substitution` fills in `${env.NAME}`, `problems` are errors with line and
column. Start with `yaml_source`.
"""
