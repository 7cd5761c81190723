# Everything happens in .venv, by the versions and hashes of requirements.lock; once it is there, nothing needs the network.
# PYTHON names another interpreter (3.11 or newer), ARGS hands more arguments to a command: make test ARGS="-k fence".

PYTHON ?= python3
ONCE ?=
PEERS ?=
FLAT ?=
SCALE ?=
CASES ?=
ARGS ?=

MAKEFLAGS += --no-builtin-rules
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
.PHONY: help run test conformance lint lock bench clean

help: ## say what can be made
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 18

run: .venv/installed ## show mailslot at work: a database, an inbox, the daemon, one mail; ONCE=1 leaves when nothing is due
	.venv/bin/python -m daemon dev $(strip $(if $(filter-out 0,$(ONCE)),--once) $(ARGS))

test: .venv/installed ## run all tests; TEST_DATABASE_URL or PG_BIN choose another PostgreSQL
	.venv/bin/python -m pytest $(ARGS)

bench: .venv/installed ## measure the daemon beside what the machine can do; PEERS=1 other queues too, FLAT=1 large tables, SCALE=1 many daemons
	.venv/bin/python -m tests.bench $(if $(filter-out 0,$(PEERS)),--peers) $(if $(filter-out 0,$(FLAT)),--flat) $(if $(filter-out 0,$(SCALE)),--scale) $(ARGS)

conformance: .venv/installed ## play cases of mails and relays through the real daemon: CASES=file.json, or the project's own
	.venv/bin/python -m tests.conformance $(CASES) $(ARGS)

lint: .venv/installed ## check style, types, and which module imports which
	.venv/bin/python -m ruff check .
	.venv/bin/python -m ruff format --check .
	.venv/bin/python -m mypy
	.venv/bin/lint-imports

lock: .venv-lock/installed ## write requirements.lock anew, with the newest versions that fit (needs the network)
	printf 'hatchling\neditables\n' | .venv-lock/bin/python -m piptools compile --quiet --upgrade --generate-hashes --allow-unsafe \
	    --strip-extras --extra test --extra lint --no-header --no-annotate --no-emit-options --no-emit-index-url \
	    --no-emit-trusted-host --no-emit-find-links --output-file .venv-lock/found pyproject.toml -
	{ echo '# Every package that make installs, with the hashes of its files. Written by make lock.'; \
	    grep -v -e '^#' -e '^mailslot @' .venv-lock/found; } > requirements.lock

clean: ## remove the environment, the caches, and what make run has kept
	@case "$$(readlink .mailslot/postgres)" in /var/tmp/mailslot-*/data-*) rm -rf -- "$$(readlink .mailslot/postgres)";; esac
	rm -rf .mailslot .venv .venv-lock dist htmlcov .coverage .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find daemon tests -name __pycache__ -type d -prune -exec rm -rf {} +

# Each stamp is written last, so that what was broken off begins again.
.venv/created:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	    "mailslot needs Python 3.11 or newer; this is %s. Name another: make PYTHON=/path/to/python3 .." % sys.version.split()[0])'
	$(PYTHON) -m venv --clear .venv
	@touch $@

.venv/installed: requirements.lock pyproject.toml | .venv/created
	.venv/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes -r requirements.lock
	.venv/bin/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation -e .
	@touch $@

.venv-lock/installed:
	$(PYTHON) -m venv .venv-lock
	.venv-lock/bin/python -m pip install --disable-pip-version-check --quiet pip-tools
	@touch $@
