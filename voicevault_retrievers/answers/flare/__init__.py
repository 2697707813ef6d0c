"""Active retrieval: a model writes an answer, and its doubtful sentences are searched for meanwhile."""

from voicevault_retrievers.answers.flare.active import AsyncFlareStream, Flare, FlareAnswer, FlareStream
from voicevault_retrievers.answers.flare.writers import Segment, Writer, as_writer
from voicevault_retrievers.models.generation import Token, Written

__all__ = [
    "AsyncFlareStream",
    "Flare",
    "FlareAnswer",
    "FlareStream",
    "Segment",
    "Token",
    "Writer",
    "Written",
    "as_writer",
]
