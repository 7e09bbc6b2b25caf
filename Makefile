# Everything a developer runs. Each target makes what it needs; nothing is installed outside .venv, except servers and
# python3-venv as root on Debian or Ubuntu. `make help` lists the targets.

PY := .venv/bin/python

.DEFAULT_GOAL := help
.PHONY: help venv

help: ## list the targets
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):[^#]*## */\1	/' | expand -t 12

# One stamp per dependency group of pyproject.toml, made again when that file changes.
.venv/.installed-%: pyproject.toml scripts/venv
	@scripts/venv $*
.PRECIOUS: .venv/.installed-%

venv: .venv/.installed-dev ## make .venv with everything that development needs

demo: .venv/.installed-demo ## show the product at work, in less than a minute
	@$(PY) examples/celery/demo/run.py

# Two cores: two processes. Tests with subprocesses stay on one of them (see tests/conftest.py). WORKERS=0 is serial.
WORKERS ?= 2
PYTEST_ARGS ?=

test: .venv/.installed-dev ## run the tests, except the slow ones, in less than ten minutes
	@scripts/servers run $(PY) -m pytest -m "not slow" -n $(WORKERS) --dist loadgroup --session-timeout=600 $(PYTEST_ARGS)

slow: .venv/.installed-dev ## run the long fault and load tests one by one, at most half an hour
	@scripts/servers run scripts/allow-no-tests $(PY) -m pytest -m slow --session-timeout=1800 $(PYTEST_ARGS)

lint: .venv/.installed-dev docs ## run every static check, and build the docs
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy
	.venv/bin/lint-imports --no-logo
	.venv/bin/deptry anarchon_tasks integrations/anarchon_celery integrations/anarchon_dramatiq

format: .venv/.installed-dev ## format the sources and repair what ruff can repair
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

docs: .venv/.installed-dev ## build the docs into docs/_build/html; a warning is an error
	.venv/bin/sphinx-build -q -W -n --keep-going docs docs/_build/html

wheel: .venv/.installed-dev ## build the wheel into dist/, and try it in a clean environment
	scripts/check-wheel

bench: .venv/.installed-dev ## run the benchmarks
	@scripts/servers run $(PY) benchmarks/run.py

clean: ## remove everything that make has made
	@scripts/servers down
	rm -rf .venv .venv.lock .servers build dist reports docs/_build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	rm -rf .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: demo test slow lint format docs wheel bench clean
