# Every target sets up what it needs in .venv from the pinned requirement files.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: run test bench bench-samples bench-compare bench-forward bench-huge bench-scaling bench-sparse studies attack docs lock clean

run: .venv/run.stamp  ## the default algorithm and gss on the built-in instances; results/ gets tables and a page
	$(BIN)/bestpolicy demo --output results

# Else hundreds of processes would compile everything anew, where a machine asks for that.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/test.stamp  ## ruff, mypy --strict and pytest
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest -n auto --maxprocesses 8 --dist worksteal

bench: .venv/test.stamp  ## speed, against peers and limits; fails if one is missed
	$(BIN)/python -m benchmarks

bench-samples: .venv/test.stamp  ## samples of sharp, adaptive and tight against the lower bound
	$(BIN)/python -m benchmarks.samples

bench-compare: .venv/test.stamp  ## samples of every algorithm on the same instances, beside reference figures
	$(BIN)/python -m benchmarks.compare

bench-forward: .venv/test.stamp  ## episodes of every algorithm that follows policies, beside reference figures
	$(BIN)/python -m benchmarks.forward

bench-huge: .venv/test.stamp  ## samples and time where states cannot be listed, beside reference figures
	$(BIN)/python -m benchmarks.huge

bench-scaling: .venv/test.stamp  ## samples of gss and tight against the exponents of the paper's theorems
	$(BIN)/python -m benchmarks.scaling

bench-sparse: .venv/test.stamp  ## samples of sharp's theorem on tables of a dozen to thousands of pairs
	$(BIN)/python -m benchmarks.sparse

studies: .venv/test.stamp  ## the slow statistical studies
	$(BIN)/python -m pytest -m study

attack: .venv/test.stamp  ## bad inputs, damaged and hostile files, kills, dying workers: a table of what was handled
	$(BIN)/python -m tests.attack --output results/attack.txt

docs: .venv/docs.stamp  ## the documentation, in build/docs; a warning is an error
	$(BIN)/sphinx-build -W --keep-going -q docs build/docs

lock:  ## renew the pinned requirement files
	$(PYTHON) -m venv .venv-lock && .venv-lock/bin/pip install --quiet uv
	for set in run test docs; do \
	  extras="--extra build --extra report"; [ $$set != run ] && extras="$$extras --extra $$set"; \
	  constraint=""; [ $$set = test ] && constraint="--constraint requirements/run.txt"; \
	  [ $$set = docs ] && constraint="--constraint requirements/test.txt"; \
	  .venv-lock/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 --generate-hashes \
	    --no-header --no-annotate --no-emit-index-url $$extras $$constraint pyproject.toml \
	    -o requirements/$$set.txt || exit 1; \
	done
	rm -rf .venv-lock

.venv/run.stamp: requirements/run.txt pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	touch $@

.venv/test.stamp: .venv/run.stamp requirements/test.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/test.txt
	touch $@

.venv/docs.stamp: .venv/run.stamp requirements/docs.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.txt
	touch $@

clean:
	rm -rf .venv build results docs/*/generated
