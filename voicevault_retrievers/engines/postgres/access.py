"""Row-level security: users of the database see the rows alone that their policy passes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from voicevault_retrievers._support.extras import require
from voicevault_retrievers.core.execution.steps import Steps
from voicevault_retrievers.engines.postgres.connections import SETTING, SqlStatement
from voicevault_retrievers.engines.postgres.tables import Tables
from voicevault_retrievers.engines.postgres.texts import escaped, is_plain
from voicevault_retrievers.errors import ConfigError

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
"""Terms and parents are seen with a chunk of theirs, the totals of all chunks by nobody but the owner."""

GRANTS = """
GRANT USAGE ON SCHEMA {schema} TO {role};
GRANT SELECT ON {collections}, {chunks}, {postings}, {parents}, {totals} TO {role}
"""


def check_access(key: Any, roles: Any, setting: Any) -> list[str]:
    """The roles, each named. Raises ConfigError for what `enabling` cannot be given."""
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
    """Make the policies, and grant roles what they need to search."""
    sql: Any = require("psycopg.sql", extra="postgres")
    who = sql.SQL("current_user::text")
    if setting is not None:
        who = sql.SQL("current_setting({}, true)").format(sql.Literal(setting))
    yield SqlStatement(tables.sql(POLICIES, who=who, key=sql.Literal(escaped(key))))
    for role in roles:
        yield SqlStatement(tables.sql(GRANTS, role=sql.Identifier(role)))
