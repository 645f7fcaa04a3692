# Everything a person or CI does here. `make help` lists it. Needs python3 (3.11 or newer) and make, nothing else.

PYTHON ?= python3
override VENV := $(or $(VENV),.venv)
BIN    := $(VENV)/bin
# -qq: errors only. The versions are those of constraints.txt; CONSTRAINTS= takes the newest that pyproject.toml allows.
PIP    := $(BIN)/python -m pip --disable-pip-version-check -qq
CONSTRAINTS ?= constraints.txt
INSTALL := $(PIP) install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS)) --editable ".[fast]"

# The job. SOURCE and OUTPUT are folders or URIs (s3://bucket/raw). ARGS go to `shardprep build` as they are.
SAMPLE    := sample/documents
SOURCE    ?= $(SAMPLE)
OUTPUT    ?= shards
TOKENIZER ?= $(if $(filter $(SAMPLE),$(SOURCE)),sample/tokenizer.json)
CONFIG    ?= $(if $(filter $(SAMPLE),$(SOURCE)),pipelines/sample.toml,pipelines/job.toml)
REPORT    ?= $(if $(findstring ://,$(OUTPUT)),build/report.html,$(OUTPUT)/report.html)
ARGS      ?=

# Three, however many cores: tests start clusters and servers of their own, and wait for them. A file is one process's:
# what its tests share is made once; in their order, as the last ones are short enough to end together.
TEST_JOBS ?= 3
PYTEST    := -m pytest -n $(TEST_JOBS) --dist loadfile --no-loadscope-reorder -m "not slow"

# Where it is set, each of the thousand processes that the tests start would compile the sources again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help shards train-demo test test-slow check format lint types floors docs coverage sample-twice bench image-context clean
.DELETE_ON_ERROR:

help:  ## list what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# ---- the job -------------------------------------------------------------------------------------------------------

shards: $(VENV)/.run  ## build the sample, or SOURCE=... OUTPUT=... TOKENIZER=... ARGS="..."
	@test -n "$(TOKENIZER)" || { echo "make shards: a SOURCE of yours needs TOKENIZER=... (a tokenizer.json by path or URI, or a hub name)" >&2; exit 2; }
	@$(BIN)/shardprep build "$(SOURCE)" "$(OUTPUT)" --tokenizer "$(TOKENIZER)" --config "$(CONFIG)" $(ARGS)
	@mkdir -p build
	@$(BIN)/shardprep inspect "$(OUTPUT)" --html "$(REPORT)"

train-demo: $(VENV)/.train  ## train on the sample, kill it, go on, and hold the bill against the plan: 2 minutes
	@$(BIN)/python pipelines/train_demo.py $(ARGS)

# ---- environments: stamps, so that pip runs only when pyproject.toml changed. The install is editable: sources are live.
# Each of them begins from nothing, so that `make check` runs pip once; what holds more stands for what holds less.

SETTINGS := pyproject.toml constraints.txt shardprep/version.py

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else f"shardprep needs Python 3.11 or newer, but {sys.executable} is {sys.version.split()[0]}: make PYTHON=python3.12 ...")'
	@echo "making $(VENV) ..."
	@$(PYTHON) -m venv "$(VENV)"
	@$(PIP) install --upgrade "pip>=25.1"

$(VENV)/.run: $(SETTINGS) | $(BIN)/python
	@echo "installing shardprep into $(VENV) ..."
	@$(INSTALL)
	@touch $@

# What pipelines/train.py needs. On Linux PyPI's torch brings gigabytes of CUDA; INDEX=--extra-index-url=... takes another build.
$(VENV)/.train: $(VENV)/.run
	@echo "installing what the training needs ..."
	@$(INSTALL) --group train $(INDEX)
	@touch $@

$(VENV)/.test: $(SETTINGS) | $(BIN)/python
	@echo "installing shardprep and what its tests need into $(VENV) ..."
	@$(INSTALL) --group test
	@touch $(VENV)/.run $@

$(VENV)/.dev: $(SETTINGS) | $(BIN)/python
	@echo "installing shardprep and what its checks need into $(VENV) ..."
	@$(INSTALL) --group test --group lint --group docs
	@touch $(VENV)/.run $(VENV)/.test $@

# ---- tests and checks: `make check` is what CI runs, no more and no less ---------------------------------------------

test: $(VENV)/.test  ## run the tests
	$(BIN)/python $(PYTEST)

test-slow: $(VENV)/.test  ## run the long proofs
	$(BIN)/python -m pytest -m slow

# CI: Hypothesis draws the same examples each time.
check: export CI := true
check: $(VENV)/.dev  ## all that CI runs; the tests often wait, and the others use that time
	$(MAKE) --no-print-directory -j 2 coverage format lint floors types docs sample-twice

format: $(VENV)/.dev
	$(BIN)/ruff format --check .

lint: $(VENV)/.dev
	$(BIN)/ruff check .

types: $(VENV)/.dev
	$(BIN)/mypy

floors: $(VENV)/.dev
	$(BIN)/lint-imports

docs: $(VENV)/.dev  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The first command of the README, on a folder of its own; the second time it must find the work done.
sample-twice: $(VENV)/.dev
	rm -rf build/check
	$(MAKE) --no-print-directory shards OUTPUT=build/check
	$(MAKE) --no-print-directory shards OUTPUT=build/check
	$(BIN)/shardprep verify build/check

coverage: $(VENV)/.dev
	rm -f .coverage .coverage.*
	$(BIN)/coverage run $(PYTEST)
	-$(BIN)/coverage combine --quiet  # tests kill processes, whose data may be cut: the reports below decide
	$(BIN)/coverage report --skip-covered --show-missing --include="shardprep/core/*" --fail-under=100
	$(BIN)/coverage report --skip-covered --show-missing --omit="shardprep/core/*" --fail-under=90

bench: $(VENV)/.dev  ## run the benchmarks: docs/benchmarks.md says what each shows
	$(BIN)/python -m benchmarks $(ARGS)

# ---- the container of the SageMaker jobs: no image is built here, only the folder that `docker build` takes -----------

# All of it is new each time: what a pipeline no longer has must not stay in the image.
image-context: $(VENV)/.run  ## gather what pipelines/Dockerfile needs in build/image-context
	rm -rf build/image-context
	mkdir -p build/image-context/wheels build/image-context/pipelines
	$(PIP) wheel --no-deps --wheel-dir build/image-context/wheels .
	cp pipelines/Dockerfile constraints.txt build/image-context/
	tar -cf - --exclude=Dockerfile --exclude=__pycache__ -C pipelines . | tar -xf - -C build/image-context/pipelines
	cd build/image-context && for kind in processing:fast train:fast,torch; do \
		echo "./$$(echo wheels/shardprep-*.whl)[$${kind#*:}]" > "$${kind%%:*}.txt"; done
	@echo "ready: docker build --tag shardprep build/image-context"

clean:  ## remove what was built: environments, caches, the sample's shards
	rm -rf $(VENV) build site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	test ! -f shards/manifest.json || rm -rf shards
