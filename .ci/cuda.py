"""Install the CUDA build of ONNX Runtime into this environment, only if there is a GPU: with CUDA it has gigabytes."""

import subprocess
import sys
from pathlib import Path

if Path("/dev/nvidiactl").exists():
    package = "onnxruntime-gpu[cuda,cudnn]"
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "-c", "constraints.txt", package], check=True)
