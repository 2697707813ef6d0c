"""A local web page that searches knowledge bases and explains each hit."""

from voicevault_retrievers._support.extras import require

for _module in ("starlette", "uvicorn"):
    require(_module, extra="inspector")

from voicevault_retrievers.inspector.judgments import Judgment, Judgments  # noqa: E402 - after what they need
from voicevault_retrievers.inspector.server import serve  # noqa: E402
from voicevault_retrievers.inspector.web import app  # noqa: E402

__all__ = ["Judgment", "Judgments", "app", "serve"]
