"""What happens to a query before it is searched."""

from voicevault_retrievers.query.expansion import RuleExpansion, Together
from voicevault_retrievers.query.hyde import HyDE
from voicevault_retrievers.query.model import ModelExpansion

__all__ = ["HyDE", "ModelExpansion", "RuleExpansion", "Together"]
