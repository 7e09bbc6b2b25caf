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
