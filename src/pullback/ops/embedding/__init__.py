"""Row lookups in a table, one by one or gathered in bags."""

__all__: list[str] = []
