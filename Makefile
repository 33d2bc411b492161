PYTHON ?= python3.11
VENV := .venv
JS := runtimes/js
BIN := $(VENV)/bin
PACKAGING := setup.cfg setup.py constraints.txt
RUNTIME_PACKAGING := runtimes/python/setup.cfg runtimes/python/setup.py
SOURCES := $(shell find t2r_export runtimes/python/t2r_runtime -name '*.py')

.PHONY: demo demo-translate test test-cpp test-js web bench clean

# Export the model in models/ and show what came out.
demo: $(VENV)/.installed
	$(BIN)/t2r demo

# The same with the translator in models/.
demo-translate: $(VENV)/.installed
	$(BIN)/t2r demo models/translator-de-en/model.pt

# Every tox environment: style, types, tests, provider parity.
test: $(VENV)/.tox
	$(BIN)/tox run

# The C++ runtime: built with cmake, and tested. `make test` comes first, whose packages it uses.
test-cpp: $(VENV)/.tox
	$(BIN)/tox run -e cpp

# The JavaScript runtime in Node, and the page in a headless Chromium. `make test` comes first, whose packages it uses.
test-js: $(VENV)/.tox
	$(BIN)/tox run -e js

# The storyteller's page, at http://127.0.0.1:8000/. It needs Node and npm.
web: $(VENV)/.installed
	cd $(JS) && ONNXRUNTIME_NODE_INSTALL=skip npm install --no-package-lock --no-audit --no-fund --loglevel error
	$(BIN)/python $(JS)/demo/make_web.py build/web
	node $(JS)/demo/serve.js build/web 8000

# Ours beside others' of the same size, as benchmarks/plan.toml says, on a machine that does nothing else: 45 minutes.
# Then the tables of the docs. llama-cpp-python is built from source, with cmake and a C++ compiler.
bench: $(VENV)/.peers
	$(BIN)/python benchmarks/run.py --out build/bench --page docs/performance.md

clean:
	rm -rf $(VENV) .tox build $(JS)/node_modules runtimes/python/build *.egg-info runtimes/python/*.egg-info

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: $(VENV)/.created $(PACKAGING) $(RUNTIME_PACKAGING) $(SOURCES)
	$(BIN)/python .ci/clean.py
	$(BIN)/python -m pip install --quiet -c constraints.txt ./runtimes/python .
	touch $@

$(VENV)/.peers: $(VENV)/.installed
	$(BIN)/python -m pip install --quiet -c constraints.txt ./runtimes/python '.[peers,plot]'
	touch $@

$(VENV)/.tox: $(VENV)/.created constraints.txt
	$(BIN)/python -m pip install --quiet -c constraints.txt tox
	touch $@
