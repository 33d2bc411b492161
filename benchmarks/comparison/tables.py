"""Format results as tables, for the terminal and for Markdown."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from t2r_export.cli.output import table
from t2r_export.files import write_bytes
from t2r_runtime.errors import UserError

# formats of results
DECODE, BATCH, EXPORT, PROFILE = "t2r-bench-decode", "t2r-bench-batch", "t2r-bench-export", "t2r-bench-profile"
TRANSLATE, EMBEDDING = "t2r-bench-translate", "t2r-bench-embedding"
SERVE, SOAK = "t2r-bench-serve", "t2r-bench-soak"
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """A title, a head and rows of cells."""

    title: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        return table(self.rows, self.head, markdown=True)


def write_csv(rows: Sequence[Row], path: Path) -> None:
    """Write rows with equal keys as CSV."""
    text = io.StringIO()
    writer = csv.DictWriter(text, rows[0].keys(), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_bytes(path, text.getvalue().encode())


def read_result(path: Path) -> dict[str, Any]:
    """Read a result of benchmarks/run.py.

    Raises:
        UserError: a missing file or another format.
    """
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
        known = result["format"] in TABLES
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"a result of benchmarks/run.py in {path}", str(error), "measure it again") from error
    if not known:
        raise UserError(f"a result of a format of {', '.join(TABLES)} in {path}", result["format"], "measure it again")
    return dict(result)


def tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """All tables of a result, by name."""
    return TABLES[result["format"]](result)


def decode_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of a decode result: `steps-2`, `memory-2`, … per number of threads."""
    tables: dict[str, Table] = {}
    for speed in result["bandwidth"]:
        threads = speed["threads"]
        where = measured(result, threads)

        def of(kind: str, threads: int = threads) -> list[Row]:
            return [row for row in result[kind] if row["threads"] == threads]

        steps, prompts = of("steps"), of("prompts")
        tables[f"steps-{threads}"] = _grid(f"{where}: ms a token at each length (10-90 %)", steps, "context", _spread)
        tables[f"ratios-{threads}"] = _grid(f"{where}: time a token, ratio to the first", steps, "context", _ratio)
        tables[f"memory-{threads}"] = _grid(f"{where}: resident memory, MB", steps, "context", _megabytes)
        if prompts:
            tables[f"prompts-{threads}"] = _grid(f"{where}: prompt tokens a second", prompts, "tokens", _rate)
        if turns := of("turns"):
            title = f"{where}: ms from {result['turn_tokens']} new tokens to the answer's first, after each length"
            tables[f"turns-{threads}"] = _grid(title, turns, "context", _spread)
        if any("median" in row for row in of("starts")):
            tables[f"starts-{threads}"] = _starts(where, of("starts"), result["candidates"])
        tables[f"limit-{threads}"] = _limit(where, speed, of("limits"), steps)
    return tables


def batch_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            row["name"],
            str(row["threads"]),
            str(row["batch"]),
            _cell(row, lambda r: f"{r['median']:.2f} ({r['low']:.2f}-{r['high']:.2f})"),
            _cell(row, lambda r: f"{r['tokens_per_second']:.0f}"),
            _cell(row, lambda r: f"{r['gain']:.2f}"),
            _cell(row, _megabytes),
        ]
        for row in result["batches"]
    ]
    head = ["", "threads", "B", "ms a step", "tokens/s", "of B's first", "MB"]
    return Table(f"{result['size']}: sequences side by side", head, rows)


def export_table(result: Mapping[str, Any]) -> Table:
    rows = [
        [
            row["name"],
            row["size"],
            f"{row['parameters']:,}",
            f"{row['seconds']:.1f} ({row['low']:.1f}-{row['high']:.1f})",
            f"{row['ratio']:.2f}",
            _mega(row["peak_bytes"]),
            f"{row['memory_ratio']:.2f}",
            _mega(row["file_bytes"]),
        ]
        for row in result["export"]
    ]
    head = ["", "size", "parameters", "seconds", "ratio", "peak, MB", "of the weights", "files, MB"]
    return Table("export, in a separate process", head, rows)


def profile_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of a profile: `operators` and `products`, with a column per graph."""
    threads, rate = result["threads"], result["bytes_per_second"] / 1e9
    where = measured(result, threads)
    profiles = result["profiles"]
    steps = ["a whole step", *(f"{found['step']:.0f}" for found in profiles)]
    head = ["", *(found["name"] for found in profiles)]
    operators = _shares(profiles, "operators", lambda s: f"{s['microseconds']:.0f} ({s['nodes']})")
    products = _shares(
        profiles, "products", lambda s: f"{s['microseconds']:.0f}, {s['bytes'] / 1e3 / s['microseconds']:.0f} GB/s"
    )
    return {
        "operators": Table(f"{where}: µs of a step by operator (and how many nodes)", head, [*operators, steps]),
        "products": Table(f"{where}: µs of a step by product; this machine reads {rate:.0f} GB/s", head, products),
    }


def translate_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of a translation result: `parity`, and `sentences-2`, … per number of threads."""
    tables = {"parity": _parity(result)}
    for threads in dict.fromkeys(row["threads"] for kind in ("speeds", "lengths") for row in result[kind]):
        where = measured(result, threads)
        speeds, lengths, starts = (
            [row for row in result[kind] if row["threads"] == threads] for kind in ("speeds", "lengths", "starts")
        )
        settings = [{**row, "setting": f"beam {row['beam']}, batch {row['batch']}"} for row in speeds]
        made = {
            "sentences": _grid(f"{where}: sentences a second (10-90 %)", settings, "setting", _sentences),
            "tokens": _grid(f"{where}: target tokens a second", settings, "setting", _tokens),
            "ratios": _grid(f"{where}: sentences a second, ratio to the first", settings, "setting", _ratio),
            "memory": _grid(f"{where}: resident memory, MB", settings, "setting", _megabytes),
            "lengths": _grid(f"{where}: ms a token of a translation of each length", lengths, "length", _spread),
            "starts": _starts(where, starts, result["candidates"], "translation"),
        }
        tables |= {f"{name}-{threads}": found for name, found in made.items() if found.rows}
    return tables


def embedding_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of benchmarks/embedding.py: `steps`, `ratios`, `encode`, `sizes`."""
    steps, encode = result["steps"], result["encode"]
    sizes = [[row["name"], f"{row['bytes']:,}", f"{row['gzipped']:,}"] for row in result["sizes"]]
    return {
        "steps": _grid("ms a step, the choice of the token included (10-90 %)", steps, "setting", _spread),
        "ratios": _grid("time a step, ratio to the first", steps, "setting", _ratio),
        "encode": _grid("text into tokens, MB a second (10-90 %)", encode, "setting", _spread),
        "sizes": Table("what is shipped", ["", "bytes", "gzipped"], sizes),
    }


def serve_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of a serve result, with the names of comparison.page."""
    where = measured(result, result["threads"])
    streams = [{**row, "setting": f"{row['streams']} after {row['context']:,}"} for row in result["streams"]]
    known = f"{where}: ms to the first token of {result['message']} new ones after {result['prefix_tokens']:,} known"
    steps = [row for row in result["steps"] if "gain" in row and row["batch"] > 1]
    rows = [[row["name"], str(row["batch"]), f"{1 / row['gain']:.3f}"] for row in steps]
    sessions = [
        [
            row["name"],
            f"{row['sessions']:,}",
            f"{row['state_bytes']:,}",
            f"{row['memory_ratio']:.2f}",
            f"{row['file_ratio']:.2f}",
        ]
        for row in result["sessions"]
    ]
    head = ["", "sessions", "bytes of a state", "memory, of the states", "files, of the states"]
    return {
        "streams": _grid(f"{where}: tokens/s of all streams (10-90 %)", streams, "setting", _rate),
        "streams-ratios": _grid(f"{where}: tokens/s, ratio to the first", streams, "setting", _ratio),
        "streams-memory": _grid(f"{where}: resident memory of the server, MB", streams, "setting", _megabytes),
        "prefix": _measured_rows(f"{known}, after a restart", result["prefix"]),
        "overhead": _measured_rows(f"{where}: ms a token of one text", result["overhead"]),
        "rows": Table(f"{where}: a step of many rows against as many steps of one", ["", "rows", "ratio"], rows),
        "sessions": Table("kept sessions", head, sessions),
    }


def soak_tables(result: Mapping[str, Any]) -> dict[str, Table]:
    """The table of a soak: `soak`."""
    counts = [[name, f"{value:,}"] for name, value in result["counts"].items()]
    memory = [[name, f"{_mega(value)} MB"] for name, value in result["memory"].items()]
    title = f"{result['size']}: mixed load, {result['clients']} clients, {result['seconds']:.0f} s"
    return {"soak": Table(title, ["", ""], [*counts, *memory])}


def _measured_rows(title: str, rows: Sequence[Row]) -> Table:
    cells = [[row["name"], _cell(row, _spread), _cell(row, _ratio)] for row in rows]
    return Table(title, ["", "ms (10-90 %)", "ratio"], cells)


def _parity(result: Mapping[str, Any]) -> Table:
    """Number of translations that differ from the first candidate's, per candidate and beam."""
    rows = result["parity"]
    beams = list(dict.fromkeys(row["beam"] for row in rows))
    found = {(row["name"], row["beam"]): f"{row['differ']} of {row['sentences']}" for row in rows}
    names = dict.fromkeys(row["name"] for row in rows)
    lines = [[name, *(found[name, beam] for beam in beams)] for name in names]
    title = f"{result['size']}: translations that differ from the first one's"
    return Table(title, ["", *(f"beam {beam}" for beam in beams)], lines)


def measured(result: Mapping[str, Any], threads: int) -> str:
    """Size and number of threads."""
    return f"{result['size']}, {threads} thread{'s' if threads > 1 else ''}"


def _shares(profiles: Sequence[Row], kind: str, cell: Callable[[Row], str]) -> list[list[str]]:
    """A row per operator or product, a column per graph."""
    found = [{share["name"]: share for share in profile[kind]} for profile in profiles]
    names = dict.fromkeys(name for shares in found for name in shares)
    return [[name, *(cell(shares[name]) if name in shares else "-" for shares in found)] for name in names]


def _grid(title: str, rows: Sequence[Row], column: str, cell: Callable[[Row], str]) -> Table:
    """A row per candidate, a column per length or setting."""
    names = list(dict.fromkeys(row["name"] for row in rows))
    places = list(dict.fromkeys(row[column] for row in rows))
    found = {(row["name"], row[column]): row for row in rows}
    cells = [[_cell(found.get((name, place), {}), cell) for place in places] for name in names]
    lines = [[name, *line] for name, line in zip(names, cells, strict=True)]
    return Table(title, ["", *(f"{place:,}" if isinstance(place, int) else place for place in places)], lines)


def _starts(where: str, rows: Sequence[Row], candidates: Sequence[Row], first: str = "token") -> Table:
    files = {candidate["name"]: candidate["file_bytes"] for candidate in candidates}
    head = ["", f"process start to first {first}, s", "ratio", "file, MB"]
    lines = [[r["name"], _cell(r, _spread), _cell(r, _ratio), _mega(files[r["name"]])] for r in rows]
    return Table(f"{where}: start", head, lines)


def _limit(where: str, speed: Row, rows: Sequence[Row], steps: Sequence[Row]) -> Table:
    """Bytes of a step, the limit of its time, and the bytes over the measured times."""
    times = {(row["name"], row["context"]): row["median"] for row in steps if "median" in row}
    contexts = list(dict.fromkeys(context for _, context in times))
    head = ["", "weights, MB", "states, MB", "limit, ms", *(f"GB/s after {context:,}" for context in contexts)]
    lines = []
    for row in rows:
        sizes = row["weight_bytes"], row["state_bytes"]
        rates = [
            f"{sum(sizes) / 1e6 / times[row['name'], at]:.0f}" if (row["name"], at) in times else "-" for at in contexts
        ]
        lines.append([row["name"], *map(_mega, sizes), f"{row['floor']:.2f}", *rates])
    rate = f"{speed['median'] / 1e9:.1f} GB/s ({speed['low'] / 1e9:.1f}-{speed['high'] / 1e9:.1f})"
    return Table(f"{where}: the limit, from {rate} read by {speed['form']}", head, lines)


def _cell(row: Row, write: Callable[[Row], str]) -> str:
    if "median" in row:
        return write(row)
    return f"failed: {row['error']}" if "error" in row else "-"


def _spread(row: Row, places: int = 2) -> str:
    return f"{row['median']:.{places}f} ({row['low']:.{places}f}-{row['high']:.{places}f})"


def _rate(row: Row) -> str:
    return _spread(row, 0)


def _sentences(row: Row) -> str:
    return _spread(row, 1 if row["median"] < 100 else 0)


def _tokens(row: Row) -> str:
    return f"{row['tokens_per_second']:.0f}"


def _ratio(row: Row) -> str:
    return f"{row['ratio']:.2f}"


def _megabytes(row: Row) -> str:
    return _mega(row["resident"]) if "resident" in row else "-"


def _mega(count: float) -> str:
    return f"{count / 1e6:.1f}" if count < 1e8 else f"{count / 1e6:.0f}"


TABLES: dict[str, Callable[[Mapping[str, Any]], dict[str, Table]]] = {
    DECODE: decode_tables,
    PROFILE: profile_tables,
    BATCH: lambda result: {"batch": batch_table(result)},
    EXPORT: lambda result: {"export": export_table(result)},
    TRANSLATE: translate_tables,
    EMBEDDING: embedding_tables,
    SERVE: serve_tables,
    SOAK: soak_tables,
}
