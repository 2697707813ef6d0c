"""Questions that chunks answer, made when they are indexed: a question that is asked finds those, and they its chunks.

A question is often nearer to another question than to the passage that answers both, in words and in meaning. The
reverse of a hypothetical answer (`HyDE`): nothing is written while somebody waits. After Nogueira, Yang, Lin, Cho
(2019), "Document expansion by query prediction", which adds the questions to the text; here they are an index of their
own, so that a hit can say by which question it was found.
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
