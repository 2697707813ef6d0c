"""Vector stores of other vendors: as a `VectorIndex`, as channels, and the languages of their filters."""
