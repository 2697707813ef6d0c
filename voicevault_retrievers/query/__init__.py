"""Query rewriting before a search: expansion, follow-up questions and routing."""

from voicevault_retrievers.query.acronyms import AcronymExpansion
from voicevault_retrievers.query.compounds import CompoundExpansion
from voicevault_retrievers.query.expansion import RuleExpansion, Together
from voicevault_retrievers.query.follow_up import FollowUp, ModelFollowUp
from voicevault_retrievers.query.hyde import HyDE
from voicevault_retrievers.query.model import ModelExpansion
from voicevault_retrievers.query.rm3 import RM3
from voicevault_retrievers.query.routing import ModelRouter, Routes, RuleRouter
from voicevault_retrievers.query.spelling import SpellingExpansion
from voicevault_retrievers.query.synonyms import SynonymExpansion

__all__ = [
    "RM3",
    "AcronymExpansion",
    "CompoundExpansion",
    "FollowUp",
    "HyDE",
    "ModelExpansion",
    "ModelFollowUp",
    "ModelRouter",
    "Routes",
    "RuleExpansion",
    "RuleRouter",
    "SpellingExpansion",
    "SynonymExpansion",
    "Together",
]
