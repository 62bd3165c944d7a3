# `make` shows what there is. Every target does its own set-up, and does nothing that is done already.
PYTHON ?= python3
VENV ?= .venv
RUNTIME ?= docker
BIN := $(VENV)/bin

# python:3.12 where the engine has it, else the one that images/base/build made
IMAGE ?= $(or $(OHSANDBOX_TEST_IMAGE),$(shell docker image inspect python:3.12 >/dev/null 2>&1 && echo python:3.12 || echo ohsandbox-base:debian))
# the base that the Dockerfiles pin, unless python:3.12 cannot be had here or BASE_IMAGE names another
BASE_IMAGE ?= $(filter-out python:3.12,$(IMAGE))
BASE = $(if $(BASE_IMAGE),--build-arg BASE_IMAGE=$(BASE_IMAGE))
PINNED := $(shell sed -n 's/^ARG BASE_IMAGE=\([^@]*\).*/\1/p' Dockerfile)

# what a build may need of this machine: its certificates, its package index
CA_BUNDLE = $(or $(SSL_CERT_FILE),$(wildcard /etc/ssl/certs/ca-certificates.crt))
PIP_VARIABLES := PIP_INDEX_URL PIP_EXTRA_INDEX_URL
SECRETS = $(if $(CA_BUNDLE),--secret 'id=ca$(comma)src=$(CA_BUNDLE)') \
  $(if $(PIP_CONFIG_FILE),--secret 'id=pip.conf$(comma)src=$(PIP_CONFIG_FILE)') \
  $(foreach variable,$(PIP_VARIABLES),$(if $($(variable)),--secret id=$(variable)))
comma := ,

# what a dependency's version may break: each is used by these
QUICK := tests/agent tests/cli/test_app.py tests/llm tests/mcp tests/persistence tests/test_exports.py tests/test_settings.py tests/tool

.DEFAULT_GOAL := help
# but for the set-up of `make test`
ifndef AT_ONCE
.NOTPARALLEL:
endif
.PHONY: sizes matrix lowest connector site help setup demo test test-all unit flaky lint bench coverage docs images dev \
  machine clean ready ready-all ready-venv ready-engine ready-engine-all collected install integrations engine plugins peers \
  newer harbor bases shells

help: ## this table
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## .venv with ohsandbox and its development tools
	@cmp -s pyproject.toml $(VENV)/installed-for || $(MAKE) --no-print-directory install

demo: setup ## an agent at work in a container, no key needed (RUNTIME=cli: on this host, without one)
ifeq ($(RUNTIME),cli)
	@$(BIN)/ohsandbox demo --runtime cli
else
	@.ci/engine start || { echo "Or, on this host and with no sandbox around it: make demo RUNTIME=cli" >&2; exit 4; }
	@images/base/build debian
	@$(BIN)/ohsandbox demo --image $(IMAGE)
endif

test: ## lint, types and the tests of what users have, in minutes; junit.xml
	@$(MAKE) $(AT_ONCE_OPTIONS) ready
	@.ci/pytest -m 'not slow'

test-all: ## lint, types and every test, for an hour: each night and before a release
	@$(MAKE) $(AT_ONCE_OPTIONS) ready-all
	@.ci/pytest

unit: setup ## the tests of `make test` that need no engine
	@$(BIN)/python -m pytest -m 'not docker and not slow'

N ?= 50
flaky: setup engine peers newer bases shells ## N=50 runs of TESTS='tests/test_text.py -k lines' with all processors busy: what failed, how often
	@REPEAT=$(N) .ci/pytest $(TESTS)

matrix: setup engine bases shells ## every case of a shell on each of Debian's shells, as a table; SHELLS='mksh zsh'
	@$(BIN)/python -m tests.runtime.matrix $(SHELLS)

lowest: ## quick tests with the lowest versions that pyproject.toml allows (uv from the package index)
	@[ -x .cache/lowest/bin/uv ] || { $(PYTHON) -m venv .cache/lowest && .cache/lowest/bin/pip install --quiet uv; }
	@.cache/lowest/bin/uv pip install --quiet --python .cache/lowest/bin/python --resolution lowest-direct --compile-bytecode --editable '.[dev]'
	@.cache/lowest/bin/python -m pytest -q -W ignore::DeprecationWarning -m 'not docker' $(QUICK)

coverage: integrations engine plugins peers newer harbor bases shells ## the lines and branches that no test runs; about a third slower than `make test-all`
	@.ci/pytest --cov --cov-report=term

lint: setup ## ruff and mypy --strict
	@.ci/timed "ruff check" $(BIN)/ruff check .
	@.ci/timed "ruff format --check" $(BIN)/ruff format --check .
	@.ci/timed "mypy --strict" $(BIN)/mypy

bench: setup engine bases ## milliseconds a command, a file, a step (PEERS=1: of other projects, too)
	@OHSANDBOX_TEST_IMAGE=$(IMAGE) $(BIN)/python -m tests.bench $(if $(PEERS),--peers)

docs: setup ## docs/api.md, command-line.md and events.schema.json, from the source
	@$(BIN)/python docs/generate_api.py
	@$(BIN)/python docs/generate_command_line.py
	@$(BIN)/ohsandbox conversations schema >docs/events.schema.json

site: setup ## the documentation as a site, in .cache/site
	@$(BIN)/python -m zensical build --strict -f .zensical.toml
	@$(BIN)/python docs/generate_sources.py .cache/site

connector: ## the program that carries a sandbox's ports, from its source (Debian: gcc gcc-aarch64-linux-gnu)
	@ohsandbox/network/programs/build x86_64 aarch64

pictures: setup ## docs/images: real runs in a terminal, and reports (needs tmux and chromium; OHSANDBOX_IMAGE)
	@$(BIN)/python docs/generate_recording.py
	@$(BIN)/python docs/generate_terminal_pictures.py
	@$(BIN)/python docs/generate_pictures.py

images: engine plugins bases ## the images: ohsandbox-default and ohsandbox-browser for agents, ohsandbox itself
	@.ci/timed "Building ohsandbox-default on $(or $(BASE_IMAGE),$(PINNED))" \
	  docker build --tag ohsandbox-default $(BASE) $(SECRETS) images/default
	@.ci/timed "Building ohsandbox-browser on ohsandbox-default" \
	  docker build --tag ohsandbox-browser $(SECRETS) images/browser
	@.ci/timed "Building ohsandbox on $(or $(BASE_IMAGE),$(PINNED))" \
	  docker build --tag ohsandbox --build-arg COMMIT=$$(git rev-parse HEAD) $(BASE) $(SECRETS) .

sizes: images ## images/README.md: contents of the images by layer and version, as they are here
	@.ci/timed "Building ohsandbox-dind" docker build --tag ohsandbox-dind $(BASE) $(SECRETS) images/dind
	@images/table

dev: engine plugins bases ## a shell in the development container
	@$(if $(BASE_IMAGE),BASE_IMAGE=$(BASE_IMAGE)) SSL_CERT_FILE=$(CA_BUNDLE) docker compose run --build --rm dev

machine: ## TESTS="tests/x -k y" in a virtual machine with control groups v2, AppArmor, Docker 28 and Python 3.14; slow
	@.ci/machine test $(TESTS)

clean: ## remove what make made here; images stay
	rm -rf .venv .cache .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist junit*.xml .coverage*

# --- set-up ------------------------------------------------------------------------------------

EXTRAS := dev
INSTALLED := ohsandbox and its development tools

install:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$$($(PYTHON) --version) is too old: ohsandbox needs 3.11. Name a newer one: make setup PYTHON=python3.12" >&2; exit 2; }
	@[ -x $(BIN)/python ] || .ci/timed "Creating $(VENV)" $(PYTHON) -m venv $(VENV)
	@.ci/timed "Installing $(INSTALLED)" \
	  $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$(EXTRAS)]'
	@cp pyproject.toml $(VENV)/installed-for

integrations:
	@cmp -s pyproject.toml $(VENV)/integrations-for || $(MAKE) --no-print-directory install \
	  EXTRAS=dev,integrations INSTALLED="$(INSTALLED), and the projects that plug-ins are for"
	@cp pyproject.toml $(VENV)/integrations-for

AT_ONCE_OPTIONS = --no-print-directory --jobs=3 $(if $(filter output-sync,$(.FEATURES)),--output-sync) AT_ONCE=1

# what `make test` needs: chains that share nothing, each step in its order
ready: ready-venv ready-engine

# what only slow tests need besides: a second engine, images of other shells, Harbor
ready-all: ready-venv ready-engine-all harbor

ready-venv:
	@$(MAKE) --no-print-directory AT_ONCE= integrations
	@$(MAKE) --no-print-directory AT_ONCE=1 lint collected

ready-engine:
	@$(MAKE) --no-print-directory AT_ONCE= engine plugins peers bases

ready-engine-all: ready-engine
	@$(MAKE) --no-print-directory AT_ONCE= newer shells

# pytest keeps test modules with their asserts rewritten: 11 s of processor time that each of .ci/pytest's workers saves
collected: setup
	@PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest --collect-only -qq --ignore=tests/integrations >/dev/null || true

engine:
	@.ci/engine start

plugins:
	@.ci/engine plugins

peers:
	@.ci/engine peers

newer:
	@.ci/engine newer

# no reason to stop: where Harbor is not, its tests say so
harbor:
	@.ci/engine harbor || true

bases:
	@images/base/build debian busybox nonroot hostile

shells:
	@images/base/build shells
