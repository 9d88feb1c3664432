"""Foreign arrays in, views out: adapters and layouts."""
