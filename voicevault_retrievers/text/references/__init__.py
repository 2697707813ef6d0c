"""References in texts: to laws and their sections, to cases, to defined terms."""
