"""Foreign arrays in, views out: adapters, layouts, the pool of recycled outputs."""
