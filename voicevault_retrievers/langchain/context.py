"""From documents to the context that a model reads, and from a model's answer back to the documents it cites."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import accumulate, count
from typing import Any, ClassVar, Literal

from langchain_core.callbacks import Callbacks
from langchain_core.documents import BaseDocumentCompressor, Document
from langchain_core.language_models import BaseLanguageModel
from langchain_core.messages import BaseMessage
from langchain_core.messages.content import create_plaintext_block
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda, RunnableSerializable
from pydantic import ValidationError

from voicevault_retrievers._support.characters import without_controls
from voicevault_retrievers._support.duplicates import duplicate
from voicevault_retrievers._support.foreign_options import checks_options
from voicevault_retrievers.answers import ContextBuilder as Builder
from voicevault_retrievers.answers import Marker, ResolvedAnswer, ends_first
from voicevault_retrievers.answers import resolve_citations as markers_of
from voicevault_retrievers.answers.citations import (
    LAST,
    Names,
    citation_of,
    cited,
    is_numbered,
    names_of,
    title,
    without_headers,
)
from voicevault_retrievers.core.execution.driver import aexecute
from voicevault_retrievers.core.execution.plan import in_thread
from voicevault_retrievers.core.types import Citation, Context
from voicevault_retrievers.errors import ConfigError, unknown
from voicevault_retrievers.langchain.convert import PROVENANCE, hit_of, passages_of, told_of, turns_of
from voicevault_retrievers.langchain.staged_retriever import StagedRetriever, staged
from voicevault_retrievers.langchain.validation import STRICT, Checked
from voicevault_retrievers.text.tokens import TokenCounter, estimate_tokens

CITATION = "citation"


class ContextReorder(Checked[RunnableLambda[list[Document], list[Document]]], BaseDocumentCompressor):
    """Places the best documents at both ends and the worst in the middle, where models overlook them.

    The best comes first, the second best last, and so on (see `context.ends_first`). Each document is a copy that
    carries its rank, from 1, as its citation number, `metadata["voicevault"]["citation"]`. Documents that all have a
    number already keep theirs. Put ContextReorder last: a stage that ranks or cuts documents would read the changed
    order as their ranking.
    """

    model_config = STRICT
    arranges: ClassVar[bool] = True

    def __rrshift__(self, retriever: Runnable[str, list[Document]]) -> StagedRetriever:
        """`retriever >> ContextReorder()`, for a retriever of another package."""
        return staged(retriever, self)

    @checks_options
    def compress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return self._built().invoke(list(documents), {"callbacks": callbacks})

    @checks_options
    async def acompress_documents(
        self, documents: Sequence[Document], query: str, callbacks: Callbacks | None = None
    ) -> list[Document]:
        return await self._built().ainvoke(list(documents), {"callbacks": callbacks})

    def _build(self) -> RunnableLambda[list[Document], list[Document]]:
        """The reordering as a runnable, so that it shows in traces: a compressor is no runnable."""
        return RunnableLambda(_reordered, _areordered, name=type(self).__name__)


def numbers_of(documents: Sequence[Document]) -> list[int]:
    """The citation numbers of documents: their own where all have one, else their places, from 1.

    Numbers that only some documents have are ignored: such a document may come from another search. Of two with one
    number the second gets the lowest free number.
    """
    own = [number for number in map(_number, documents) if number is not None]
    if len(own) < len(documents):
        return list(range(1, len(documents) + 1))
    taken = set(own)
    free = (number for number in count(1) if number not in taken)
    first: set[int] = set()
    numbers = []
    for number in own:
        chosen = next(free) if number in first else number
        first.add(chosen)
        numbers.append(chosen)
    return numbers


def _reordered(documents: list[Document]) -> list[Document]:
    return ends_first([numbered(*each) for each in zip(documents, numbers_of(documents), strict=True)])


async def _areordered(documents: list[Document]) -> list[Document]:
    return _reordered(documents)


def numbered(document: Document, number: int) -> Document:
    """A copy of a document with this citation number."""
    metadata = duplicate(document.metadata)
    metadata[PROVENANCE] = {**told_of(document), CITATION: number}
    return document.model_copy(update={"metadata": metadata})


def _number(document: Document) -> int | None:
    number = told_of(document).get(CITATION)
    return number if isinstance(number, int) and not isinstance(number, bool) and 0 < number <= LAST else None


_OPTIONS = [option.name for option in fields(Builder)]
_STYLES = ("text-plain", "search_result")


class ContextBuilder(Checked[Builder], RunnableSerializable[Any, Context]):
    """Builds one text from documents, with a citation for each of its blocks; `str(context)` is the text.

    The input is a sequence of documents, best first, or a mapping with `documents` and `history`: the conversation so
    far, as pairs of question and answer, LangChain messages, or pairs of a role and a text. A document's block has its
    place as its number. Where ContextReorder has numbered all documents, it has that number: the lowest numbers are
    then the best, and the text keeps the order in which the documents come. For the options see
    `context.ContextBuilder`; `count_tokens` is a function from a text to a number, a language model, or None for an
    estimate. A call's own `max_tokens` may lower the builder's.
    """

    model_config = STRICT
    max_tokens: int | None = None
    max_chars: int | None = None
    history_turns: int = 5
    markers: Literal["source", "numbered"] = "source"
    reorder: bool = False
    count_tokens: Any = None
    page_key: str | None = None
    source_key: str | None = None
    paths: bool = False
    control_characters: bool = False

    @property
    def instruction(self) -> str:
        """The instruction that tells a model to cite the blocks in its answer."""
        return self._built().instruction

    def invoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Context:
        return self._call_with_config(self._context, input, config, **kwargs)

    async def ainvoke(self, input: Any, config: RunnableConfig | None = None, **kwargs: Any) -> Context:
        return await self._acall_with_config(self._acontext, input, config, **kwargs)

    def _check(self) -> None:
        self._built()

    def _build(self) -> Builder:
        options = {name: getattr(self, name) for name in _OPTIONS}
        return Builder(**{**options, "count_tokens": token_counter(self.count_tokens)})

    def _context(self, given: Any, *, max_tokens: int | None = None) -> Context:
        given_documents, history = _parts(given)
        documents = passages_of(given_documents)
        hits = [hit_of(document) for document in documents]
        return self._built().build(hits, history, max_tokens=max_tokens, numbers=numbers_of(documents))

    async def _acontext(self, given: Any, *, max_tokens: int | None = None) -> Context:
        """Build the context in a worker thread: a model's own token count may ask a server."""
        return await aexecute(in_thread(self.get_name(), partial(self._context, given, max_tokens=max_tokens)))


def resolve_citations(
    answer: str | BaseMessage,
    context: Context | Sequence[Document] | Sequence[Citation] | Sequence[Mapping[str, Any]],
    *,
    numbered: bool | None = None,
) -> ResolvedAnswer:
    """Return an answer's citation markers, each with the blocks, documents or citations that it names.

    A marker that names none of them is unresolved. Documents and citations may be plain data, as parsed from JSON.
    Raises ConfigError for anything else.

    Markers are those of `context.resolve_citations`. `numbered` says whether `[n]` is a marker; by default it is,
    except for documents and for a context whose blocks have no numbers. An annotation by which a model cites (a
    standard content block of type "citation") is a marker too: it names the blocks of its `url`, or else of its
    `title`, whose text contains its `cited_text`. Positions that providers count (`document_index`,
    `search_result_index`) are not read: they count through a whole request, of which the context may be only a part.
    """
    texts = _texts(answer)
    citations, numbers = _citations(context)
    numbered = numbers if numbered is None else numbered
    whole = "".join(block["text"] for block in texts)
    found = [*markers_of(whole, citations, numbered=numbered).markers, *_annotations(texts, names_of(citations))]
    return ResolvedAnswer(whole, tuple(sorted(found, key=lambda marker: (marker.start, marker.end))))


def content_blocks(
    context: Context, style: Literal["text-plain", "search_result"] = "text-plain"
) -> list[dict[str, Any]]:
    """The blocks of a context as documents for a chat model with native citations; see `resolve_citations`.

    `text-plain` gives LangChain's standard blocks, `search_result` Anthropic's. Both ask the model for citations. The
    title is the file and page. Raises ConfigError for another style.
    """
    if style not in _STYLES:
        raise unknown("style", style, _STYLES)
    made = _plain_block if style == "text-plain" else _search_result
    numbered = is_numbered(context)
    return [made(one, without_headers(without_controls(one.text), numbered=numbered)) for one in context.citations]


def token_counter(count_tokens: Any) -> TokenCounter:
    """A function from a text to its number of tokens, from such a function or a language model; None estimates."""
    if count_tokens is None:
        return estimate_tokens
    if isinstance(count_tokens, BaseLanguageModel):
        return count_tokens.get_num_tokens
    if callable(count_tokens):
        counter: TokenCounter = count_tokens
        return counter
    raise ConfigError(f"count_tokens is a function from a text to a number, or a language model, not {count_tokens!r}")


def _parts(given: Any) -> tuple[list[Document], list[Any]]:
    """The documents and the history of an input."""
    told = given if isinstance(given, Mapping) else {"documents": given}
    documents = told.get("documents")
    if isinstance(documents, str | bytes) or not isinstance(documents, Sequence):
        raise ConfigError(f"a context is made of documents, or of a mapping with 'documents', not of {given!r:.200}")
    return list(documents), turns_of(told.get("history") or ())


def _texts(answer: str | BaseMessage) -> list[Mapping[str, Any]]:
    """The text blocks of an answer."""
    if isinstance(answer, str):
        return [{"text": answer}]
    if isinstance(answer, BaseMessage):
        return [block for block in answer.content_blocks if block["type"] == "text"]
    raise ConfigError(f"an answer is a text or a message, not a {type(answer).__name__}")


def _citations(sources: Context | Sequence[Any]) -> tuple[tuple[Citation, ...], bool]:
    """The citations of sources, and whether `[n]` names them: citations without documents are those of a tool."""
    if isinstance(sources, Context):
        return sources.citations, is_numbered(sources)
    read = [_source(source) for source in sources]
    documents = passages_of(source for source in read if isinstance(source, Document))
    numbered = zip(numbers_of(documents), map(hit_of, documents), strict=True)
    made = (citation_of(number, hit, hit.text) for number, hit in numbered if hit.text or not hit.over_budget)
    return (*made, *(source for source in read if isinstance(source, Citation))), not documents


def _source(source: Any) -> Document | Citation:
    """A document or citation, unchanged or parsed from plain data."""
    if isinstance(source, Document | Citation):
        return source
    try:
        return Document(**source) if "page_content" in source else Citation(**source)
    except (TypeError, ValidationError) as error:
        raise ConfigError(
            f"a source is a document or a citation, or one of them as a dict, not {source!r:.200}"
        ) from error


def _annotations(texts: Sequence[Mapping[str, Any]], names: Names) -> Iterator[Marker]:
    starts = accumulate((len(block["text"]) for block in texts), initial=0)
    for start, block in zip(starts, texts, strict=False):
        for annotation in block.get("annotations") or ():
            if isinstance(annotation, Mapping) and annotation.get("type") == "citation":
                yield _marker(annotation, block["text"], start, names)


def _marker(annotation: Mapping[str, Any], text: str, start: int, names: Names) -> Marker:
    place = str(annotation.get("url") or annotation.get("title") or "")
    quote = str(annotation.get("cited_text") or "")
    first, last = _span(annotation, len(text))
    return Marker(text[first:last], start + first, start + last, cited(place, quote, names) if place else (), quote)


def _span(annotation: Mapping[str, Any], length: int) -> tuple[int, int]:
    """The start and end of an annotation in its block; the whole block where the annotation has none."""
    first, last = annotation.get("start_index"), annotation.get("end_index")
    if isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= length:
        return first, last
    return 0, length


def _plain_block(citation: Citation, text: str) -> dict[str, Any]:
    section = f"Section: {citation.section}" if citation.section else None
    return dict(
        create_plaintext_block(
            text, title=title(citation), context=section, id=f"lc_{citation.chunk_id}", citations={"enabled": True}
        )
    )


def _search_result(citation: Citation, text: str) -> dict[str, Any]:
    return {
        "type": "search_result",
        "source": citation.source_file or citation.chunk_id,
        "title": title(citation),
        "content": [{"type": "text", "text": text}],
        "citations": {"enabled": True},
    }
