"""PostgreSQL keeps what engines promise."""

from __future__ import annotations

from typing import Any, ClassVar

from tests.engines.conformance import Conformance


class TestPostgres(Conformance):
    system = "postgres"
    other_options: ClassVar[dict[str, Any]] = {"half": True}


class TestPostgresIndexed(Conformance):
    """With an approximate index of vectors from the first chunk on, which may miss one of many equal ones."""

    system = "postgres"
    both_ways = False
    ties_at_k = False
    given: ClassVar[dict[str, Any]] = {"index_from": 1}
