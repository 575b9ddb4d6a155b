# The commands of this project. Each target first installs or names its needs (tools/setup.sh), and then works
# without a network. JOBS=N limits the parallel jobs.

.DEFAULT_GOAL := help
.PHONY: help setup build check test pytest test-frameworks repeat differ mutants fuzz demo python wheel release docs train bench gpu-test gpu-test-frameworks gpu-bench kernels format lint clean

help: ## Show the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-19s %s\n", $$1, $$2 }' Makefile

setup: ## Install what building, testing and linting need
	@tools/setup.sh build test python lint tsan

build: ## Build the library and the command: build/release/penstock
	@tools/setup.sh build
	@tools/build.sh release

check: ## Build, run the unit tests and lint the changed files, without sanitizers, Python and installing
	@tools/setup.sh build test python lint
	@tools/check.sh

test: ## Run every test that needs no GPU, also under the sanitizers
	@tools/setup.sh build test python lint tsan
	@tools/test.sh

pytest: ## Run single tests of Python with the sources as they lie here, without a wheel: T='test_loader.py -k resume'
	@tools/setup.sh build test python
	@tools/python.sh one $(T)

test-frameworks: ## Run the tests with Lightning, Accelerate, transformers and others, and the blocks of docs/frameworks.md
	@tools/setup.sh build python
	@tools/python.sh test-frameworks

repeat: ## Repeat the tests, Python's too, alone and under load, for MINUTES=60 or until one fails
	@tools/setup.sh build test python
	@tools/build.sh ci
	@PENSTOCK_BUILT=$(CURDIR)/build/ci tools/python.sh environment --new
	@tools/repeat.sh $(or $(MINUTES),60)

differ: ## Compare feed and Loader with the bare DataLoader and NumPy on random cases, for SECONDS=60; SEED=n gives the same cases
	@tools/setup.sh build test python
	@tools/python.sh differ --seconds $(or $(SECONDS),60) --seed $(or $(SEED),0)

mutants: ## Remove one thing at a time from the lines changed since SINCE=REV, and see whether a test notices; ARGS='--all --layer loader'
	@tools/setup.sh build test python tsan
	@tools/python.sh tool tools/mutants.py $(if $(SINCE),--since '$(SINCE)') $(ARGS)

fuzz: ## Fuzz each parser of files for SECONDS=30, under the sanitizers
	@tools/setup.sh build python tsan
	@tools/build.sh fuzz
	@tools/fuzz.sh $(or $(SECONDS),30)

demo: build ## Feed a real dataset, Fashion-MNIST or DATA='files...', and say where the time went
	@DATA='$(DATA)' tools/demo.sh

python: ## Install the Python package into .venv
	@tools/setup.sh build python
	@tools/python.sh install

wheel: ## Make wheels that need no other package, audit and try them: build/wheels
	@tools/setup.sh python
	@tools/wheels.sh build
	@tools/wheels.sh check

release: wheel ## Gather what is published: wheels, sdist, checksums, notes: build/release-files
	@tools/wheels.sh release

docs: ## Make the site: build/site
	@tools/setup.sh build python
	@tools/python.sh docs

train: ## Train on Fashion-MNIST, fed in four ways; ARGS='--epochs 5 ...'
	@tools/setup.sh build python demo
	@tools/python.sh train $(ARGS)

bench: ## Run the benchmarks on the host device
	@tools/setup.sh build
	@tools/build.sh release -DPENSTOCK_BUILD_BENCHMARKS=ON
	@tools/bench.sh

gpu-test: ## Run the tests on a GPU
	@tools/gpu.sh test

gpu-test-frameworks: ## Run the tests with the installed frameworks on a GPU
	@tools/gpu.sh test-frameworks

gpu-bench: ## Measure the rows of docs/performance.md on a GPU, and those of several GPUs; PARTS='engine compare ...'
	@tools/gpu.sh bench $(PARTS)

kernels: ## Compile the CUDA kernels to the committed PTX (needs nvcc)
	@tools/make_kernels.sh

format: ## Format the sources
	@tools/setup.sh lint
	@tools/format.sh

lint: ## Run clang-tidy, and check the format and the layers
	@tools/setup.sh build test python lint
	@tools/lint.sh
	@tools/format.sh --check
	@tools/check_layers.py

clean: ## Remove everything that was built
	rm -rf build
