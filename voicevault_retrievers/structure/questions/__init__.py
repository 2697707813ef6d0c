"""Questions that chunks answer, written at indexing: a query finds similar questions, and thereby chunks.

A query is often closer to another question than to the passage that answers both, in words and in meaning. This
reverses hypothetical answers (`HyDE`): no model call delays a search. After Nogueira, Yang, Lin, Cho (2019), "Document
expansion by query prediction", which adds the questions to the text; here they have a separate index, so that a hit
names the question that found it.
"""

from voicevault_retrievers.structure.questions.channel import QuestionChannel
from voicevault_retrievers.structure.questions.index import QuestionIndex, QuestionUpdate
from voicevault_retrievers.structure.questions.records import (
    COLLECTION,
    DIGEST,
    SOURCE,
    KeepsChunks,
    KeepsQuestions,
    digest,
)
from voicevault_retrievers.structure.questions.writers import ModelQuestions, Questioner, questions_in

__all__ = [
    "COLLECTION",
    "DIGEST",
    "SOURCE",
    "KeepsChunks",
    "KeepsQuestions",
    "ModelQuestions",
    "QuestionChannel",
    "QuestionIndex",
    "QuestionUpdate",
    "Questioner",
    "digest",
    "questions_in",
]
