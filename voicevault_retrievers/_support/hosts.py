"""Addresses of servers: whether they are local, their form in a URL, and how credentials are masked."""

from __future__ import annotations

import re
from ipaddress import ip_address

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The loopback names, as in a Host header without the port."""

MASK = "***"
"""What stands in a text for what it does not show."""

_USER = re.compile(r"(?<=://)\S*(?=@)")
_OPTIONS = re.compile(r"(://[^\s?]*\?)[^\s#]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """An address in the form for a URL and a Host header."""
    return f"[{host}]" if ":" in host else host


def mask_credentials(text: str) -> str:
    """The text with `MASK` for the user and password of each address, and for the part after its `?`."""
    return _OPTIONS.sub(rf"\1{MASK}", _USER.sub(MASK, text))
