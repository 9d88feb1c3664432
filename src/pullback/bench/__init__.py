"""The same functions timed beside their peers and beside the machine's own copy speed."""
