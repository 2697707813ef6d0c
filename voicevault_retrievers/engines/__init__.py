"""Vector stores of others: as a `VectorIndex`, as channels, and the languages of their filters."""
