"""Addresses of servers: which of them only this machine reaches, how they stand in a URL, and what of one is shown."""

from __future__ import annotations

import re
from ipaddress import ip_address

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
"""The names of this machine to itself, as in a Host header without the port."""

_USER = re.compile(r"(?<=://)\S*(?=@)")
_OPTIONS = re.compile(r"(://[^\s?]*\?)[^\s#]+")


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def in_url(host: str) -> str:
    """An address as it stands in a URL and in a Host header."""
    return f"[{host}]" if ":" in host else host


def mask_credentials(text: str) -> str:
    """A text in which `***` stands for the user and the password of each address, and for what is behind its `?`."""
    return _OPTIONS.sub(r"\1***", _USER.sub("***", text))
