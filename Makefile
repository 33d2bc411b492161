PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PACKAGING := setup.cfg setup.py constraints.txt
RUNTIME_PACKAGING := runtimes/python/setup.cfg runtimes/python/setup.py
SOURCES := $(shell find t2r_export runtimes/python/t2r_runtime -name '*.py')

.PHONY: demo demo-translate test test-cpp bench clean

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

# Ours beside others' of the same size, as benchmarks/plan.toml says, on a machine that does nothing else: 45 minutes.
# Then the tables of the docs. llama-cpp-python is built from source, with cmake and a C++ compiler.
bench: $(VENV)/.peers
	$(BIN)/python benchmarks/run.py --out build/bench --page docs/performance.md

clean:
	rm -rf $(VENV) .tox build runtimes/python/build *.egg-info runtimes/python/*.egg-info

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
