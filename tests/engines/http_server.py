"""An HTTP server in a thread, for the imitations of servers."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler], over: threading.Event, encrypted: ssl.SSLContext | None = None
) -> Iterator[int]:
    """Answers requests on a free port, which it gives; `over` is set before it waits for the last answers."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    if encrypted is not None:  # each handshake is made by the thread that answers
        server.socket = encrypted.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        over.set()
        server.shutdown()
        server.server_close()
        thread.join()
