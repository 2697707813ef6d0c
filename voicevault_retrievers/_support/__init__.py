"""Internal helpers: optional imports, caches, locks, checks of options."""
