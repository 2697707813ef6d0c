"""The portable filter as a Milvus expression."""

from __future__ import annotations

from collections.abc import Sequence

from voicevault_retrievers.core.filters import Condition, Node, Not
from voicevault_retrievers.engines.filters import (
    KEY,
    MAX_CONDITIONS,
    ORDERED,
    Clause,
    Language,
    Scalar,
    kind_of,
    said_alike,
    size_of,
)
from voicevault_retrievers.engines.milvus import facets


class Milvus(Language):
    """Milvus' language, over numbers and digests of metadata (`facets`), so that expressions contain no user text.

    Values and their kinds are members of an array, so lists need no special case; strings are compared by their
    beginnings.
    """

    def equal(self, key: str, operand: Scalar) -> Clause:
        return f"array_contains(facets, {facets.facet(key, operand)})"

    def unequal(self, key: str, operand: Scalar) -> Clause:
        return f"(not {self.equal(key, operand)})"

    def other(self, key: str, operand: Scalar) -> Clause:
        return f"(array_contains(facets, {facets.kind(key, operand)}) and not {self.equal(key, operand)})"

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        signs = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
        if not isinstance(operand, str):
            return f'ordered["{facets.ordered_key(key, False)}"] {signs[operator]} {float(operand)!r}'
        sign = ">=" if operator in ("$gt", "$gte") else "<="
        return f'ordered["{facets.ordered_key(key, True)}"] {sign} "{facets.ordered_text(operand)}"'

    def exists(self, key: str, wanted: bool) -> Clause:
        found = f"array_contains(facets, {facets.present(key)})"
        return found if wanted else f"(not {found})"

    def every(self, clauses: Sequence[Clause]) -> Clause:
        return f"({' and '.join(clauses)})"

    def some(self, clauses: Sequence[Clause]) -> Clause:
        return f"({' or '.join(clauses)})"

    def exactly(self, node: Node, negated: bool = False) -> bool:
        """Whether `widened` passes exactly what `node` passes, or, where `negated`, what it does not pass."""
        if isinstance(node, Not):
            return self.exactly(node.part, not negated)
        if not isinstance(node, Condition):
            return size_of(node) <= MAX_CONDITIONS and all(self.exactly(part, negated) for part in node.parts)
        operands = node.operand if node.operator in ("$in", "$nin") else [node.operand]
        if not KEY.fullmatch(node.key) or len(operands) > MAX_CONDITIONS or not all(map(said_alike, operands)):
            return False
        if node.operator in ("$eq", "$in", "$exists"):
            return True
        if node.operator in ("$ne", "$nin"):
            return not negated and len({kind_of(each) for each in operands}) == 1
        return node.operator in ORDERED and not negated and type(node.operand) in (int, float)
