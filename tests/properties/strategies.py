"""What the property tests draw from."""

from __future__ import annotations

from hypothesis import strategies as st

from voicevault_retrievers.core.types import Chunk

WORDS = [
    "pump", "valve", "turbine", "oil", "ERR_2043", "hot", "reset", "the", "泵站", "电池维护", "Prüfung", "größe",
    "running",
]  # fmt: skip

texts = st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join)
queries = st.one_of(texts, st.sampled_from(["", "   ", "?!", "unknownword", "the of"]))
metadatas = st.fixed_dictionaries(
    {}, optional={"source_file": st.sampled_from(["a.pdf", "b.pdf"]), "page_number": st.integers(1, 3)}
)
chunk_lists = st.lists(
    st.builds(Chunk, id=st.integers(0, 10**6).map(lambda n: f"c{n:07}"), text=texts, metadata=metadatas),
    max_size=20,
    unique_by=lambda chunk: chunk.id,
)
found = st.lists(
    st.tuples(st.integers(0, 30).map(lambda n: f"d{n:02}"), st.integers(-5, 5).map(lambda n: n / 4)),
    max_size=15,
    unique_by=lambda entry: entry[0],
).map(lambda entries: sorted(entries, key=lambda entry: (-entry[1], entry[0])))
