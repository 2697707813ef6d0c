"""Mutation testing of the package: 100 small changes drawn with a fixed seed, and whether a test notices each.

    python -m tests.mutants cover FOLDER      a copy of the project with all mutants in it, and which test reaches which
    python -m tests.mutants run FOLDER        each mutant against the tests that reach it, until one fails
    python -m tests.mutants table FOLDER      the result as a table

All mutants stand in one copy of the package, each behind a switch (mutant schemata: Untch, Offutt, Harrold, ISSTA
1993): `new if on(7) else old`. With the variable MUTANT=7 that one is on, in subprocesses too; without it a switch
notes which test passed it. Functions compiled by numba cannot note anything: a mutant in one is reached by the tests
that reach a function which calls into its module.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PACKAGE = "voicevault_retrievers"
SEED, DRAWN = 20_261_124, 100
CPU_SECONDS = 7200.0
"""For all mutants together; each may use an equal part."""
STARTING = 8.0
"""CPU seconds to start pytest and collect."""

SWITCH = """
import os
ACTIVE = int(os.environ.get("MUTANT", "-1"))
SEEN = set()
FOLDER = os.environ.get("MUTANT_HITS")

def on(number):
    if FOLDER and ACTIVE < 0:
        test = os.environ.get("PYTEST_CURRENT_TEST", "")
        if test and (number, test) not in SEEN:
            SEEN.add((number, test))
            with open(os.path.join(FOLDER, str(os.getpid())), "a") as notes:
                notes.write(f"{number}\\t{test}\\n")
    return number == ACTIVE
"""

REPORTING = """

def pytest_runtest_logreport(report):
    if "PYTEST_XDIST_WORKER" in os.environ and "MUTANT_HITS" in os.environ:
        with open(os.path.join(os.environ["MUTANT_HITS"], f"reports-{os.getpid()}"), "a") as notes:
            notes.write(f"{report.outcome}\\t{report.duration}\\t{report.nodeid}\\n")
"""

OPPOSITE: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult, ast.Mod: ast.Mult,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """One change: where it stands, the text there and the text instead."""

    number: int
    file: str
    line: int
    old: str
    new: str
    compiled: bool


def changed(node: ast.AST) -> ast.expr | None:
    """What a mutant puts in an expression's place; None where this kind of expression has none."""
    fresh: Any = deepcopy(node)
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in OPPOSITE:
            fresh.ops = [OPPOSITE[type(operator)]()]
        case ast.BoolOp() | ast.BinOp() if type(node.op) in OPPOSITE:
            fresh.op = OPPOSITE[type(node.op)]()
        case ast.UnaryOp(op=ast.Not()):
            fresh = fresh.operand
        case ast.Constant(value=bool()):
            fresh.value = not fresh.value
        case ast.Constant(value=int() | float()):
            fresh.value += 1
        case ast.IfExp():
            fresh.body, fresh.orelse = fresh.orelse, fresh.body
        case _:
            return None
    return fresh


class Places(ast.NodeVisitor):
    """The expressions inside functions that can be changed; annotations, defaults and decorators are left alone."""

    def __init__(self) -> None:
        self.found: list[tuple[ast.expr, bool]] = []
        self.compiled: list[bool] = []

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name == "__repr__":
            return
        self.compiled.append(_is_compiled(node))
        for statement in node.body:
            self.visit(statement)
        self.compiled.pop()

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Messages are left alone."""

    def visit_match_case(self, node: ast.match_case) -> None:
        for statement in node.body:
            self.visit(statement)

    def generic_visit(self, node: ast.AST) -> None:
        if self.compiled and isinstance(node, ast.expr) and changed(node) is not None:
            self.found.append((node, self.compiled[-1]))
        super().generic_visit(node)


def drawn() -> dict[str, list[tuple[Mutant, ast.expr]]]:
    """The mutants by file, with the expression that each changes."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in sorted((ROOT / PACKAGE).rglob("*.py"))}
    places = []
    for path, tree in trees.items():
        visitor = Places()
        visitor.visit(tree)
        places += [(path, node, compiled) for node, compiled in visitor.found]
    chosen: dict[str, list[tuple[Mutant, ast.expr]]] = defaultdict(list)
    for number, (path, node, compiled) in enumerate(random.Random(SEED).sample(places, DRAWN)):
        name = str(path.relative_to(ROOT))
        new = changed(node)
        assert new is not None
        mutant = Mutant(number, name, node.lineno, ast.unparse(node), ast.unparse(new), compiled)
        chosen[name].append((mutant, node))
    return chosen


class Switching(ast.NodeTransformer):
    """Puts the switch of each mutant into a module."""

    def __init__(self, mutants: dict[int, Mutant], probed: dict[int, set[str]], own: bool) -> None:
        self.mutants, self.probed, self.own = mutants, probed, own

    def visit(self, node: ast.AST) -> Any:
        mutant = self.mutants.get(id(node))
        new = changed(node) if mutant else None
        node = self.generic_visit(node)
        if mutant is None or new is None:
            return node
        test = f"_M{mutant.number}" if mutant.compiled else f"_mutants.on({mutant.number})"
        return ast.IfExp(ast.parse(test, mode="eval").body, new, node)

    def generic_visit(self, node: ast.AST) -> Any:
        names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
        names |= {one.attr for one in ast.walk(node) if isinstance(one, ast.Attribute)}
        super().generic_visit(node)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not self.own and not _is_compiled(node):
            for number, kernels in self.probed.items():
                if names & kernels:
                    node.body.insert(0, ast.parse(f"_mutants.on({number})").body[0])
        return node


def switched(folder: Path) -> list[Mutant]:
    """Put all mutants into the copy of the project that stands in a folder."""
    chosen = drawn()
    mutants = [mutant for pairs in chosen.values() for mutant, _ in pairs]
    kernels = {
        mutant.number: {
            node.name
            for node in ast.parse((ROOT / mutant.file).read_text("utf-8")).body
            if isinstance(node, ast.FunctionDef)
        }
        for mutant in mutants
        if mutant.compiled
    }
    homes = {mutant.file for mutant in mutants if mutant.compiled}
    (folder / "_mutants.py").write_text(SWITCH)
    for path in sorted((ROOT / PACKAGE).rglob("*.py")):
        name = str(path.relative_to(ROOT))
        tree = ast.parse(path.read_text("utf-8"))
        own = {(node.lineno, node.col_offset, ast.unparse(node)): mutant for mutant, node in chosen.get(name, ())}
        found = {
            id(node): mutant
            for node in ast.walk(tree)
            if isinstance(node, ast.expr)
            and (mutant := own.get((node.lineno, node.col_offset, ast.unparse(node)))) is not None
        }
        before = ast.unparse(tree)
        tree = Switching(found, kernels, own=name in homes).visit(tree)
        if ast.unparse(ast.fix_missing_locations(tree)) == before:
            continue
        at = next(at for at, node in enumerate(tree.body) if not _leading(node))
        lines = ["import _mutants", *(f"_M{m.number} = _mutants.on({m.number})" for m in found.values() if m.compiled)]
        tree.body[at:at] = ast.parse("\n".join(lines)).body
        (folder / name).write_text(ast.unparse(ast.fix_missing_locations(tree)), encoding="utf-8")
    return sorted(mutants, key=lambda mutant: mutant.number)


def _is_compiled(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    return any(ast.unparse(one) == "compiled" for one in node.decorator_list)


def _leading(node: ast.stmt) -> bool:
    """Whether a statement has to stand first: the docstring, and imports from the future."""
    return isinstance(node, ast.Expr) or (isinstance(node, ast.ImportFrom) and node.module == "__future__")


def cover(folder: Path, arguments: Sequence[str]) -> None:
    """Make the copy, run the suite in it once, and write down which tests reach which mutant."""
    tree, hits = folder / "tree", folder / "hits"
    kept = shutil.ignore_patterns(".git", ".venv*", "__pycache__", ".*_cache", "site", "build", "dist")
    shutil.copytree(ROOT, tree, ignore=kept)
    hits.mkdir()
    mutants = switched(tree)
    (folder / "mutants.json").write_text(json.dumps([asdict(mutant) for mutant in mutants], indent=1))
    with (tree / "tests/conftest.py").open("a", encoding="utf-8") as conftest:
        conftest.write(REPORTING)
    pytest(tree, ["-n", "2", "--dist", "worksteal", *arguments], MUTANT_HITS=str(hits))
    gather(folder)


def gather(folder: Path) -> None:
    """What the tests have noted, by mutant and by test.

    A test that failed without a mutant tells nothing.
    """
    hits = folder / "hits"
    spent, failed = defaultdict[str, float](float), set[str]()
    for notes in hits.glob("reports-*"):
        for line in notes.read_text().splitlines():
            outcome, seconds, test = line.split("\t", 2)
            test = askable(test)
            spent[test] += float(seconds)
            failed |= {test} if outcome != "passed" else set()
    spent = {test: seconds for test, seconds in spent.items() if test not in failed}
    (folder / "spent.json").write_text(json.dumps(spent, indent=1))
    reached: dict[int, set[str]] = defaultdict(set)
    files: dict[str, list[str]] = defaultdict(list)
    for test in spent:
        files[test.partition("::")[0]].append(test)
    for notes in hits.glob("[0-9]*"):
        for line in notes.read_text().splitlines():
            number, test = line.split("\t", 1)
            name, _, phase = test.rpartition(" (")
            name = askable(name)
            found = [name] if phase == "call)" else files[name.partition("::")[0]]
            reached[int(number)].update(one for one in found if one in spent)
    (folder / "reached.json").write_text(json.dumps({key: sorted(reached[key]) for key in sorted(reached)}, indent=1))


def askable(test: str) -> str:
    """The name by which a test can be asked for: without its parameters where these have a backslash."""
    return test.partition("[")[0] if "\\" in test else test


def pytest(tree: Path, options: Sequence[str], timeout: float | None = None, **variables: str) -> int | None:
    """Run pytest in the copy; its exit status, None where its time ran out."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "CI": "true", **variables}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    with (
        (tree.parent / f"log-{variables.get('MUTANT', 'cover')}").open("wb") as log,
        subprocess.Popen(command, cwd=tree, env=environment, stdout=log, stderr=log, start_new_session=True) as process,
    ):
        try:
            return process.wait(timeout)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, 9)
            return None


def run(folder: Path) -> None:
    """Try each mutant, two at a time, and write down how each ended; one whose end is written already is left out."""
    tree = folder / "tree"
    mutants = [Mutant(**one) for one in json.loads((folder / "mutants.json").read_text())]
    spent: dict[str, float] = json.loads((folder / "spent.json").read_text())
    reached: dict[str, list[str]] = json.loads((folder / "reached.json").read_text())
    part = CPU_SECONDS / DRAWN

    def one(mutant: Mutant) -> None:
        end = folder / f"end-{mutant.number}.json"
        if not end.exists():
            end.write_text(json.dumps(tried(mutant)))

    def tried(mutant: Mutant) -> dict[str, Any]:
        tests = list(within(reached.get(str(mutant.number), []), spent, part - STARTING))
        told = asdict(mutant) | {"reached": len(reached.get(str(mutant.number), ())), "run": len(tests)}
        if not tests:
            return told | {"end": "not reached", "seconds": 0.0}
        started = time.monotonic()
        variables = {"MUTANT": str(mutant.number)}
        if mutant.compiled:
            variables["NUMBA_CACHE_DIR"] = str(folder / f"numba-{mutant.number}")
        asked = folder / f"tests-{mutant.number}"
        asked.write_text("\n".join(tests))
        options = ["-x", "-n", "0", "-p", "no:randomly", "--no-header", f"@{asked}"]
        status = pytest(tree, options, 60 + 3 * part, **variables)
        ends = {0: "survived", 1: "killed", 2: "killed", 4: "killed (collecting)", None: "not finished"}
        end = ends.get(status, f"exit {status}")
        return told | {"end": end, "seconds": round(time.monotonic() - started, 1)}

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(one, mutants))


def within(tests: Sequence[str], spent: dict[str, float], most: float) -> Iterator[str]:
    """The tests that fit into a time, the quick ones first, those of a file together."""
    quick: list[str] = []
    total = 0.0
    for test in sorted(tests, key=lambda test: (spent[test], test)):
        total += spent[test] + 0.005
        if total > most and quick:
            break
        quick.append(test)
    place = {}
    for test in quick:
        place.setdefault(test.partition("::")[0], len(place))
    yield from sorted(quick, key=lambda test: place[test.partition("::")[0]])


def table(folder: Path) -> None:
    """Print how each mutant ended."""
    ends = sorted((json.loads(end.read_text()) for end in folder.glob("end-*.json")), key=lambda end: end["number"])
    for one in ends:
        change = f"`{one['old'][:50]}` to `{one['new'][:50]}`"
        sys.stdout.write(
            f"| {one['number']} | {one['file']}:{one['line']} | {change} | {one['reached']} | {one['end']} |\n"
        )
    killed = sum(one["end"].startswith("killed") for one in ends)
    sys.stdout.write(f"\n{killed} of {len(ends)} killed, {sum(one['seconds'] for one in ends) / 3600:.2f} hours\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=("cover", "run", "table"))
    parser.add_argument("folder", type=Path)
    given, rest = parser.parse_known_args()
    folder = given.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if given.step == "cover":
        cover(folder, rest)
    else:
        {"run": run, "table": table}[given.step](folder)


if __name__ == "__main__":
    main()
