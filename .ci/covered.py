"""Measure which lines and branches of the runtimes the tests run: covered.py [--write] [PART...].

A part is python, libt2r or provider; without one, all, or the one whose turn T2R_TURN=K/N is. The figures are compared
with those of runtimes/COVERAGE.md, or with --write written there. Exit 1 if the aim is missed, or if a file below it
has no reason there; in a turn files are not asked, since those near the aim differ from run to run and from machine to
machine.

libt2r and the provider are built by clang, which counts regions of the source: T2R_CLANG and T2R_LLVM are the folders
where .ci/debian.py unpacked clang-14 and llvm-14. gcc's counters have branches of the compiler's own too.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "runtimes" / "COVERAGE.md"
BUILD = Path(os.environ.get("T2R_COVERAGE_BUILD") or ROOT / "build" / "coverage")
AIM = {"lines": 95.0, "branches": 90.0}
HEADS = ("| files | lines | branches |", "| file | lines | branches | what is not covered |")  # of the page's tables
FEW = 2  # a file below the aim is one that misses more lines or branches than these
SLACK = 0.5  # percent by which figures may differ from run to run
# patterns of files that read what may be untrusted
READERS = {
    "libt2r": """
        json.* onnx_file.* signature.* interface.* files.* npy.* zip.* snapshot.*
        tokenizer*.* added_tokens.* bpe.* unigram.* expression.* character_set.* normaliz* precompiled.*
        pre_tokenizer.* splits.* token_decoder.* text_search.* unicode.* utf8.*
    """,
    "python": """
        contract/signature.py contract/state_spec.py contract/source.py contract/options.py contract/chat*.py files.py
        session/archive.py session/snapshot.py session/model_file.py session/interface.py session/refusals.py
        text/tokenizer*.py text/patterns.py text/surfaces.py text/texts.py
    """,
    "provider": "",
}
CPP = "runtimes/cpp/tests/test_"
# tests of whole files, or of parts of them, whose runs with counters take seconds
CPP_TESTS = """
    tokenizers.py snapshots.py metadata.py adapters.py kinds.py calls.py decoder.py in_memory.py log.py patterns.py
    plugins.py rows.py sessions.py stops.py vectors.py misuse.py untrusted.py torture.py
    conformance.py::test_golden_files conformance.py::test_no_golden_files
    programs.py::test_every_method_of_the_cpp_header
    drafts.py programs.py::test_a_quota_of_cpu_time fuzz.py::test_random_calls
"""
# the first two take minutes with counters; the others need another build
CPP_OMITTED = " and ".join(
    f"not {name}"
    for name in ("threads_that_cancel", "costs_a_unigram", "too_large_leaves", "wrong_answers", "allocates_nothing")
)
# readers of files, requests and arguments, with all of their cases
FULLY = """
    test_tokenizer_bounds test_tokenizer_parts test_patterns test_snapshot test_untrusted serve/test_malformed
    cli/test_exit cli/test_values
"""
TESTS = {
    "python": [
        ["--quick", "tests/runtime", "tests/golden/test_conformance.py", "-k", "not test_runtime_imports_no_torch"],
        ["--quick", *(f"tests/cli/test_{name}.py" for name in ("generate", "chat", "score", "translate"))],
        [f"tests/runtime/{name}.py" for name in FULLY.split()],
    ],
    "libt2r": [[*(CPP + name for name in CPP_TESTS.split()), "-k", CPP_OMITTED]],
    # without the one that runs others again
    "provider": [["runtimes/provider/tests", "-k", "not beyond_a_value"]],
}
PROGRAMS = ("t2r_conformance", "header", "api_calls", "misuse_c", "misuse_cpp", "cores", "drafts", "torture")


@dataclass(frozen=True)
class Count:
    """Covered lines and branches of a file or of several, and how many there are."""

    lines: tuple[int, int]
    branches: tuple[int, int]

    def percent(self, what: str) -> float:
        covered, count = getattr(self, what)
        return 100 * covered / count if count else 100.0

    def below(self) -> bool:
        """Whether a file misses the aim, and by more than a few lines or branches."""
        return any(
            self.percent(what) < aim and getattr(self, what)[1] - getattr(self, what)[0] > FEW
            for what, aim in AIM.items()
        )

    def shown(self) -> str:
        return " | ".join(f"{self.percent(what):.1f} % of {getattr(self, what)[1]}" for what in AIM)


Counts = dict[str, Count]  # by path within a part


def total(counts: Iterable[Count]) -> Count:
    lines, branches = zip(*((each.lines, each.branches) for each in counts), strict=True)
    return Count(*(tuple(map(sum, zip(*pairs, strict=True))) for pairs in (lines, branches)))


# ---- Measuring ----


def run(command: list[str], environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return its output. Raises SystemExit if it fails."""
    done = subprocess.run(
        command, env={**os.environ, **(environment or {})}, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )
    if done.returncode:
        what = f"expected {' '.join(command[:4])} to succeed; received exit {done.returncode}"
        raise SystemExit(f"{done.stdout[-6000:]}\n{what}")
    return done.stdout


def pytest(part: str, environment: Mapping[str, str], *before: str) -> None:
    for name in ("T2R_TURN", "T2R_DATA"):  # the same tests in each run
        os.environ.pop(name, None)
    for tests in TESTS[part]:
        run([sys.executable, *before, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests], environment)


def python() -> Counts:
    folder = BUILD / "python"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    place = {"COVERAGE_FILE": str(folder / "data"), "COVERAGE_RCFILE": str(ROOT / "setup.cfg")}
    pytest("python", place, "-m", "coverage", "run")
    run([sys.executable, "-m", "coverage", "combine", "-q"], place)
    run([sys.executable, "-m", "coverage", "json", "-q", "-i", "-o", str(folder / "all.json")], place)
    found = json.loads((folder / "all.json").read_text())["files"]
    counts = {}
    for path, file in found.items():
        each, name = file["summary"], path.partition("t2r_runtime/")[2]
        if each["num_statements"]:
            lines = each["covered_lines"], each["num_statements"]
            counts[name] = Count(lines, (each["covered_branches"], each["num_branches"]))
    return counts


def libt2r() -> Counts:
    folder = built("libt2r", "cpp", "t2r", *PROGRAMS)
    plugin = packaged(built("provider", "provider", "t2r_provider"))
    pytest("libt2r", {"T2R_LIBRARY": str(folder / "libt2r.so"), **plugin, **place(folder)})
    return counted(folder, [folder / "libt2r.so", *(folder / name for name in PROGRAMS if name != "misuse_c")])


def provider() -> Counts:
    """All sets of kernels together: each function as the set covers it best."""
    folder = built("provider", "provider", "t2r_provider", "kernels", "faulty")
    pytest("provider", {**packaged(folder), **place(folder)})
    counts = counted(folder, [folder / name for name in ("libt2r_provider.so", "kernels", "libfaulty.so")])
    flags = Path("/proc/cpuinfo").read_text("utf-8")
    sets = {"avx2": "avx2", "avxvnni": "avx_vnni", "avx512": "avx512_vnni"}
    lacks = [name for name, flag in sets.items() if flag not in flags]
    return {name: count for name, count in counts.items() if not any(each in name for each in lacks)}


def packaged(folder: Path) -> dict[str, str]:
    """Where Python finds the provider of a build."""
    package = folder / "package" / "onnxruntime_ep_t2r"
    shutil.copytree(ROOT / "runtimes" / "provider" / package.name, package, dirs_exist_ok=True)
    shutil.copy(folder / "libt2r_provider.so", package)
    return {"PYTHONPATH": os.pathsep.join(filter(None, [str(package.parent), os.environ.get("PYTHONPATH")]))}


def built(part: str, source: str, *targets: str) -> Path:
    """A build with counters of runtimes/SOURCE."""
    sys.path.append(str(ROOT / "runtimes" / "cpp" / "tests"))
    os.environ["T2R_CPP_BUILD"] = str(BUILD)
    import cpp_build

    options = ["-DT2R_SANITIZE=coverage", f"-DCMAKE_CXX_COMPILER={cpp_build.clang()}", "-DCMAKE_BUILD_TYPE=None"]
    options.append("-DCMAKE_CXX_FLAGS=-O1")
    return cpp_build.build(part, *options, source=ROOT / "runtimes" / source, targets=targets)


def place(folder: Path) -> dict[str, str]:
    """The build for the tests, and where its programs leave their counts."""
    shutil.rmtree(folder / "profiles", ignore_errors=True)
    return {"T2R_COUNTED": str(folder), "LLVM_PROFILE_FILE": str(folder / "profiles" / "%2m.profraw")}


def counted(folder: Path, objects: list[Path]) -> Counts:
    """The counts of src/, from the profiles in a folder."""
    merged = folder / "all.profdata"
    raw = [str(path) for path in (folder / "profiles").iterdir() if path.stat().st_size]
    llvm("llvm-profdata", "merge", "-sparse", "-o", str(merged), *raw)
    others = [word for path in objects[1:] for word in ("-object", str(path))]
    said = llvm("llvm-cov", "export", "-summary-only", f"-instr-profile={merged}", str(objects[0]), *others)
    counts = {}
    for file in json.loads(said)["data"][0]["files"]:
        where, _, name = file["filename"].rpartition("/src/")
        if where.startswith(str(ROOT)):
            sizes = [(file["summary"][what]["covered"], file["summary"][what]["count"]) for what in AIM]
            counts[name] = Count(*sizes)
    return counts


def llvm(program: str, *arguments: str) -> str:
    """Run a program of LLVM: the one on the path, or that of T2R_LLVM with the libraries of T2R_CLANG."""
    found, environment = shutil.which(program), {}
    if not found:
        clang = Path(os.environ["T2R_CLANG"])
        libraries = [clang / "usr/lib/x86_64-linux-gnu", clang / "lib/x86_64-linux-gnu", clang / "usr/lib/llvm-14/lib"]
        environment = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, libraries))}
        found = str(Path(os.environ["T2R_LLVM"]) / "usr/lib/llvm-14/bin" / program)
    return run([found, *arguments], environment)


# ---- Comparing ----


def groups(measured: Mapping[str, Counts]) -> Counts:
    """Totals of each part: of the files that read untrusted ones, and of the others."""
    made = {}
    for part, counts in measured.items():
        readers = {name for name in counts if any(fnmatch(name, each) for each in READERS[part].split())}
        for what, names in (("readers of files", readers), ("the rest", counts.keys() - readers)):
            if names:
                made[f"{part}: {what}" if readers else part] = total(counts[name] for name in names)
    return made


def rows(page: str) -> dict[str, list[str]]:
    """The cells of the page's tables, by the first one."""
    lines = [line.strip("|").split("|") for line in page.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line] for line in lines]
    return {first.strip("`"): rest for first, *rest in cells}


def problems(measured: Mapping[str, Counts], page: str, of_files: bool = True) -> list[str]:
    """What the figures miss, one line each: the aim, what the page says, or the reason of a file."""
    known, found = rows(page), []
    for name, count in groups(measured).items():
        said = [float(cell.split(" %")[0]) for cell in known.get(name, ["0 %", "0 %"])[:2]]
        for (what, aim), published in zip(AIM.items(), said, strict=True):
            least = min(aim, published) if name in known else aim
            if count.percent(what) < least - SLACK:
                found.append(f"{name}: expected {least:.1f} % of {what}; received {count.percent(what):.1f} %")
    for part, counts in measured.items() if of_files else ():
        for file, count in sorted(counts.items()):
            if count.below() and not any(known.get(f"{part}/{file}", [])[2:]):
                found.append(f"{part}/{file}: expected the aim, or a reason on the page; received {count.shown()}")
    return found


def written(measured: Mapping[str, Counts], page: str) -> str:
    """The page with the measured figures; a reason is kept, and figures of other parts."""
    known = rows(page)
    first = {name: cells for name, cells in known.items() if cells and len(cells) == 2 and "%" in cells[0]}
    first |= {name: count.shown().split(" | ") for name, count in groups(measured).items()}
    below = {name: cells for name, cells in known.items() if "/" in name and name.split("/")[0] not in measured}
    for part, counts in measured.items():
        for file, count in sorted(counts.items()):
            if count.below():
                reason = known.get(f"{part}/{file}", ["", "", ""])[2]
                below[f"{part}/{file}"] = [*count.shown().split(" | "), reason]
    tables = [[f"| {name} | {' | '.join(cells)} |" for name, cells in sorted(first.items())]]
    tables.append([f"| `{name}` | {' | '.join(cells)} |" for name, cells in sorted(below.items())])
    for head, lines in zip(HEADS, tables, strict=True):
        body = "\n".join([head, "|" + "---|" * (head.count("|") - 1), *lines, ""])
        page = re.sub(rf"^{re.escape(head)}\n(\|.*\n)*", lambda _, body=body: body, page, flags=re.MULTILINE)
    return page


def turn(parts: list[str]) -> list[str]:
    """All parts, or those with number K, counting to N again and again, where T2R_TURN is K/N."""
    number, _, count = os.environ.get("T2R_TURN", "0/1").partition("/")
    return [part for n, part in enumerate(parts) if n % int(count) == int(number)]


def main(arguments: list[str]) -> int:
    parts = {"python": python, "libt2r": libt2r, "provider": provider}
    in_turn = "T2R_TURN" in os.environ
    names = [name for name in arguments if name != "--write"] or turn(list(parts))
    if not set(names) <= set(parts):
        raise SystemExit(f"expected parts among {', '.join(parts)}; received {', '.join(names)}")
    measured = {name: parts[name]() for name in names}
    page = PAGE.read_text("utf-8")
    if "--write" in arguments:
        page = written(measured, page)
        PAGE.write_text(page, "utf-8")
    wrong = problems(measured, page, of_files=not in_turn)
    said = [f"{name}: {count.shown()}" for name, count in groups(measured).items()]
    sys.stdout.write("\n".join([*said, *wrong, ""]))
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
