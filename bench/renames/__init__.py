"""Names that are to change, package by package, and what applies them.

Each table has a line per definition: its file, its qualified name, the new name. `# MODULE` lines
name modules that move, `# STRING` lines what stands in strings and is changed by hand. A table goes
once it is applied. `python -m bench.renames TABLE ...` applies tables; see `__main__`.
"""
