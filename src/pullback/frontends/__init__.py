"""One contract, several accents: NumPy, PyTorch and JAX, all derived from the functions."""
