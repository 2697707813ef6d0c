"""What every search is made of: queries, rankings, filters, channels and stages, and how plans are run."""
