"""Questions and judgements as files: JSON Lines, and the qrels of BEIR and TREC."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from voicevault_retrievers.errors import ConfigError
from voicevault_retrievers.evaluation.judgements import Judged, normalised
from voicevault_retrievers.evaluation.measures import MAX_GRADE

_HEADER = ("query-id", "corpus-id", "score")


def load_judged(questions: Path | str, qrels: Path | str) -> list[Judged]:
    """Return the questions of a file (see `load_questions`) that have judgements in another (see `load_qrels`).

    Raises ConfigError where no question has judgements.
    """
    asked, grades = load_questions(questions), load_qrels(qrels)
    judged = [replace(one, grades=grades[one.id]) for one in asked if one.id in grades]
    if not judged:
        ids = f"{next((one.id for one in asked), None)!r} and {next(iter(grades), None)!r}"
        raise ConfigError(f"no question of {questions} has a judgement in {qrels}; their ids are such as {ids}")
    return judged


def load_questions(path: Path | str) -> list[Judged]:
    """Return the questions of a JSON Lines file: `_id`, `text`, and optionally `answers` and `synthetic`.

    `answers` is a text or a list of texts; `answer` is another name for it. Raises ConfigError, with the line, for an
    invalid question, and for a repeated id.
    """
    found: dict[str, Judged] = {}
    for where, line in _lines(path):
        try:
            one = _question(json.loads(line))
        except (ValueError, TypeError, KeyError) as error:
            raise ConfigError(
                f'{where}: a question is an object such as {{"_id": "q1", "text": "..."}}, not {line[:100]}: {error!r}'
            ) from error
        if one.id in found:
            raise ConfigError(f"{where}: there is a question {one.id!r} above")
        found[one.id] = one
    return list(found.values())


def load_qrels(path: Path | str) -> dict[str, dict[str, int]]:
    """Return grades by question id and judged name: BEIR's columns query, name, grade, or TREC's query, 0, name, grade.

    Columns are separated by tabs, so that names may contain spaces, or else by white space. A header is optional.
    Raises ConfigError, with the line, for an invalid line, and for two grades of one name.
    """
    found: dict[str, dict[str, int]] = {}
    for at, (where, line) in enumerate(_lines(path)):
        row = [field.strip() for field in line.split("\t")] if "\t" in line else line.split()
        if at == 0 and tuple(field.casefold() for field in row) == _HEADER:
            continue
        try:
            query, name, grade = row[0], row[-2], _grade(row[-1])
            if len(row) not in (3, 4) or not query or not name:
                raise ValueError(f"{len(row)} columns")
        except (ValueError, IndexError, OverflowError) as error:
            raise ConfigError(
                f"{where}: a judgement is query, name and a whole grade (or query, 0, name, grade), "
                f"with tabs between, not {line[:100]!r}: {error}"
            ) from error
        if found.setdefault(query, {}).setdefault(name, grade) != grade:
            raise ConfigError(f"{where}: {name!r} has another grade for {query!r} above")
    return found


def save_judged(questions: Sequence[Judged], folder: Path | str) -> tuple[Path, Path]:
    """Write `questions.jsonl` and `qrels.tsv` to a folder, as `load_judged` reads them. Returns their paths."""
    asked, qrels = Path(folder) / "questions.jsonl", Path(folder) / "qrels.tsv"
    asked.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(_data(one), ensure_ascii=False) for one in questions]
    rows = [f"{one.id}\t{name}\t{grade}" for one in questions for name, grade in one.grades.items()]
    asked.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    qrels.write_text("".join(f"{row}\n" for row in ["\t".join(_HEADER), *rows]), encoding="utf-8")
    return asked, qrels


def _lines(path: Path | str) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each with its place before it."""
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not a text in UTF-8: {error}") from error
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            yield f"{path}:{number}", line.rstrip("\r")


def _question(data: Mapping[str, Any]) -> Judged:
    name, text, synthetic = data["_id"], data["text"], data.get("synthetic", False)
    if isinstance(name, bool) or not isinstance(name, str | int) or not str(name):
        raise TypeError(f"_id is {name!r}")
    if not isinstance(text, str) or not text.strip():
        raise TypeError(f"text is {text!r}")
    if not isinstance(synthetic, bool):
        raise TypeError(f"synthetic is {synthetic!r}")
    return Judged(str(name), text, {}, _answers(data.get("answers", data.get("answer"))), synthetic)


def _answers(given: Any) -> tuple[str, ...]:
    answers = [given] if isinstance(given, str) else given or []
    for answer in answers:
        if not isinstance(answer, str) or not normalised(answer):
            raise TypeError(f"an answer is a text with a word in it, not {answer!r}")
    return tuple(answers)


def _grade(text: str) -> int:
    if float(text) != int(float(text)):
        raise ValueError(f"the grade {text} is not whole")
    if abs(int(float(text))) > MAX_GRADE:
        raise ValueError(f"the grade {text} is beyond 32 bits")
    return int(float(text))


def _data(one: Judged) -> dict[str, Any]:
    answers = {"answers": list(one.answers)} if one.answers else {}
    return {"_id": one.id, "text": one.text, **answers, **({"synthetic": True} if one.synthetic else {})}
