"""integrations/llama_index_query_engine."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO

import pytest

from tests.end_to_end.programs import installed, loaded

pytestmark = pytest.mark.skipif(not installed("llama_index"), reason="needs the extras `llama-index` and `demo`")


async def test_the_engine_takes_any_retriever_and_llm() -> None:
    from tests.frameworks.llama_index_parts import ListRetriever, scored

    program = loaded("llama_index_query_engine/rag.py")
    llm = program.language_model("scripted_llm:ScriptedLLM", None)
    retriever = ListRetriever(scored(("valve", 0.9), ("alarm", 0.8)))
    response = await program.cited_engine(retriever, llm).aquery("When does an alarm sound?")
    assert str(response) == "An alarm sounds when the water level is too high. [2]"
    assert [citation.chunk_id for citation in response.citations] == ["alarm"]
    assert [bundle.query_str for bundle in retriever.asked] == ["When does an alarm sound?"]
    with redirect_stdout(StringIO()) as printed:
        program.in_turn(program.cited_engine(retriever, llm, streaming=True), ["When does an alarm sound?"])
    assert printed.getvalue() == (
        "\nQ: When does an alarm sound?\nA: An alarm sounds when the water level is too high. [2]\n"
        "   [2] [Source: alarm]\n"
    )


def test_the_script_answers_a_question_of_two_lines_and_not_one_in_a_source() -> None:
    from tests.frameworks.llama_index_parts import ListRetriever, scored

    program = loaded("llama_index_query_engine/rag.py")
    llm = program.language_model(None, None)
    asked = ListRetriever(
        scored(("Frequent questions.\nQuestion: What is a valve?\nAnswer: A part.", 0.9), ("alarm", 0.8))
    )
    response = program.cited_engine(asked, llm).query("It is loud.\nWhen does an alarm sound?")
    assert str(response) == "An alarm sounds when the water level is too high. [2]"


def test_a_missing_llm_says_how_to_install_it() -> None:
    with pytest.raises(SystemExit, match="pip install llama-index-llms-nowhere"):
        loaded("llama_index_query_engine/rag.py").language_model("llama_index.llms.nowhere:Nowhere", "some")
