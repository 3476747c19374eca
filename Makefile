# Every target sets up what it needs; Python 3.11+ and make are enough to begin.
PYTHON ?= python3
VENV := .venv
OLDEST := .venv-oldest
COMPILER := .venv-gpu-compiler
RAY := .venv-ray
DOCS := .venv-docs
BIN := $(VENV)/bin
export TF_CPP_MIN_LOG_LEVEL ?= 2

.PHONY: help benchmarks-page demo dist test test-all test-oldest test-keras test-gpu-compiler check bench-data bench-estimate bench-fit bench-gpu-compiler bench-guard bench-large bench-leaks bench-monitor bench-optimizers bench-remat bench-slim bench-trials bench-zoo chaos docs fuzz fuzz-peaks fuzz-plans format clean test-ray bench-scale chaos-scale

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

$(VENV)/installed: pyproject.toml constraints.txt
	@echo "Setting up $(VENV) (about a minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,dev]'
	@touch $@

demo: $(VENV)/installed  ## train in a small arena: stock Keras, then memfit
	@$(BIN)/python examples/demo.py

# Three workers for two cores: TensorFlow waits 10 s before it fails an allocation. tests/conftest.py has the order.
PARALLEL := -n 3 --dist loadfile --no-loadscope-reorder

test: $(VENV)/installed  ## the tests, except those in tests/slow.txt
	@$(BIN)/python -m pytest $(PARALLEL) -m "not slow"

test-all: $(VENV)/installed  ## all tests
	@$(BIN)/python -m pytest $(PARALLEL)

$(OLDEST)/installed: pyproject.toml constraints-oldest.txt
	@echo "Setting up $(OLDEST) (about a minute the first time)"
	@$(PYTHON) -m venv $(OLDEST)
	@$(OLDEST)/bin/pip install --quiet --disable-pip-version-check -c constraints-oldest.txt -e '.[cpu,dev]'
	@touch $@

test-oldest: $(OLDEST)/installed  ## all tests with the oldest Keras and TensorFlow supported
	@$(OLDEST)/bin/python -m pytest $(PARALLEL)

test-keras: $(VENV)/installed  ## Keras's own tests of training, as they are and under `memfit run`
	@$(BIN)/python .ci/keras_tests.py

# The compiler has an environment of its own: TensorFlow imports JAX wherever it finds it, which costs every start.
$(COMPILER)/installed: pyproject.toml constraints.txt
	@echo "Setting up $(COMPILER) (1 GB more than $(VENV))"
	@$(PYTHON) -m venv $(COMPILER)
	@$(COMPILER)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,dev,gpu-compiler]'
	@touch $@

test-gpu-compiler: $(COMPILER)/installed  ## the tests that need memfit[gpu-compiler]
	@$(COMPILER)/bin/python -m pytest tests/estimation/test_gpu_compiler.py tests/compat/test_jax_compiler.py

# Half a GB, and only this needs it.
$(RAY)/installed: pyproject.toml constraints.txt
	@echo "Setting up $(RAY) (0.5 GB more than $(VENV))"
	@$(PYTHON) -m venv $(RAY)
	@$(RAY)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[cpu,dev,ray]'
	@touch $@

test-ray: $(RAY)/installed  ## the tests that need memfit[ray], on a real local Ray cluster
	@$(RAY)/bin/python -m pytest tests/scaling/test_ray.py

bench-gpu-compiler: $(COMPILER)/installed  ## XLA's figures for T4, A100, RTX 4090: stock, memfit, largest batches
	@$(COMPILER)/bin/python benchmarks/gpu_compiler/run.py

check: $(VENV)/installed  ## format, lint, types, import rules, wheel
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/python benchmarks/page/write.py --check
	@.ci/wheel

benchmarks-page:  ## write docs/benchmarks.md from benchmarks/results/*.json
	@$(PYTHON) benchmarks/page/write.py

bench-data: $(VENV)/installed  ## time and memory of feeding data, against Keras and plain tf.data
	@$(BIN)/python benchmarks/data/bench.py

bench-estimate: $(VENV)/installed  ## predicted peaks against measured ones, and runs capped at the prediction
	@$(BIN)/python benchmarks/estimate/run.py

bench-fit: $(VENV)/installed  ## a job that fits, micro-batches, the largest batch: against stock Keras
	@$(BIN)/python benchmarks/fit/job_that_fits.py
	@$(BIN)/python benchmarks/fit/micro_batches.py
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/plan/largest_batch.py

bench-guard: $(VENV)/installed  ## what the guard costs a job that fits: time and memory
	@$(BIN)/python benchmarks/guard/cost.py

bench-leaks: $(VENV)/installed  ## 20 leaking and 20 clean loops: what `memfit.watch` finds, its cost
	@$(BIN)/python benchmarks/leaks/run.py
bench-large: $(VENV)/installed  ## a 3D U-Net trained in half of stock's peak, and predicted with in an eighth
	@$(BIN)/python benchmarks/large/run.py

bench-monitor: $(VENV)/installed  ## what MemoryMonitor and run records cost
	@$(BIN)/python benchmarks/monitor/cost.py
	@$(BIN)/python benchmarks/monitor/records.py

bench-optimizers: $(VENV)/installed  ## Adam8bit and Adafactor: state, time of a step, final losses, against Keras's
	@$(BIN)/python benchmarks/optimizers/run.py

bench-zoo: $(VENV)/installed  ## networks it was not tuned on: estimates, runs under a limit, exact plans; continues where it stopped
	@$(BIN)/python benchmarks/zoo/run.py

bench-remat: $(VENV)/installed  ## memory and time of rematerialised steps, against stock Keras
	@$(BIN)/python benchmarks/remat/bench.py
	@$(BIN)/python benchmarks/remat/planned.py

bench-scale: $(VENV)/installed  ## 2 and 3 ranks against one device and MirroredStrategy: results, time, memory
	@$(BIN)/python benchmarks/scale/run.py

bench-slim: $(VENV)/installed  ## variants of seven networks: predicted peaks against measured ones; continues where it stopped
	@$(BIN)/python benchmarks/slim/run.py

bench-trials: $(VENV)/installed  ## a process's memory after one trial and after 100 more, against training in one process
	@$(BIN)/python benchmarks/trials/parent_memory.py

fuzz: $(VENV)/installed  ## random networks trained by stock Keras and by memfit: everything compared
	@$(BIN)/python benchmarks/fuzz/run.py

fuzz-peaks: $(VENV)/installed  ## predicted against measured peaks of 100 random networks
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/fuzz/peaks.py

fuzz-plans: $(VENV)/installed  ## random networks trained in an arena for half of their activations, against stock Keras
	@PYTHONPATH=benchmarks $(BIN)/python benchmarks/fuzz/plans.py

chaos: $(VENV)/installed  ## faults at random moments, each result compared with the undisturbed run
	@$(BIN)/python benchmarks/chaos/run.py

# Neither Keras nor TensorFlow: docstrings are read, not imported.
$(DOCS)/installed: pyproject.toml constraints.txt
	@echo "Setting up $(DOCS)"
	@$(PYTHON) -m venv $(DOCS)
	@$(DOCS)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(DOCS)/installed  ## the documentation site in site/; broken links fail
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs --quiet build --strict --clean
	@echo "site/index.html (with search: $(PYTHON) -m http.server -d site)"

dist:  ## wheel and sdist in dist/, checked by twine and used in an empty environment
	@.ci/dist

chaos-scale: $(VENV)/installed  ## ranks killed, frozen, late, out of memory in every stage: compared with the undisturbed run
	@$(BIN)/python benchmarks/scale/run_faults.py

format: $(VENV)/installed  ## rewrite the files as ruff wants them
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

clean:  ## remove what the targets made
	rm -rf $(VENV) $(OLDEST) $(COMPILER) $(RAY) $(DOCS) site dist build .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
