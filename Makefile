PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
PACKAGING := setup.cfg setup.py constraints.txt
RUNTIME_PACKAGING := runtimes/python/setup.cfg runtimes/python/setup.py
SOURCES := $(shell find t2r_export runtimes/python/t2r_runtime -name '*.py')

RESULTS := build/bench
ONE_LENGTH := --contexts 128 --prompts none --starts 0
FAST := t2r:w4:block=128:head_bits=4:target=fused:top_k=1
FORMS := --engine t2r:w4 --engine t2r:w4:again $(foreach form,float32 int8 w8,--engine t2r:$(form)) \
    $(foreach K,16 32 64,--engine $(FAST):K=$(K)) --engine genai:int4 --engine llama.cpp:Q4_0
BLOCKS := $(foreach block,32 64 128,--engine t2r:w4:block=$(block)) --engine t2r:w4:block=32:again \
    $(foreach block,32 128,--engine genai:int4:block=$(block)) --engine llama.cpp:Q4_0
GPT2 := $(foreach engine,t2r:w4 t2r:w4:again $(FAST):prefill=1 t2r:float32 llama.cpp:Q4_0 llama.cpp:Q8_0 torch:softmax,--engine $(engine))

.PHONY: demo test bench clean

# Export the model in models/ and show what came out.
demo: $(VENV)/.installed
	$(BIN)/t2r demo

# Every tox environment: style, types, tests, provider parity.
test: $(VENV)/.tox
	$(BIN)/tox run

# Ours beside others' of the same size, on a machine that does nothing else: 45 minutes. Then the tables of the docs.
# llama-cpp-python is built from source, with cmake and a C++ compiler.
bench: $(VENV)/.peers
	mkdir -p $(RESULTS)
	$(BIN)/t2r bench decode --contexts 16,1024,8192,100000 --rounds 7 --starts 3 --plots $(RESULTS) --json > $(RESULTS)/decode.part
	mv $(RESULTS)/decode.part $(RESULTS)/decode.json
	$(BIN)/t2r bench decode $(ONE_LENGTH) --threads 2,1 $(FORMS) --json > $(RESULTS)/forms.part
	mv $(RESULTS)/forms.part $(RESULTS)/forms.json
	$(BIN)/t2r bench decode $(ONE_LENGTH) $(BLOCKS) --json > $(RESULTS)/blocks.part
	mv $(RESULTS)/blocks.part $(RESULTS)/blocks.json
	$(BIN)/t2r bench decode --size gpt2-small --contexts 16,128,992 --prompts 512 --rounds 7 --starts 0 $(GPT2) --json > $(RESULTS)/gpt2.part
	mv $(RESULTS)/gpt2.part $(RESULTS)/gpt2.json
	$(BIN)/t2r bench profile --engine t2r:w4 --engine $(FAST) --engine t2r:float32 --json > $(RESULTS)/profile.part
	mv $(RESULTS)/profile.part $(RESULTS)/profile.json
	$(BIN)/t2r bench batch --engine t2r:w4 --engine $(FAST) --engine t2r:float32 --json > $(RESULTS)/batch.part
	mv $(RESULTS)/batch.part $(RESULTS)/batch.json
	$(BIN)/t2r bench export --size smollm-135m --rounds 3 --engine t2r:w4 --engine $(FAST) --engine t2r:float32 \
	    --engine genai:int4 --json > $(RESULTS)/export.part
	mv $(RESULTS)/export.part $(RESULTS)/export.json
	$(BIN)/python benchmarks/tables.py $(RESULTS) docs/performance.md

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
