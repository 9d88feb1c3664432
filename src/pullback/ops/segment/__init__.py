"""Reductions of rows grouped by an id."""
