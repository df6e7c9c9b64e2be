# Nothing but Python 3.11+ and make is needed; everything is installed into .venv.
PYTHON ?= python3
BIN := .venv/bin
OLDEST_GYMNASIUM := 1.2.2
OLD := .venv-gymnasium-$(OLDEST_GYMNASIUM)
PYTEST ?= -n 2
export OMP_NUM_THREADS ?= 1

.NOTPARALLEL:
.PHONY: help demo test test-adapters lint bench clean

help:
	@echo "make demo    train a re-ranker on MovieLens-100K and write runs/demo/report.html (about 5 minutes)"
	@echo "make test    run all tests, on the newest and on the oldest supported gymnasium;"
	@echo "             without a network: make test PYTEST='-m \"not network\"'"
	@echo "make test-adapters   the adapters against the trainers themselves, each in a venv of its own"
	@echo "make lint    formatting, types, layers and generated tables"
	@echo "make bench   regenerate the benchmark records in docs/results"

demo: .venv/.demo-installed
	$(BIN)/rerank demo

test: .venv/.dev-installed $(OLD)/.installed
	$(BIN)/python -m pytest $(PYTEST)
	$(BIN)/python -m pytest --doctest-modules rerank_env --ignore=rerank_env/training/adapters \
		--ignore=rerank_env/training/language/traces/cluster.py
	$(OLD)/bin/python -m pytest tests/env

test-adapters: .venv-verl/.installed .venv-verifiers/.installed .venv-openenv/.installed
	.venv-verl/bin/python -m pytest tests/adapters/test_verl.py
	.venv-verifiers/bin/python -m pytest tests/adapters
	.venv-openenv/bin/python -m pytest tests/adapters

lint: .venv/.dev-installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python benchmarks/tables.py --check

bench: .venv/.dev-installed .venv-metrics/.installed
	.venv-metrics/bin/python benchmarks/metric_agreement.py
	.venv-metrics/bin/python benchmarks/metric_speed.py
	$(BIN)/python benchmarks/trl_step.py
	$(BIN)/python benchmarks/parse_speed.py
	$(BIN)/python benchmarks/hostile_text.py
	$(BIN)/python benchmarks/reward_audit.py
	$(BIN)/python benchmarks/naive_vs_conditional.py
	$(BIN)/python benchmarks/vector_env.py
	$(BIN)/python benchmarks/log_reader.py
	$(BIN)/python benchmarks/semantic_ids.py
	$(BIN)/python benchmarks/first_stage.py
	$(BIN)/python benchmarks/trl_overhead.py
	$(BIN)/python benchmarks/prefix_decoding.py
	for domain in beauty sports toys; do $(BIN)/python benchmarks/gr2.py $$domain || exit 1; done
	$(BIN)/python benchmarks/gr2_words.py
	$(BIN)/python benchmarks/gr2_hacking.py --jobs 2
	$(BIN)/python benchmarks/estimator_truth.py
	$(BIN)/python benchmarks/diffusion_gr2.py
	$(BIN)/python benchmarks/demo_movielens.py
	$(BIN)/python benchmarks/tables.py

clean:
	rm -rf .venv .venv-* build dist *.egg-info runs

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; set PYTHON=python3.11")'
	$(PYTHON) -m venv .venv

# A torch that someone put into .venv before us (a GPU build, say) is kept: its pin is dropped from the constraints.
.venv/constraints.txt: constraints/dev.txt | .venv/bin/python
	if [ ! -e .venv/.torch-is-ours ] && $(BIN)/python -c 'import torch' 2>/dev/null; \
		then grep -v '^torch==' $< > $@; \
		else cp $< $@ && touch .venv/.torch-is-ours; fi

.venv/.%-installed: pyproject.toml .venv/constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check -c .venv/constraints.txt -e '.[$*]'
	touch $@

$(OLD)/.installed: constraints/dev.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv $(OLD)
	grep -v '^gymnasium==' $< > $(OLD)/constraints.txt
	$(OLD)/bin/pip install --quiet --disable-pip-version-check -c $(OLD)/constraints.txt \
		gymnasium==$(OLDEST_GYMNASIUM) hypothesis pytest pytest-timeout -e .
	touch $@

# The trainers cannot share an environment: their own pins exclude one another. TRL is in .venv.
# .venv-metrics holds the metric libraries that ours are compared with.
.venv-verl/.installed: EXTRAS := verl
.venv-verifiers/.installed: EXTRAS := verifiers
.venv-openenv/.installed: EXTRAS := openenv
.venv-metrics/.installed: EXTRAS := metrics
.venv-%/.installed: constraints/%.txt pyproject.toml | .venv/bin/python
	$(BIN)/python -m venv .venv-$*
	.venv-$*/bin/pip install --quiet --disable-pip-version-check -c $< hypothesis pytest pytest-timeout -e '.[$(EXTRAS)]'
	touch $@
