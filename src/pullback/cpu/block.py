"""The words of a block, as kernels and launches agree on them: 0 status, 1 and 2 what the status is
about, 3 the workspace, then the address of each slot of the plan's record in order, then the words
the family laid out for its kernels."""

STATUS, DETAIL, WORKSPACE, TENSORS = 0, 1, 3, 4

# Statuses no kernel has, of a launch that did not begin: the arrays have another layout than the
# launch was validated for; or Python must check their addresses.
MISMATCH, NEEDS_CHECK = -1, -2
