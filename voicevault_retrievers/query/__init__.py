"""What happens to a query before it is searched."""

from voicevault_retrievers.query.expansion import RuleExpansion

__all__ = ["RuleExpansion"]
