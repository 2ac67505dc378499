VERSION: int
_table: object
