"""Reductions of rows grouped by an id."""

__all__: list[str] = []
