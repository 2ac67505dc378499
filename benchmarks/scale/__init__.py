"""How many workers a server can have: constants of this machine, a model made of them, and a check with real connections.

`constants` measures, `model` calculates, `report` and `plot` show, and `check` (with the bare workers of `crowd`) tries it out.
"""
