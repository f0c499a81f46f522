# Everything sets itself up: the first command in a bare clone makes the virtual environment, later ones find it ready.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
BESIDE := tests/triton tests/virtual_gpu_tests tests/tiny tests/hub tests/test_install.py tests/test_notebook.py tests/test_docs.py # run beside the others: each half uses one core
PACKAGES := "import sysconfig; print(sysconfig.get_path('purelib'))"
IN_SGLANG = PYTHONPATH=$(CURDIR)/tests/sglang/site:$(CURDIR) HF_HUB_OFFLINE=1 $(VENV)/sglang/bin/python
MEASURED = .benchmarks/$(if $(RESUME),run,$(if $(ONLY),some,run)).json # some families alone never touch the run that the report is made of
SOURCES := setup.py pyproject.toml $(wildcard csrc/*)

.DEFAULT_GOAL := help
.PHONY: help demo test test-abuse test-browser test-eval test-fuzz test-install test-notebook test-openai test-ray test-sglang test-targets wheel hub bench bench-check bench-gpu example lint format clean

help: ## say what there is
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-14s %s\n", $$1, $$2}'

demo: export OMP_WAIT_POLICY = PASSIVE
demo: $(READY) ## see the embedded model solve held-out problems, schedulers beside each other, and a page to step through
	$(BIN)/python -m lsp demo

example: $(READY) ## renew the picture of the first example, and its numbers in README and docs
	$(BIN)/python -m bench.example

test: export OMP_WAIT_POLICY = PASSIVE # threads that spin while they wait would steal the cores of a busy machine
test: $(READY) ## run the tests, and every benchmark once, tiny and untimed
	@{ TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/triton/interpreted; first=$$?; \
	  $(BIN)/python -m pytest --ignore=tests/triton/interpreted $(BESIDE) bench; exit $$((first + $$?)); } > $(VENV)/tests_beside.log 2>&1 & beside=$$!; \
	trap 'kill $$beside $$(pgrep -P $$beside)' INT TERM; \
	$(BIN)/python -m pytest $(BESIDE:%=--ignore=%) tests; here=$$?; \
	wait $$beside; there=$$?; \
	cat $(VENV)/tests_beside.log; \
	exit $$((here + there))

test-abuse: export OMP_WAIT_POLICY = PASSIVE
test-abuse: $(READY) ## try bad inputs of every kind and write into docs/verification.md how many were held
	$(BIN)/python -m pytest -m abuse --count-abuse --ignore=tests/triton/interpreted

test-browser: $(READY) ## open the trace page and the playground in a headless browser
	$(BIN)/python -m pytest -m browser -rs tests/browser

test-eval: export OMP_WAIT_POLICY = PASSIVE
test-eval: $(READY) $(VENV)/.eval ## install lm-evaluation-harness and run its tasks with our model (minutes)
	$(BIN)/python -m pytest -m evaluation -rs tests/evaluation tests/test_docs.py

test-fuzz: export LSP_EXAMPLES = 4
test-fuzz: $(READY) ## call the raw operators with random operands between guard pages (COUNT=100000 per instruction set), property tests at length (minutes)
	LSP_FUZZ=$(or $(COUNT),100000) $(BIN)/python -m pytest tests/kernels/test_fuzz.py
	$(BIN)/python -m pytest tests/kernels tests/lsp --ignore=tests/kernels/test_fuzz.py
	TRITON_INTERPRET=1 $(BIN)/python -m pytest tests/triton/interpreted

test-install: $(READY) ## install in every way the README names, each into a new environment (minutes)
	$(BIN)/python -m pytest -m install tests/install tests/test_install.py

test-notebook: $(READY) $(VENV)/.notebook-tools ## run the notebook in Jupyter's own kernel
	$(VENV)/notebook/bin/python -m pytest tests/test_notebook.py

test-openai: $(READY) $(VENV)/.openai-tools ## ask the playground's server with OpenAI's own client
	$(VENV)/openai/bin/python -m pytest -m openai -rs tests/openai

test-ray: export OMP_WAIT_POLICY = PASSIVE
test-ray: $(READY) $(VENV)/.ray-tools ## generate with two workers of Ray, one of which is killed
	$(VENV)/ray/bin/python -m pytest -m ray -rs tests/ray

test-sglang: export OMP_WAIT_POLICY = PASSIVE
test-sglang: $(READY) $(VENV)/.sglang-tools ## install SGLang (2 GB) and run our plug-in in its engine, on this CPU (minutes)
	$(IN_SGLANG) -m pytest -m sglang -rs tests/sglang bench/bench_sglang.py

test-targets: $(READY) ## compile every shipped kernel for every GPU, launch on every virtual GPU, renew docs/targets.md (minutes; KERNEL=attention: those)
	$(BIN)/python -m pytest -m targets $(if $(KERNEL),-k "[$(KERNEL)]")

wheel: $(READY) $(VENV)/.wheel-tools ## build the public wheel into dist/ and prove it: glibc 2.28, torch's stable ABI, the tests
	$(VENV)/wheel/bin/python .ci/wheel.py $(abspath $(BIN))/python

hub: $(READY) $(VENV)/.wheel-tools $(VENV)/.hub-tools ## lay out dist/hub for the Hugging Face kernels hub and prove it: the same, loaded by `kernels`
	$(VENV)/wheel/bin/python .ci/hub.py dist/hub --prove $(abspath $(VENV))/hub/bin/python

bench: $(READY) ## measure everything, write docs/benchmarks.md and the README's tables (an hour; RESUME=1: what the last run lacks; ONLY="commit head": these families, into .benchmarks/some.json)
	$(BIN)/python -m pytest --benchmark --benchmark-disable -vv --run $(MEASURED) $(if $(RESUME),--resume) $(ONLY:%=bench/bench_%.py)
	$(if $(ONLY),,$(BIN)/python -m bench.report $(MEASURED))

bench-check: $(READY) ## name what the last run of make bench has more than 15 % worse than the baseline (ARGS="--baseline OLD.json --run NEW.json"; ARGS=--accept: make it the baseline)
	$(BIN)/python -m bench.report.check $(ARGS)

bench-gpu: $(READY) ## check and time every kernel and passes of LLaDA's and Dream's shape on this GPU, into bench-gpu.json (ARGS="--layers 32": so many layers)
	$(BIN)/python -m bench.gpu $(ARGS)

lint: $(READY) ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: $(READY) ## put the format right
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean: ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist *.egg-info lsp_kernels/*.so .pytest_cache .mypy_cache .ruff_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.packages: requirements-dev.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q "$$(grep '^torch==' requirements-dev.txt)"
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	touch $@

$(VENV)/.eval: requirements-eval.txt $(VENV)/.packages
	$(BIN)/python -m pip install -q -r requirements-eval.txt -c requirements-dev.txt
	touch $@

$(VENV)/.wheel-tools: .ci/requirements-wheel.txt $(VENV)/.packages
	test -x $(VENV)/wheel/bin/python || $(PYTHON) -m venv $(VENV)/wheel
	$(VENV)/wheel/bin/python -m pip install -q -r $<
	touch $@

# `kernels`, Jupyter, Ray and OpenAI's client bring many packages: each stays in an environment of its own, which also sees those of the tests.
$(VENV)/.hub-tools $(VENV)/.notebook-tools $(VENV)/.openai-tools $(VENV)/.ray-tools: $(VENV)/.%-tools: .ci/requirements-%.txt $(VENV)/.packages
	test -x $(VENV)/$*/bin/python || $(PYTHON) -m venv $(VENV)/$*
	$(VENV)/$*/bin/python -m pip install -q -r $<
	$(BIN)/python -c $(PACKAGES) > $$($(VENV)/$*/bin/python -c $(PACKAGES))/tests.pth
	touch $@

# SGLang asks for CUDA and another torch, so it is installed without what it asks for, beside the packages of the tests.
$(VENV)/.sglang-tools: .ci/requirements-sglang.txt .ci/requirements-sglang-cpu.txt $(VENV)/.packages
	test -x $(VENV)/sglang/bin/python || $(PYTHON) -m venv $(VENV)/sglang
	$(BIN)/python -c $(PACKAGES) > $$($(VENV)/sglang/bin/python -c $(PACKAGES))/tests.pth
	$(VENV)/sglang/bin/python -m pip install -q --no-deps -r .ci/requirements-sglang.txt
	$(VENV)/sglang/bin/python -m pip install -q -r .ci/requirements-sglang-cpu.txt -c requirements-dev.txt
	touch $@

$(READY): $(VENV)/.packages $(SOURCES)
	@echo "Compiling the C++ kernels: a few minutes, once for every change of their source"
	$(BIN)/python -m pip install -q --no-build-isolation --no-deps -e .
	touch $@
