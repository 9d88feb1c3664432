"""Adversarial inputs, as verification names them; families define theirs beside the op."""

from pullback.ops.case import Case as Case
