"""One folder per family of operations, each holding everything its members need."""
