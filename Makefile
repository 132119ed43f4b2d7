# Two commands do everything on a bare machine: `make demo` and `make test`.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: test demo lint types unit browser flair site release torture clean

# constraints.txt pins torch to a build without CUDA: an unpinned torch pulls gigabytes. hatch_build.py compiles the LSTM steps
.venv/installed: pyproject.toml constraints.txt hatch_build.py $(wildcard src/elmokit/kernels/cpu/csrc/*.[ch])
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

test: lint types unit

lint: .venv/installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: .venv/installed
	$(BIN)/mypy

unit: .venv/installed
	$(BIN)/python -m pytest -n 2 -m "not slow and not gpu" --cov --cov-report=term

# the explorer page in a real browser; needs chromium (Debian: apt-get install chromium)
browser: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[browser]'
	$(BIN)/python -m pytest tests/serve/test_explorer.py tests/serve/test_static_page.py

.venv-flair/installed: pyproject.toml constraints-flair.txt
	$(PYTHON) -m venv .venv-flair
	.venv-flair/bin/python -m pip install --quiet --disable-pip-version-check -c constraints-flair.txt -e '.[flair]' pytest hypothesis
	touch $@

# flair wants transformers < 5: an environment of its own
flair: .venv-flair/installed
	.venv-flair/bin/python -m pytest tests/integrations/test_flair.py

# the documentation as a site, in site/; look at it with: .venv/bin/python -m http.server -d site
# with `npm install onnxruntime-web`, the explorer runs in it, at site/try/
site: .venv/installed
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	test ! -d node_modules/onnxruntime-web || $(BIN)/elmokit export --web site/try --overwrite

# sdist and wheels in dist/, one for this platform and one for those without a compiled library; checked: contents, metadata,
# and README's first session in a new environment
release: .venv/installed
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt build twine
	rm -rf dist
	ELMOKIT_NATIVE=1 $(BIN)/python -m build --no-isolation --outdir dist
	ELMOKIT_NATIVE=0 $(BIN)/python -m build --no-isolation --wheel --outdir dist
	$(BIN)/twine check --strict dist/*
	$(BIN)/python tests/release/check_release.py dist

# hostile inputs, damaged files, kill -9, two processes on one target: half an hour, by a wheel outside of the checkout;
# a minute of it: make torture SCALE=0.01
SCALE ?= 1
torture: .venv/installed
	$(BIN)/python tests/torture/run.py --scale $(SCALE) --out build/torture

# the story of the word "bank" and of four Chinese words, told by the models that come with the package
demo: .venv/installed
	$(BIN)/python examples/bank.py

clean:
	rm -rf .venv .venv-flair .mypy_cache .pytest_cache .ruff_cache .hypothesis .coverage dist build site
