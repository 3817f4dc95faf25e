# Every command of the README, of CI and of daily work. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := routing_hints sidecar worker_client examples tests bench hatch_build.py
SECONDS := 600
RUN_DIR := $(CURDIR)/run
PORT := 50051
ENGINE ?= $(shell command -v docker || command -v podman || echo docker)
VERSION := $(shell sed -n 's/^version = "\(.*\)"/\1/p' pyproject.toml)
IMAGE ?= localhost/routing-hint-sidecar:$(VERSION)
# podman leaves the health check out of its own format.
IMAGE_FORMAT := $(if $(findstring podman,$(ENGINE)),--format docker)
BUILD_FLAGS ?=
IMAGE_REQUIREMENTS ?= requirements/image.txt
IMAGE_TEST_DIR ?= .image-test
.DEFAULT_GOAL := help

.PHONY: help setup setup-bench run test e2e e2e-old mutation demo bench bench-affinity bench-affinity-quick bench-identity bench-guard bench-placement bench-placement-weights bench-placement-memory soak soak-control reference lint wheel test-wheel image image-test lock-image clean

help: ## Lists the targets.
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

# The generated modules are part of the install, so a change of proto/ installs again.
$(VENV)/.installed: pyproject.toml hatch_build.py requirements/dev.txt $(shell find proto -name '*.proto')
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q -r requirements/dev.txt -c requirements/lock.txt -e '.[sidecar,otel]'
	touch $@

setup: $(VENV)/.installed ## Makes .venv with the project and its tools.

$(VENV)/.installed-bench: $(VENV)/.installed requirements/bench.txt
	$(BIN)/python -m pip install -q -r requirements/bench.txt -c requirements/lock.txt
	touch $@

setup-bench: $(VENV)/.installed-bench ## Adds what the benchmarks need.

run: setup ## Starts the sidecar on a socket and on loopback TCP, and prints commands to try.
	@mkdir -p $(RUN_DIR)
	@scripts/show-grpcurl-lines 127.0.0.1:$(PORT)
	@exec $(BIN)/routing-hint-sidecar serve --listen unix://$(RUN_DIR)/sidecar.sock --listen tcp://127.0.0.1:$(PORT)

test: setup ## Runs every test.
	$(BIN)/python -m pytest

mutation: setup ## Flips each rule of the decision and expects a captured request to detect it.
	$(BIN)/python -m tests.mutation.check_rules

# Environments of the end-to-end tests; the sidecar runs in the checkout's own, as in a container of its own.
.venv-e2e/.installed .venv-e2e-old/.installed: .venv-%/.installed: requirements/%.txt
	$(PYTHON) -m venv .venv-$*
	.venv-$*/bin/python -m pip install -q --no-deps -r $<
	touch $@

RUN_E2E = PYTHON=$(PYTHON) scripts/in-own-network env E2E_SIDECAR=$(CURDIR)/$(BIN)/routing-hint-sidecar \
    PYTHONPATH=$(CURDIR)
E2E_PYTEST = -m pytest -p no:cacheprovider --confcutdir=tests/e2e --timeout=180

e2e: setup .venv-e2e/.installed ## Runs the tests inside the real Dynamo 1.6.1, on fake engines.
	$(RUN_E2E) .venv-e2e/bin/python $(E2E_PYTEST) tests/e2e --ignore=tests/e2e/old

e2e-old: setup .venv-e2e-old/.installed ## Runs those for Dynamo 1.2.1.
	$(RUN_E2E) E2E_STREAM_INTERFACE=lo .venv-e2e-old/bin/python $(E2E_PYTEST) tests/e2e/old

bench-identity: setup ## Measures what resolving an identity costs, beside a bare gRPC echo.
	$(BIN)/python -m bench.identity

demo: setup ## Replays a captured conversation through client, sidecar and a fake engine.
	@$(BIN)/python -m examples.replay

bench: setup-bench ## Measures the hot path beside its peers, in under five minutes.
	$(BIN)/python -m bench.hot_path run --json $(RUN_DIR)/bench/hot-path.json

bench-affinity: setup-bench ## Predicts the gain of affinity around real sidecars; TRACE=FILE adds a trace.
	$(BIN)/python -m bench.affinity --out $(RUN_DIR)/bench/affinity --images docs/images $(if $(TRACE),--trace $(TRACE))

bench-affinity-quick: setup-bench ## The same with one seed of short runs.
	$(BIN)/python -m bench.affinity --quick --out $(RUN_DIR)/bench/affinity-quick

bench-guard: setup-bench ## Fails if the hot path costs clearly more than it did.
	$(BIN)/python -m bench.hot_path guard

bench-placement: setup-bench ## Compares placements on simulated ranks and draws docs/placement.svg; TRACE=FILE adds a trace.
	$(BIN)/python -m bench.placement --plot docs/placement.svg $(if $(TRACE),--trace $(TRACE))

bench-placement-weights: setup-bench ## Compares weights of resident tokens; TRACE=FILE adds a trace.
	$(BIN)/python -m bench.placement --weights $(if $(TRACE),--trace $(TRACE))

bench-placement-memory: setup-bench ## Sends a million conversations through a sidecar and watches its memory.
	$(BIN)/python -m bench.placement.million

soak: setup-bench ## Runs a worker's load while faults are injected into the sidecar; SECONDS=600.
	$(BIN)/python -m bench.soak --seconds $(SECONDS) --json $(RUN_DIR)/bench/soak.json

soak-control: setup-bench ## The same without fail-open; succeeds if the report complains.
	$(BIN)/python -m bench.soak --seconds 20 --control

reference: setup ## Writes the tables of docs/reference.md from the code.
	$(BIN)/python -m tests.docs.reference_page

lint: setup ## ruff, mypy strict, buf.
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/buf lint
	$(BIN)/buf format --diff --exit-code
	scripts/check-breaking $(BIN)/buf

wheel: setup ## Builds sdist and wheel into dist/.
	rm -rf dist
	$(BIN)/python -m build -q --outdir dist

test-wheel: wheel ## Tests the wheel, without the source tree, on every installed Python and on four protobuf/grpcio pairs.
	scripts/test-wheel dist

image: ## Builds the sidecar's image with docker or podman.
	$(ENGINE) build $(IMAGE_FORMAT) $(BUILD_FLAGS) $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE)) \
	    --build-arg REQUIREMENTS=$(IMAGE_REQUIREMENTS) --build-arg VERSION=$(VERSION) \
	    --build-arg REVISION=$$(git rev-parse HEAD 2>/dev/null || echo unknown) -t $(IMAGE) .

image-test: setup ## Builds the image and tests it, without a registry; needs root and podman.
	scripts/image-test $(IMAGE_TEST_DIR) $(BIN)/python

lock-image: setup ## Pins what goes into the image, with hashes.
	scripts/lock-image $(BIN)/pip-compile

clean: ## Removes what was built.
	rm -rf $(VENV) .venv-* build dist routing_hints/v1 $(RUN_DIR)
