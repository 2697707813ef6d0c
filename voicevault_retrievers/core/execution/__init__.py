"""Plans of a search, and the two drivers that run them: in the caller's thread, and on an event loop."""
