"""What the package needs of Python: optional imports, caches, locks, checks of options. Nothing that users import."""
