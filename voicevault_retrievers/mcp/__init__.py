"""An MCP server: searches of knowledge bases with numbered, citable sources, for any client of the protocol."""

from voicevault_retrievers.mcp.configuration import Client, Configuration, Offer, load_configuration, local
from voicevault_retrievers.mcp.http import application, serve_http
from voicevault_retrievers.mcp.server import serve_stdio, server_for

__all__ = [
    "Client",
    "Configuration",
    "Offer",
    "application",
    "load_configuration",
    "local",
    "serve_http",
    "serve_stdio",
    "server_for",
]
