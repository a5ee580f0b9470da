# `make` alone lists the commands. Each makes what it needs, .venv included.
PYTHON ?= python3
BIN := .venv/bin
# Measured data, for `make results`: philly/, t4_placements/, k80_p100_v100/.
DATA ?= ../shared/data
# The variable leaves out a notice about the successor of the theme, which mkdocs.yml is ready for.
SITE := NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
FAST := $(wildcard tests/test_*.py tests/core tests/traces tests/cli tests/docs)
PAGE := coddl/web/dist/index.html
PAGE_SOURCE := $(wildcard dashboard/*.* dashboard/src/*.* dashboard/src/*/*.*)

.DEFAULT_GOAL := help
.PHONY: help install web web-types fmt check docs test test-long test-fast test-sim test-swarm sim-one test-runtime test-server test-e2e test-engines test-gpu soak soak-live demo results bench clean

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-12s %s\n", $$1, $$2}' Makefile

install: .venv/.installed ## make .venv, with everything to work on CoDDL, and the dashboard where npm is
	@if command -v npm > /dev/null; then $(MAKE) --silent --no-print-directory web || \
	echo "the dashboard is not built, for the reason above; all else works without it"; fi

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[all,dev]'
	@touch $@

web: $(PAGE) ## build the dashboard (dashboard/) into coddl/web/dist; needs npm

$(PAGE): $(PAGE_SOURCE) dashboard/node_modules/.package-lock.json
	cd dashboard && npm run --silent build

dashboard/node_modules/.package-lock.json: dashboard/package-lock.json
	cd dashboard && npm ci --silent

web-types: install dashboard/node_modules/.package-lock.json ## write the dashboard's types from the server's OpenAPI description
	@mkdir -p build && $(BIN)/python -m docs.generator.openapi > build/openapi.json
	cd dashboard && npm run --silent types

fmt: install ## format the code and mend what ruff can mend
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

check: install ## format, lint, types, import directions, spelling, documentation
	$(BIN)/ruff format --check && $(BIN)/ruff check
	$(BIN)/mypy && $(BIN)/lint-imports --no-logo
	$(BIN)/codespell && $(SITE)

docs: install ## write the reference from the code, and build the site into build/site
	$(BIN)/python -m docs.generator
	$(SITE)

test: install ## run all tests but those that take minutes each
	$(BIN)/pytest -n 3 --dist worksteal --durations=20 tests

test-long: install ## run all tests, with those that take minutes each (needs root)
	$(BIN)/pytest -n 2 --dist worksteal --matrix tests

test-fast: install ## run the tests that take seconds: core, traces, cli, docs
	$(BIN)/pytest -n 2 -m 'not slow' $(FAST)

test-sim: install ## run the simulator's tests: golden traces, properties, experiments
	$(BIN)/pytest -n 2 tests/sim tests/reproduce

test-swarm: install ## run whole pools in virtual time with all that goes wrong: SEEDS=0..1000, on JOBS=2 cores
	$(BIN)/python -m coddl.testing.full_system --seeds $(or $(SEEDS),0..1000) --jobs $(or $(JOBS),2)

sim-one: install ## tell the story of one of these pools: SEED=918
	$(BIN)/python -m coddl.testing.full_system --seeds $(or $(SEED),0) --story

test-runtime: install ## run the elastic runtime's tests: real processes, resized and killed
	$(BIN)/pytest -n 2 tests/runtime

test-server: install ## run the pool's tests: server, agents and engines, each by itself, and whole pools in virtual time
	$(BIN)/pytest -n 2 tests/server tests/agent tests/engines tests/testing

test-e2e: install ## run whole pools: agents in network namespaces, killed and cut off (needs root)
	$(BIN)/pytest -n 2 tests/e2e

test-engines: install ## run pools whose nodes engines bring: this machine, Ray, Slurm; all that can befall them
	$(BIN)/pytest -n 1 --matrix tests/engines tests/e2e/test_scaling.py tests/e2e/test_ray*.py tests/e2e/test_slurm*.py tests/e2e/test_probing*.py tests/e2e/test_parking.py

soak: install ## run new SEEDS of pools in virtual time (1000..11000), shrink those that fail and keep them as tests
	$(BIN)/python -m coddl.testing.full_system --seeds $(or $(SEEDS),1000..11000) --jobs $(or $(JOBS),2) --shrink --keep tests/testing/regressions

soak-live: install ## run a pool of real processes under a mixed load with deaths, MINUTES long (60 if not given; needs root)
	$(BIN)/python -m tests.e2e.soak --minutes $(or $(MINUTES),60) --seed $(or $(SEED),1)

test-gpu: install ## run the tests that need an NVIDIA GPU; two of them for NCCL between GPUs
	$(BIN)/pytest tests/gpu tests/runtime/test_image.py

demo: install ## show a pool at work: real trainings that grow and shrink, in about a minute
	$(BIN)/coddl demo

results: install ## reproduce the published results
	$(BIN)/python -m benchmarks.results $(DATA)

bench: install ## measure the simulator, decisions, resizes, what elasticity, inspection and sharing cost, predicted lengths, a pool, its heartbeats and policies, emulated pools, the dashboard, nodes of Ray and Slurm
	$(BIN)/python benchmarks/simulate.py
	$(BIN)/python benchmarks/decide.py
	$(BIN)/python benchmarks/resize.py
	$(BIN)/python benchmarks/plain.py
	$(BIN)/python -m benchmarks.inspection_cost
	$(BIN)/python -m benchmarks.slices --device cpu
	$(BIN)/python -m benchmarks.loss_length
	$(BIN)/python -m benchmarks.probing --rounds 1
	$(BIN)/python -m benchmarks.estimate
	$(BIN)/python -m benchmarks.submit
	$(BIN)/python benchmarks/pool.py
	$(BIN)/python -m benchmarks.heartbeats
	$(BIN)/python -m benchmarks.live_policies
	$(BIN)/python -m benchmarks.emulated
	$(BIN)/python -m benchmarks.redraw
	$(BIN)/python -m benchmarks.sharing --cpu --state-mb 16 --trial-mb 16
	$(BIN)/python -m benchmarks.ray_nodes
	$(BIN)/python -m benchmarks.slurm_nodes

clean: ## remove caches and build outputs, keep .venv
	rm -rf build dist report.html .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
