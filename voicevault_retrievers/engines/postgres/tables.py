"""The tables of a collection: their names, their creation, and row-level security."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.engines.encoding import escaped
from voicevault_retrievers.engines.postgres.asking import SqlStatement
from voicevault_retrievers.engines.postgres.connections import SETTING
from voicevault_retrievers.engines.postgres.texts import is_plain
from voicevault_retrievers.errors import ConfigError

_PLAIN = re.compile(r"[a-z][a-z0-9_]{0,39}")
SLOTS = 32
"""The number of rows that hold the totals, so that concurrent writers seldom wait for each other."""


@dataclass(frozen=True)
class Tables:
    """The tables of a collection in a schema; `half` means halfvec.

    `extension` is the schema of pgvector, `textsearch` that of pg_textsearch.

    `recipe` is the collection's recipe as this client knows it, as `Recipe.text` writes it; None for unknown. A
    collection with a plain name has tables of that name, any other tables named by a digest.
    """

    schema: str
    collection: str
    extension: str = "public"
    half: bool = False
    recipe: str | None = None
    textsearch: str = "public"

    @property
    def prefix(self) -> str:
        """The beginning of the tables' names."""
        if _PLAIN.fullmatch(self.collection):
            return self.collection
        return f"_{hashlib.blake2b(escaped(self.collection).encode(), digest_size=16).hexdigest()}"

    def sql(self, text: str, **parts: Any) -> Any:
        """SQL with the names of the tables filled in; `parts` are SQL too."""
        return require("psycopg.sql", extra="postgres").SQL(text).format(**self._names, **parts)

    @property
    def known(self) -> dict[str, Any]:
        """The parameters of the check that the collection is still the known one."""
        return {"collection": escaped(self.collection), "recipe": self.recipe}

    @cached_property
    def _names(self) -> dict[str, Any]:
        sql: Any = require("psycopg.sql", extra="postgres")
        own = ("chunks", "postings", "totals", "parents", "counted", "touched", "words", "forgotten")
        tables = {each: sql.Identifier(self.schema, f"{self.prefix}_{each}") for each in own}
        named = {"near": "near", "terms": "terms", "by_chunk": "by_chunk", "bm25": "bm25", "words": "word_chunk"}
        indexes = {f"{each}_index": sql.Identifier(f"{self.prefix}_{name}") for each, name in named.items()}
        bm25 = sql.Literal(sql.Identifier(self.schema, f"{self.prefix}_bm25").as_string())
        kind = "halfvec" if self.half else "vector"
        return {
            **tables,
            **indexes,
            "schema": sql.Identifier(self.schema),
            "schema_name": sql.Literal(sql.Identifier(self.schema).as_string()),
            "collections": sql.Identifier(self.schema, "collections"),
            "chunks_name": sql.Literal(sql.Identifier(self.schema, f"{self.prefix}_chunks").as_string()),
            "near_regclass": sql.Literal(sql.Identifier(self.schema, f"{self.prefix}_near").as_string()),
            "collections_name": sql.Literal(sql.Identifier(self.schema, "collections").as_string()),
            "bm25_name": bm25,
            "by_words": sql.Identifier(self.schema, f"{self.prefix}_ranked"),
            "textsearch": sql.Identifier(self.textsearch),
            "vector": sql.Identifier(self.extension, kind),
            "full_vector": sql.Identifier(self.extension, "vector"),
            "vector_send": sql.Identifier(self.extension, "vector_send"),
            "near_operators": sql.Identifier(self.extension, f"{kind}_ip_ops"),
            "product": sql.SQL("OPERATOR({}.<#>)").format(sql.Identifier(self.extension)),
        }


CATALOG = """
CREATE TABLE IF NOT EXISTS {collections} (
    name text COLLATE "C" PRIMARY KEY,
    prefix text NOT NULL UNIQUE,
    recipe text NOT NULL
)
"""

TABLES = """
CREATE TABLE {chunks} (
    ordinal bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    text text NOT NULL,
    header text NOT NULL,
    parent_id text COLLATE "C",
    metadata jsonb NOT NULL,
    digest text NOT NULL,
    length integer NOT NULL,
    languages bigint NOT NULL
);
CREATE TABLE {postings} (
    term text COLLATE "C" NOT NULL,
    chunk bigint NOT NULL,
    frequency integer NOT NULL,
    length integer NOT NULL
);
CREATE INDEX {terms_index} ON {postings} (term, chunk) INCLUDE (frequency, length);
CREATE INDEX {by_chunk_index} ON {postings} (chunk);
CREATE TABLE {totals} (slot integer PRIMARY KEY, chunks bigint NOT NULL, length bigint NOT NULL) WITH (fillfactor = 50);
CREATE TABLE {parents} (
    id text COLLATE "C" PRIMARY KEY,
    text text NOT NULL,
    header text NOT NULL,
    parent_id text COLLATE "C",
    metadata jsonb NOT NULL
);
CREATE INDEX ON {chunks} (parent_id) WHERE parent_id IS NOT NULL;
CREATE INDEX ON {chunks} USING gin (metadata jsonb_path_ops);
CREATE FUNCTION {counted}() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
AS $body$
DECLARE
    number bigint := 0;
    sum bigint := 0;
BEGIN
    IF TG_OP = 'TRUNCATE' THEN
        DELETE FROM {postings};
        DELETE FROM {totals};
        RETURN NULL;
    END IF;
    IF TG_OP <> 'INSERT' THEN
        SELECT -count(*), -coalesce(sum(gone.length), 0) INTO number, sum FROM gone;
    END IF;
    IF TG_OP <> 'DELETE' THEN
        SELECT number + count(*), sum + coalesce(sum(come.length), 0) INTO number, sum FROM come;
    END IF;
    IF TG_OP = 'DELETE' THEN
        DELETE FROM {postings} p USING gone WHERE p.chunk = gone.ordinal;
    END IF;
    IF number <> 0 OR sum <> 0 THEN
        INSERT INTO {totals} AS t VALUES (pg_backend_pid() % {slots}, number, sum)
        ON CONFLICT (slot) DO UPDATE SET chunks = t.chunks + excluded.chunks, length = t.length + excluded.length;
    END IF;
    RETURN NULL;
END
$body$;
CREATE FUNCTION {touched}() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
AS $body$ BEGIN NEW.digest := ''; RETURN NEW; END $body$;
CREATE TRIGGER inserted AFTER INSERT ON {chunks} REFERENCING NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION {counted}();
CREATE TRIGGER deleted AFTER DELETE ON {chunks} REFERENCING OLD TABLE AS gone
    FOR EACH STATEMENT EXECUTE FUNCTION {counted}();
CREATE TRIGGER updated AFTER UPDATE ON {chunks} REFERENCING OLD TABLE AS gone NEW TABLE AS come
    FOR EACH STATEMENT EXECUTE FUNCTION {counted}();
CREATE TRIGGER truncated AFTER TRUNCATE ON {chunks} FOR EACH STATEMENT EXECUTE FUNCTION {counted}();
CREATE TRIGGER touched BEFORE UPDATE ON {chunks} FOR EACH ROW
    WHEN (OLD.digest = NEW.digest AND OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION {touched}()
"""
"""Triggers keep totals and postings in step with the chunks, whoever deletes. A row that others change loses its
digest, so that its next upsert writes it again.
"""

VECTORS = """
ALTER TABLE {chunks} ADD COLUMN embedding {vector}({dimension}) NOT NULL;
ALTER TABLE {chunks} ALTER COLUMN embedding SET STORAGE {storage}
"""

NEAR = """
CREATE INDEX {near_index} ON {chunks} USING hnsw (embedding {near_operators}) WITH (m = {m}, ef_construction = {ef})
"""

DROPPED = """
DROP TABLE IF EXISTS {chunks}, {postings}, {totals}, {parents}, {words};
DROP FUNCTION IF EXISTS {counted}(), {touched}(), {forgotten}(), {by_words}(text, integer)
"""


POLICIES = """
ALTER TABLE {chunks} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {postings} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {parents} ENABLE ROW LEVEL SECURITY;
ALTER TABLE {totals} ENABLE ROW LEVEL SECURITY;
DROP POLICY IF EXISTS access ON {chunks};
DROP POLICY IF EXISTS access ON {postings};
DROP POLICY IF EXISTS access ON {parents};
CREATE POLICY access ON {chunks} FOR SELECT USING (
    coalesce({who}, '') <> '' AND (
        metadata @> jsonb_build_object({key}, {who}) OR metadata @> jsonb_build_object({key}, jsonb_build_array({who}))
    )
);
CREATE POLICY access ON {postings} FOR SELECT USING (EXISTS (SELECT FROM {chunks} c WHERE c.ordinal = chunk));
CREATE POLICY access ON {parents} FOR SELECT USING (EXISTS (SELECT FROM {chunks} c WHERE c.parent_id = {parents}.id))
"""
"""Postings and parents are visible with one of their chunks, the totals of all chunks only to the owner."""

GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {collections}, {chunks}, {postings}, {parents}, {totals} TO {role}
"""


def check_access(key: Any, roles: Any, setting: Any) -> list[str]:
    """The roles as a list. Raises ConfigError for invalid arguments of `enabling`."""
    if not isinstance(key, str) or not key:
        raise ConfigError(f"the key of the metadata that names readers is a string that is not empty, not {key!r}")
    if isinstance(roles, str) or not isinstance(roles, Iterable):
        raise ConfigError(f"roles is a list of names; a single one goes in a list, such as ['alice'], not {roles!r}")
    named = list(roles)
    for role in named:
        if not is_plain(role) or not role:
            raise ConfigError(f"the name of a role is a string that is not empty, not {role!r}")
    if setting is not None and not (isinstance(setting, str) and SETTING.fullmatch(setting) and "." in setting):
        raise ConfigError(f"setting is the name of a setting with a dot, such as 'voicevault.user', not {setting!r}")
    return named


def enabling(tables: Tables, key: str, roles: Sequence[str], setting: str | None) -> Steps[None]:
    """Create the policies, and grant roles the rights that a search needs."""
    sql: Any = require("psycopg.sql", extra="postgres")
    who = sql.SQL("current_user::text")
    if setting is not None:
        who = sql.SQL("current_setting({}, true)").format(sql.Literal(setting))
    yield SqlStatement(tables.sql(POLICIES, who=who, key=sql.Literal(escaped(key))))
    for role in roles:
        yield SqlStatement(tables.sql(GRANTS, role=sql.Identifier(role)))
