"""Measuring kernels against their definitions."""
