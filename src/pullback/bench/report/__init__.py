"""Results as a page that opens from disk, and as pictures."""
