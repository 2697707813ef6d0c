"""The collections of a Milvus that an engine makes: their names, fields and indexes."""

from __future__ import annotations

from typing import Any

from voicevault_retrievers.errors import ConfigError

RECIPE = "voicevault.recipe"
"""The property of a collection that holds its recipe; its description does so too, which Milvus Lite does not keep."""

SIDE = "__side"
"""What stands behind the name of a collection in that of its parents and version."""

_CODED = "vv_x"
_LONGEST = 240


def checked_name(name: str) -> str:
    """A collection's name as Milvus takes it: other names than its own are said in digits.

    Raises ConfigError for one that is too long, and for one that is kept for what stands beside a collection.
    """
    if name.endswith(SIDE):
        raise ConfigError(f"the collection {name!r} would be what Milvus keeps beside another: end its name otherwise")
    plain = name.isascii() and name.isidentifier() and not name.startswith(_CODED)
    found = name if plain else _CODED + name.encode("utf-8", "surrogatepass").hex()
    if len(found) > _LONGEST:
        raise ConfigError(f"Milvus has no collections of so long a name as {name[:40]!r}...: shorten it")
    return found


def fields_of(milvus: Any, dimension: int | None, recipe: str) -> Any:
    """The schema of a collection of chunks."""
    of = milvus.DataType
    schema = milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=recipe)
    schema.add_field("pk", of.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("id", of.VARCHAR, max_length=8192)
    schema.add_field("digest", of.VARCHAR, max_length=32)
    schema.add_field("parent", of.VARCHAR, max_length=32)
    schema.add_field("pieces", of.ARRAY, element_type=of.VARCHAR, max_capacity=4096, max_length=65_535)
    for name in ("facets", "terms", "counts"):
        schema.add_field(name, of.ARRAY, element_type=of.INT64, max_capacity=4096)
    schema.add_field("ordered", of.JSON)
    schema.add_field("length", of.INT64)
    schema.add_field("sparse", of.SPARSE_FLOAT_VECTOR)
    if dimension is not None:
        schema.add_field("vector", of.FLOAT_VECTOR, dim=dimension)
    return schema


def side_fields_of(milvus: Any) -> Any:
    """The schema of what belongs to a collection and is not searched: parents, and the version."""
    of = milvus.DataType
    schema = milvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False)
    schema.add_field("pk", of.VARCHAR, is_primary=True, max_length=32)
    schema.add_field("pieces", of.ARRAY, element_type=of.VARCHAR, max_capacity=4096, max_length=65_535)
    schema.add_field("vector", of.FLOAT_VECTOR, dim=2)  # Milvus has no collections without vectors
    return schema


def indexes_of(milvus: Any, dimension: int | None, index: str, *, columns: bool) -> Any:
    """The indexes of a collection of chunks; `columns` for those of arrays, which Milvus Lite does not use."""
    params = milvus.MilvusClient.prepare_index_params()
    params.add_index("sparse", index_type="SPARSE_INVERTED_INDEX", metric_type="IP")
    if dimension is not None:
        params.add_index("vector", index_type=index, metric_type="COSINE")
    for name in ("facets", "terms", "parent") if columns else ():
        params.add_index(name, index_type="INVERTED")
    return params


def side_indexes_of(milvus: Any) -> Any:
    """The index of what is not searched."""
    params = milvus.MilvusClient.prepare_index_params()
    params.add_index("vector", index_type="FLAT", metric_type="COSINE")
    return params
