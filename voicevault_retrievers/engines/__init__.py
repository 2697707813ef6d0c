"""Vector stores of others as a `VectorIndex`."""
