"""Hostile ids, texts, metadata and collection names on every engine: text, and nothing else changes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import chain, product
from typing import Any, NamedTuple

import pytest

from tests.engines.engines import SYSTEMS
from voicevault_retrievers.core.types import Chunk, Query
from voicevault_retrievers.errors import ConfigError, RetrievalError
from voicevault_retrievers.store.codec import Limits
from voicevault_retrievers.testing.clients import CollectionClient, Collections, Connect
from voicevault_retrievers.testing.corpora import WordEmbedder
from voicevault_retrievers.testing.expect import equal, held, that
from voicevault_retrievers.testing.suite import AUTO

TARGETS = ("canary", "chunks", "voicevault")
"""What a statement that got through would name: collections, tables, keys."""

FAMILIES: dict[str, list[str]] = {
    "sql": [
        "'; DROP TABLE {};--", "\"; DROP TABLE {} CASCADE;--", "'; DELETE FROM {} WHERE 1=1;--", "' OR '1'='1' -- {}",
        "') OR ('a'='a {}", "$$; TRUNCATE {}; $$", "E'\\x27; DROP SCHEMA {} CASCADE", "/* {} */ OR 1=1",
        "%s %(name)s %% {}",
        "$1 :name ? {}", "U&'\\0027 {}'", "'||(SELECT version())||'{}", "\\'; DROP TABLE {};--", "{}\\",
        "COPY {} TO PROGRAM 'id'",
    ],
    "json": [
        '{{"$ne": "{}"}}', '"}}, {{"{}": 1', "'{{\"{}\": 1}}'::jsonb", "{}\\u0000", '{{"__proto__": "{}"}}',
        "$.{}[*] ? (@ == 1)",
        "$[\"{}\"]", "{{a,b}},{}", "[\"{}\"", "-> '{}' ->> 'v'", '\\", "{}": "', "NULL{}",
    ],
    "filter": [
        "metadata['{}'] == 1", "id in ['{}']", "id != '' or '{}' == '", "v like '%{}%'", "\" or id != \"{}",
        "json_contains({}, 1)",
        "{{'must': [{{'key': '{}'}}]}}", "$and {}", "metadata.{}[].v", "#document {}", "{}.nested.key", "`{}`",
        "chroma:document {}",
        "{{'$contains': '{}'}}", "array_contains_any({}, [1])", "TEXT_MATCH({}, 'a')", "\\\" && \"{}\" == \"",
        "not (id == '{}')",
    ],
    "cypher": ["'}}) MATCH (n) DETACH DELETE n // {}", "`}}) CALL db.drop('{}')", "$param {}", "n.{} = 1 RETURN n",
        "*) OR @{}:[0 inf]"],
    "template": ["{{{{7*7}}}}{}", "${{{}}}", "<%= {} %>", "{{% {} %}}", "#{{{}}}", "{{0.__class__}} {}",
        "{{}} {{0}} {{{}}}", "%n%s%x {}", "\\x41 \\101 {}", "${{jndi:ldap://{}}}"],
    "path": ["../../{}", "..\\..\\{}", "/etc/passwd {}", "file:///{}", "{}/../{}", "%2e%2e%2f{}", "C:\\{}", "~/{}",
        ".{}", "{}.", "con {}", "{}::$DATA", "#{}", "?{}=1", "a/b/{}?x#y"],
    "control": ["nul\0{}", "\0{}", "{}\0", "bell\a{}", "escape\x1b[2J{}", "crlf\r\nSet: {}", "tab\t{}",
        "delete\x7f{}", "c1 \x9b{}", "line\u2028{}", "\x01{}\x02", "\x1f{}"],
    "unicode": [
        "\u202e{}\u202c", "\u2066{}\u2069", "zero\u200bwidth {}", "\ufeff{}", "e\u0301 {}", "\u00e9 {}",
        "\U0001f600 {}", "\U0010ffff {}", "\ufffe {}",
        "\ufffd {}", "\u0130{}", "\u1e9e {}", "\U00020000 {}", "\u0300{}", "Z\u0351\u036b\u0343 {}", "\u2215{}",
        "\uff07; DROP {}", "\u02bc OR {}", "{} ",
    ],
    "long": ["{}" * 60, "'" * 500 + "{}", "({}" * 150, "\U0001f600" * 200 + "{}", "\\" * 400 + "{}", "%" * 400 + "{}",
        "{} " * 200],
}  # fmt: skip
HOSTILE = list(
    dict.fromkeys(each.format(*[target] * 200) for each, target in product(chain(*FAMILIES.values()), TARGETS[:2]))
)
assert len(HOSTILE) >= 200

NAMES = [
    "'; DROP TABLE canary;--", 'a"b', "a`b", "../canary", "a/b", "a\\b", "a\0b", "canary%00", "{canary}", "a;b",
    "a$$b", "😀",
    "größe", "a" * 300, " a", "a b", "-a", ".", "..", "con", "a?b#c", "a\nb", "pg_catalog",
    "information_schema.tables", "SELECT",
]  # fmt: skip


TOGETHER = 25
"""Hostile texts of one filter."""


class Struck(NamedTuple):
    """A collection with hostile chunks beside ordinary ones."""

    client: CollectionClient
    chunks: list[Chunk]


ORDINARY = [Chunk(f"ordinary-{at}", f"an ordinary pump number{at}", "parent", {"v": at, "w": "x"}) for at in range(20)]
CANARIES = [Chunk(f"canary-{at}", f"canary bird number{at}", None, {"v": "canary"}) for at in range(5)]


def marker(at: int) -> str:
    """A word that one chunk alone has, whatever the analyzer cuts off or apart."""
    return "zx" + "".join(chr(ord("b") + int(digit)) for digit in f"{at:03}") + "q"


def hostile_chunks() -> list[Chunk]:
    """One for each hostile text: as its id, in its text, as a value, and, where a key may be so, as a key."""
    made = []
    for at, text in enumerate(HOSTILE):
        metadata: dict[str, Any] = {"v": text, "list": [text, "other"], "at": at, "in": {text: text}}
        if text.isprintable():
            metadata[text] = f"key {at}"
        made.append(Chunk(text[-250:], f"{text} {marker(at)} {text}", text[-250:], metadata))
    return made


ALIKE = ("chroma-http", "opensearch", "qdrant")
"""A server of Chroma searches as Chroma does in this process, OpenSearch as Elasticsearch; Qdrant's slow local mode is
asked what its segment is.
"""

SEARCHED = pytest.mark.parametrize("connect", [name for name in SYSTEMS if name not in ALIKE], indirect=True)


@pytest.fixture(scope="module", params=list(SYSTEMS))
def connect(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Connect]:
    system = SYSTEMS[request.param]
    system.skip()
    with system.opened(tmp_path_factory.mktemp(system.name)) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(connect: Connect, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Collections]:
    collections = Collections(connect, None, tmp_path_factory.mktemp("bases"))
    yield collections
    collections.end()


@pytest.fixture(scope="module")
def canary(made: Collections) -> CollectionClient:
    client = made("canary", analyzer=AUTO, embedder=WordEmbedder())
    client.upsert(CANARIES)
    return client


@pytest.fixture(scope="module")
def struck(made: Collections, canary: CollectionClient) -> Struck:
    client, chunks = made(analyzer=AUTO, embedder=WordEmbedder()), hostile_chunks()
    client.upsert(ORDINARY)
    parents = [Chunk(chunk.id, f"parent of {chunk.text}", None, chunk.metadata) for chunk in chunks]
    client.upsert(chunks, parents=parents)
    return Struck(client, chunks)


def test_all_are_stored_as_they_are(struck: Struck) -> None:
    held(struck.client.get(chunk.id for chunk in struck.chunks), struck.chunks, struck.client.name)
    held({chunk.id: chunk for chunk in struck.client.engine}, [*ORDINARY, *struck.chunks], struck.client.name)
    parents = struck.client.parents(chunk.id for chunk in struck.chunks)
    equal(
        {one: parent.text for one, parent in parents.items()},
        {chunk.id: f"parent of {chunk.text}" for chunk in struck.chunks},
        "parents",
    )


def test_each_is_found_alone_by_its_id(struck: Struck) -> None:
    for chunk in struck.chunks:
        held(struck.client.get([chunk.id]), [chunk], struck.client.name)
        equal(list(struck.client.engine.vectors([chunk.id])), [chunk.id], f"ids of vectors of {chunk.id!r:.80}")


def groups() -> Iterator[range]:
    """The places of the hostile texts, some at a time: an engine that takes a while is asked once for each group."""
    for start in range(0, len(HOSTILE), TOGETHER):
        yield range(start, min(start + TOGETHER, len(HOSTILE)))


def markers(places: Iterable[int]) -> str:
    return " ".join(marker(at) for at in places)


@SEARCHED
def test_each_is_found_by_its_words(struck: Struck) -> None:
    for group in groups():
        found = struck.client.bm25(markers(group), len(HOSTILE)).ids
        equal(sorted(found), sorted(struck.chunks[at].id for at in group), f"found by the markers of {group}")


@SEARCHED
def test_a_hostile_query_is_a_query(struck: Struck) -> None:
    """Each on one channel; by words beside its marker, which is found whatever the rest is read as."""
    for at, text in enumerate(HOSTILE):
        if at % 2:
            words = struck.client.bm25(f"{text} {marker(at)}", 3)
            that(struck.chunks[at].id in words.ids, f"{text!r:.80} as a query found {words.ids!r:.200}")
        else:
            near = struck.client.dense(text, 3)
            equal((len(near), near.errors), (3, ()), f"found by vectors of {text!r:.80}")


def by_key(at: int) -> dict[str, Any]:
    """A filter by the text as a key, where it may be one, else by its value in two ways at once."""
    text = HOSTILE[at]
    if text.isprintable() and not text.startswith("$"):
        return {text: f"key {at}"}
    return {"$and": [{"v": text}, {"list": {"$contains": text}}]}


FILTERS: dict[str, Callable[[int], dict[str, Any]]] = {
    "value": lambda at: {"v": HOSTILE[at]},
    "in": lambda at: {"v": {"$in": [HOSTILE[at]]}},
    "list": lambda at: {"list": HOSTILE[at]},
    "key": by_key,
}
"""What the chunk of a hostile text passes alone."""


@SEARCHED
@pytest.mark.parametrize("form", FILTERS)
def test_each_is_found_by_a_filter_on_value_and_key(struck: Struck, form: str) -> None:
    """Each filter among some others of its form: what passes is asked for beside what does not, on both channels."""
    for turn, group in enumerate(groups()):
        wanted = sorted(struck.chunks[at].id for at in group)
        where = {"$or": [FILTERS[form](at) for at in group]}
        words = markers(range(max(0, group.start - 5), group.stop + 5))
        query = Query(words, where=where) if turn % 2 else Query(words, require=where)
        equal(sorted(struck.client.bm25(query, len(HOSTILE)).ids), wanted, f"by words under {where!r:.300}")
        near = set(struck.client.dense(query, len(HOSTILE)).ids)
        that(near <= set(wanted), f"by vectors under {where!r:.300}: {sorted(near - set(wanted))!r:.300}")


@pytest.mark.parametrize("form", FILTERS)
def test_some_are_found_by_a_filter_alone(struck: Struck, form: str) -> None:
    """Every seventh text with its filter alone, so that no other part of a filter closes what it opens."""
    for at in range(list(FILTERS).index(form), len(HOSTILE), 7):
        query = Query(markers(range(max(0, at - 1), at + 2)), where=FILTERS[form](at))
        equal(struck.client.bm25(query, 5).ids, (struck.chunks[at].id,), f"found by {query.where!r:.300}")


@SEARCHED
def test_a_hostile_filter_passes_nothing_else(struck: Struck) -> None:
    for start in range(0, len(HOSTILE), TOGETHER):
        texts = HOSTILE[start : start + TOGETHER]
        for where in (
            {"$or": [{"w": text} for text in texts]},
            {"$or": [{"v": {"$contains": f"{text} nowhere"}} for text in texts]},
            {"w": {"$in": [*texts, *(f"{text}'" for text in texts)]}},
        ):
            query = Query(f"pump {marker(1)}", where=where)
            found = struck.client.bm25(query, 9).ids + struck.client.dense(query, 9).ids
            equal(found, (), f"what passes {where!r:.300}")


def test_hostile_ids_delete_nothing_else(struck: Struck) -> None:
    client = struck.client
    equal(client.delete([f"{text[:240]}?" for text in HOSTILE]), 0, "deleted by ids that are not here")
    equal(
        client.delete(where={"v": {"$in": [f"{text} " for text in HOSTILE]}}), 0, "deleted by values that are not here"
    )
    for by_value in (False, True):
        gone = struck.chunks[:: 11 if by_value else 9]
        for chunk in gone:
            deleted = client.delete(where={"v": chunk.metadata["v"]}) if by_value else client.delete([chunk.id])
            equal(deleted, 1, f"deleted by {chunk.metadata['v'] if by_value else chunk.id!r:.80}")
        parents = [Chunk(chunk.id, f"parent of {chunk.text}", None, chunk.metadata) for chunk in gone]
        equal(client.upsert(gone, parents=parents).added, len(gone), "put in again")
    held({chunk.id: chunk for chunk in client.engine}, [*ORDINARY, *struck.chunks], client.name)


def test_another_collection_is_as_it_was(canary: CollectionClient) -> None:
    held({chunk.id: chunk for chunk in canary.engine}, CANARIES, "canary")
    equal(sorted(canary.bm25("canary", 9).ids), [chunk.id for chunk in CANARIES], "canaries found by a word")
    equal(len(canary.dense("canary bird", 9)), len(CANARIES), "canaries found by vectors")


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:40])
def test_a_hostile_collection_name_is_a_name_or_refused(connect: Connect, canary: CollectionClient, name: str) -> None:
    try:
        client = CollectionClient(connect(name, analyzer=AUTO, embedder=WordEmbedder()), None)
        client.upsert(ORDINARY[:3])
    except (ConfigError, RetrievalError) as error:
        that(isinstance(error, ConfigError), f"{name!r:.60} was refused by {error!r:.300}, expected a ConfigError")
    else:
        try:
            equal(client.count(), 3, f"count of {name!r:.60}")
            equal(len(client.bm25("pump", 9)), 3, f"found in {name!r:.60}")
            client.clear()
        finally:
            client.close()
    test_another_collection_is_as_it_was(canary)


def test_what_is_too_long_is_refused(struck: Struck) -> None:
    limits = Limits()
    for chunk in (
        Chunk("i" * (limits.id + 1), "a"),
        Chunk("a", "a", None, {"v": "x" * limits.metadata}),
        Chunk("a", "x" * (limits.text + 1)),
    ):
        with pytest.raises(ConfigError):
            struck.client.upsert([chunk])
    longest = Chunk("😀" * (limits.id // 4), "word " * (limits.text // 5), None, {"v": "x" * (limits.metadata - 100)})
    struck.client.upsert([longest])
    held(struck.client.get([longest.id]), [longest], struck.client.name)
    equal(struck.client.bm25("word", 3).ids, (longest.id,), "found by its word")
    equal(struck.client.delete([longest.id]), 1, "deleted")
