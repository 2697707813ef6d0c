"""The core of every search: queries, rankings, filters, channels, stages, and the execution of plans."""
