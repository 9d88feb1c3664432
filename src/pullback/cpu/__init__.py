"""What all CPU kernels share: vectors, memory, elementary functions."""
