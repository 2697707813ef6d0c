"""The portable filter as a Milvus expression."""

from __future__ import annotations

from voicevault_retrievers.engines.facets import Facets
from voicevault_retrievers.engines.filters import Clause, Scalar
from voicevault_retrievers.engines.milvus import facets


class Milvus(Facets):
    """Milvus' language: facets, and a JSON of ordered values, where strings are compared by their beginnings."""

    exact = Facets.exact | {"ordered"}

    def ordered(self, key: str, operator: str, operand: Scalar) -> Clause:
        signs = {"$gt": ">", "$gte": ">=", "$lt": "<", "$lte": "<="}
        if not isinstance(operand, str):
            return f'ordered["{facets.ordered_key(key, False)}"] {signs[operator]} {float(operand)!r}'
        sign = ">=" if operator in ("$gt", "$gte") else "<="
        return f'ordered["{facets.ordered_key(key, True)}"] {sign} "{facets.ordered_text(operand)}"'
