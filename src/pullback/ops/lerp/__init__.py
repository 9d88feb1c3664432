"""Linear interpolation between two tensors."""
