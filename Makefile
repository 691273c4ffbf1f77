PY := .venv/bin/python
export OMP_WAIT_POLICY := PASSIVE
pins: ## recompile requirements/*.txt from pyproject.toml
	.venv/bin/uv pip compile -q --no-header --no-annotate --extra worker pyproject.toml -o requirements/worker.txt
