"""The words of a block, as kernels and launches agree on them: 0 status, 1 and 2 what the status is
about, 3 the workspace, then the address of each slot of the plan's record in order, then the words
the family laid out for its kernels."""

STATUS, DETAIL, WORKSPACE, TENSORS = 0, 1, 3, 4

# Statuses no kernel has, of a launch that did not begin: the arrays are not those it was laid out
# for; or somebody must look at their addresses.
STRANGE, UNSURE = -1, -2
