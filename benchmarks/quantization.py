"""Loss, size and speed of the quantization schemes: the table of docs/quantization.md.

    python benchmarks/quantization.py TEXT MODEL.pt [MODEL.pt …] [--scheme w4:block_size=16] [--scheme w8]

The last tenth of the documents in TEXT is for evaluation, the rest for calibration. A JSON line per row goes to stderr.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from t2r_export.checkpoints import checkpoint
from t2r_export.config.bench import BenchConfig
from t2r_export.config.finetune import SEPARATOR
from t2r_export.config.options import read_kind
from t2r_export.config.quantize import SCHEMES, QuantizeConfig
from t2r_export.data.documents import Texts
from t2r_export.export import export
from t2r_export.providers.bench import bench
from t2r_export.quantize import quantize
from t2r_export.quantizers.quality import Quality, QualityCheckFailed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("text", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--scheme", dest="schemes", type=read_kind, action="append")
    arguments = parser.parse_args()
    print("| model | scheme | nats/token | float32 | change | same greedy token | worst logit | file | step time |")
    print("|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        calibrate, check = _parts(arguments.text, Path(folder))
        for model in arguments.models:
            source = Path(folder, "float32.onnx")
            export(checkpoint.load(model), source)
            for scheme, said in arguments.schemes or [(name, {}) for name, each in SCHEMES.items() if not each.keeps]:
                calibrated = SCHEMES[scheme].calibrated or not {"budget", "activation_error"}.isdisjoint(said)
                options = {**said, "calibrate": calibrate} if calibrated else said
                config = QuantizeConfig(scheme=scheme, **options)
                row(model.stem, source, Path(folder, "quantized.onnx"), config, check)


def row(name: str, source: Path, out: Path, config: QuantizeConfig, check: Path) -> None:
    """Quantize, measure and print a row, also for a failed check."""
    quality: Quality | None
    out.unlink(missing_ok=True)
    try:
        quality = quantize(source, out, config, check).quality
    except QualityCheckFailed as failed:
        quality = failed.quality
    assert quality is not None
    q = quality
    speed = f"x {bench([source, out], BenchConfig(prompt=1, starts=0)).graphs[1].ratio:.2f}" if out.exists() else ""
    size = f"{out.stat().st_size / source.stat().st_size:.0%}" if out.exists() else "refused"
    print(
        f"| {name} | {q.scheme} | {q.nats_after:.4f} | {q.nats_before:.4f} | {q.loss:+.2%} "
        f"| {q.greedy_agreement:.1%} | {q.worst_logits:.2g} | {size} | {speed} |",
        flush=True,
    )
    print(json.dumps({"model": name, **q.to_dict()}), file=sys.stderr)


def _parts(text: Path, folder: Path) -> tuple[Path, Path]:
    """Files with the first nine tenths and the last tenth of the documents."""
    documents = list(Texts((text,)))
    cut = len(documents) - max(1, len(documents) // 10)
    paths = folder / "calibrate.txt", folder / "check.txt"
    for path, part in zip(paths, (documents[:cut], documents[cut:]), strict=True):
        path.write_text(f"\n{SEPARATOR}\n".join(part), encoding="utf-8")
    return paths


if __name__ == "__main__":
    main()
