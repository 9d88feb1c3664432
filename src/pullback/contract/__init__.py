"""What a kernel promises: elements, kinds, guarantees, errors, and the records of ops."""
