# make gate     check this machine's torch (AMP_DEVICE=, AMP_DTYPE=, ARGS= go to pytest)
# make check    before each commit: lint, types, and the quick tests (QUICK below) with one planted defect of each family
# make test     before each push: the same, all the plugin's own tests, and the suites on the CPU and on fake devices
# make planted  the rest: every planted defect must be noticed; the score
#
# make docs       the pages, as --strict as mkdocs can be
# make workflows  actionlint and zizmor on .github/
# make kernels    the suite of 16-bit kernels on the CPU, which is of the long tier there
# make coverage   branch coverage of the package by tests/ and suites/
# make real-models  every check of `amp` over models of other libraries, which are installed first (MODELS= selects by -k)
# make seeds      the suites on the CPU with forty seeds, resumable: which tests judge their random numbers (SEEDS=, TESTS=);
#                 with the long tier, whose tests (all of the family kernels on a CPU) draw random numbers, too
# make cost       what check_gradients costs over the real models: steps, time, memory (MODELS= names some)
# make release-support TORCH=torch==2.15.0  what that release changes in this project's data, as a patch to review
#                 (PYTHON_OF=, NOTES=, ARGS=: docs/how-to/support-a-release.md)
# make soak       the suites on the CPU, 20 times in one process: no flake, no leak (TIMES=, TESTS=); the ordinary tier
#                 only: caches that compiled networks fill are no leak, and make seeds repeats the long tier in new processes
#
# All make a virtual environment and install into it first. VENV=none uses PYTHON as it is and
# installs nothing. TORCH='torch==2.9.1' checks another torch than the one in constraints.txt.

# Tests start hundreds of processes, and each of them would compile the same files again.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
TORCH ?=
VENV ?= .venv
AMP_DEVICE ?= auto
AMP_DTYPE ?= auto
ARGS ?=

# Speed is timed only by a process that has its GPU for itself: on a GPU it is a run of its own, after all else. Where ARGS
# are given, which may name a file to be written, everything is one run of one process.
GPU := $(findstring cuda,$(subst fake:cuda,,$(AMP_DEVICE)))$(if $(findstring auto,$(AMP_DEVICE)),$(firstword $(wildcard /dev/nvidia[0-9]*)))
WORKERS ?= $(if $(GPU),0,2)

REQUIREMENT := $(if $(TORCH),$(TORCH),-c constraints.txt torch)
ifeq ($(VENV),none)
RUN := $(PYTHON)
else
RUN := $(VENV)/bin/python
endif

# An installed plugin is loaded by its entry point, one in the tree by -p; both at once would be an error.
FIND_PLUGIN := import importlib.metadata as m; print(*[] if any(e.name == "amp" for e in m.entry_points(group="pytest11")) else ["-p", "pytest_amp.plugin"])
PYTEST = PYTHONPATH=.$${PYTHONPATH:+:$$PYTHONPATH} $(RUN) -m pytest $$($(RUN) -c '$(FIND_PLUGIN)')
PLUGIN = $$($(RUN) -c '$(FIND_PLUGIN)')
# What only one target needs is installed for that one; an interpreter that is used as it is has it, or has not.
INTO_VENV := $(if $(filter none,$(VENV)),@:,$(RUN) -m pip install --quiet --group)
BIN := $(if $(filter none,$(VENV)),,$(VENV)/bin/)
TIMES ?= 20
SEEDS ?= 0-19,101-120
TESTS ?= suites
# Tests of make check: files that need seconds, and no suite; all other tests are those of make test. What needs more in
# these folders: random files, processes that are killed, a browser.
QUICK := tests/architecture tests/record tests/report $(wildcard tests/test_option_*.py) tests/speed/test_verdict.py \
  tests/speed/test_paired.py tests/numerics/test_compare.py tests/numerics/test_bounds.py tests/numerics/oracle/test_verdict.py tests/docs/test_reference.py
SLOW := tests/record/test_fuzz.py tests/record/test_killed.py tests/report/test_browser.py
PLANTED := tests/test_planted_defects.py
NOT_ALL_PLANTED := -m 'not planted or one_per_family'
FAKE := fake:cuda,fake:xpu,fake:mps,fake:mtia

# Without dependencies: torchvision pins torch. A library that this installs and that is missing all the same is an error.
REAL_MODELS := tests/real_models
MODELS ?=

.PHONY: gate check test planted setup lint types quick tests suites fake kernels docs workflows coverage libraries real-models release-support cost seeds soak clean

gate: setup
ifneq ($(and $(GPU),$(if $(ARGS),,alone)),)
	$(PYTEST) suites --ignore=suites/speed -n auto --maxprocesses=12 --amp-device=$(AMP_DEVICE) --amp-dtype=$(AMP_DTYPE)
	$(PYTEST) suites/speed -n 0 --amp-device=$(AMP_DEVICE) --amp-dtype=$(AMP_DTYPE)
else
	$(PYTEST) suites -n $(WORKERS) --amp-device=$(AMP_DEVICE) --amp-dtype=$(AMP_DTYPE) $(ARGS)
endif

check: lint types quick

test: lint types tests suites fake

setup:
ifneq ($(VENV),none)
	@if [ "$$(cat $(VENV)/installed 2>/dev/null)" != "$(REQUIREMENT)" ] || [ pyproject.toml -nt $(VENV)/installed ] || [ constraints.txt -nt $(VENV)/installed ]; then \
	  set -ex; \
	  $(PYTHON) -m venv --clear $(VENV); \
	  $(RUN) -m pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'; \
	  $(RUN) -m pip install --quiet $(REQUIREMENT); \
	  $(RUN) -m pip install --quiet --editable '.[suites]' --group dev; \
	  printf '%s' "$(REQUIREMENT)" > $(VENV)/installed; \
	fi
endif

lint: setup
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .

types: setup
	$(RUN) -m mypy

quick: setup
	$(PYTEST) $(QUICK) $(PLANTED) $(SLOW:%=--ignore=%) -n 2 $(NOT_ALL_PLANTED) $(ARGS)

tests: setup
	$(PYTEST) tests -n 2 -rs $(NOT_ALL_PLANTED) $(ARGS)

suites: setup
	$(PYTEST) suites -n 2 --amp-device=cpu --amp-dtype=bf16,fp16 $(ARGS)

fake: setup
	$(PYTEST) suites -n 2 --amp-device=$(FAKE) --amp-dtype=bf16,fp16 $(ARGS)

kernels: setup
	$(PYTEST) suites/kernels -n 2 --amp-device=cpu --amp-dtype=bf16,fp16 --amp-tier=all $(ARGS)

docs: setup
	$(INTO_VENV) docs
	$(RUN) -m mkdocs build --strict --quiet --site-dir build/site

workflows: setup
	$(INTO_VENV) workflows
	$(BIN)actionlint
	$(BIN)zizmor --offline --no-progress --pedantic .

planted: setup
	@mkdir -p build
	$(PYTEST) $(PLANTED) -n 2 --junitxml=build/planted.xml $(ARGS); \
	  status=$$?; $(RUN) .github/scripts/planted_score.py build/planted.xml && exit $$status

coverage: setup
	@mkdir -p build
	COVERAGE_PROCESS_START=$(CURDIR)/pyproject.toml $(RUN) -m coverage run -m pytest $(PLUGIN) tests suites $(NOT_ALL_PLANTED) --amp-device=cpu $(ARGS)
	$(RUN) -m coverage combine --quiet
	$(RUN) -m coverage report

libraries: setup
ifneq ($(VENV),none)
	$(RUN) -m pip install --quiet --requirement $(REAL_MODELS)/dependencies.txt
	$(RUN) -m pip install --quiet --no-deps --requirement $(REAL_MODELS)/libraries.txt
endif

real-models: libraries
	@mkdir -p build
	HF_HUB_OFFLINE=1 $(PYTEST) $(REAL_MODELS) -n $(WORKERS) -rs --amp-device=$(AMP_DEVICE) --amp-dtype=$(AMP_DTYPE) \
	  --junitxml=build/junit-real-models.xml $(if $(filter none,$(VENV)),,--require-libraries) $(if $(MODELS),-k '$(MODELS)') $(ARGS)

cost: libraries
	HF_HUB_OFFLINE=1 PYTHONPATH=. $(RUN) -m tools.cost $(if $(filter auto,$(AMP_DEVICE)),,--device=$(AMP_DEVICE)) \
	  $(if $(filter auto,$(AMP_DTYPE)),,--dtype=$(AMP_DTYPE)) $(MODELS)

seeds: setup
	PYTHONPATH=. $(RUN) -m tools.seeds --seeds=$(SEEDS) -- $(TESTS) -n 2 --amp-device=cpu --amp-dtype=bf16,fp16 --amp-tier=all

# The environment of the tool has the torch of constraints.txt: that which is to be supported has one of its own.
release-support: REQUIREMENT := -c constraints.txt torch
release-support: setup
	PYTHONPATH=. $(RUN) -m tools.release_support $(or $(TORCH),$(error release-support needs a release: TORCH=torch==2.15.0)) \
	  $(if $(PYTHON_OF),--python $(PYTHON_OF)) $(if $(NOTES),--notes $(NOTES)) --workers $(or $(WORKERS),2) $(ARGS)

soak: setup
	PYTHONPATH=. $(RUN) -m tools.soak --times $(TIMES) $(TESTS)

clean:
	rm -rf .venv build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .benchmarks
