# Every target creates .venv and installs what it needs by itself; `make` lists them.
SHELL := /bin/bash
PY := .venv/bin/python
export OMP_NUM_THREADS ?= 1
export PYTHONHASHSEED ?= 0
# Results were recorded with AVX2 instructions; AVX-512 sums in another order and gives other bits.
ifneq (,$(shell grep -m1 -ow avx2 /proc/cpuinfo 2>/dev/null))
export ATEN_CPU_CAPABILITY ?= avx2
endif
# The folder beside a checkout that may hold datasets; anything else through RSLIB_DATA.
export RSLIB_DATA ?= $(abspath $(wildcard ../shared/data))

PROFILE ?= quick
DATASETS ?=
NOTEBOOKS ?=
DATASET ?= digits
SEEDS ?= 0-9
ROWS ?= 6

.DEFAULT_GOAL := help
.PHONY: help paper-figures report test test-all lint bench lab data environments verify reproducibility ship house searches clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "make %-16s %s\n", $$1, $$2}'

# One stamp per set of extras: made anew when pyproject.toml or the tested versions change.
PIP := .venv/bin/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.venv/bin/python:
	python3 -m venv .venv

.venv/.installed: pyproject.toml constraints.txt | .venv/bin/python
	$(PIP) torch==2.13.0
	$(PIP) -e ".[dev]"
	@touch $@

.venv/.installed-all: .venv/.installed
	$(PIP) -e ".[dev,browser,cluster,rl-extra]"
	@touch $@

paper-figures: .venv/.installed ## every notebook: PROFILE=quick|smoke|paper DATASETS="mnist ..." NOTEBOOKS="01 04"
	$(PY) -m tools.paper_figures --profile $(PROFILE) --datasets "$(DATASETS)" --notebooks "$(NOTEBOOKS)"

test: .venv/.installed ## the tests that need nothing but pip
	$(PY) -m pytest -q -n 2 --dist worksteal -m "not network and not latex and not browser and not cluster and not rl_extra and not slow"

test-all: .venv/.installed-all ## the rest: LaTeX, browser, registries, Dask, sb3, slow ones
	$(PY) -m pytest -q -m "network or latex or browser or cluster or rl_extra or slow"

lint: .venv/.installed ## ruff (notebooks too) and pyright
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyright

bench: .venv/.installed ## speed, as ratios within one run
	$(PY) -m tools.bench

lab: .venv/.installed ## JupyterLab, at a page with the notebooks and the widgets
	.venv/bin/jupyter lab --notebook-dir . notebooks/start.ipynb

data: .venv/.installed ## fetch a dataset: DATASET=mnist
	$(PY) -m rslib.data get $(DATASET)

report: .venv/.installed ## the executed notebooks as a static site in executed/, offline
	$(PY) -m tools.report

verify: .venv/.installed ## train random rows of results/ again and compare: ROWS=6 SEED=1 MINUTES=10 (of a row)
	$(PY) -m tools.verify --rows $(ROWS) $(if $(SEED),--seed $(SEED)) $(if $(MINUTES),--minutes $(MINUTES))

reproducibility: .venv/.installed ## write REPRODUCIBILITY.md from the stored rows
	$(PY) -m tools.reproducibility

ship: .venv/.installed ## rewrite what follows from results/: figures, tables, executed notebooks, REPRODUCIBILITY.md, facts
	$(PY) -m tools.ship

searches: .venv/.installed ## searches at equal cost on environments of their own, into results/searches
	$(PY) -m tools.searches

house: .venv/.installed ## draw the rooms of rslib, from its imports, into docs/house.png
	$(PY) -m tools.house

environments: .venv/.installed ## tables of whole schedule trees for policy learning: DATASET=digits SEEDS=0-9
	$(PY) -m tools.trees --dataset $(DATASET) --seeds $(SEEDS) --out executed/environments/$(DATASET).csv.gz

clean: ## remove what can be made again (never the store of results, never data/)
	rm -rf .venv executed build *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
