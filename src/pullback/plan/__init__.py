"""Descriptor -> plan -> run: selection, validation, workspace, launch."""
