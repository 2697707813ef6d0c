"""Addresses that a server listens at: which of them only this machine reaches, and how they stand in a URL."""

from __future__ import annotations

from ipaddress import ip_address

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The names of this machine to itself, as in a Host header without the port."""


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """An address as it stands in a URL and in a Host header."""
    return f"[{host}]" if ":" in host else host
