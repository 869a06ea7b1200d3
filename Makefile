# Every target sets up what it needs first; see scripts/setup.sh.
.PHONY: setup demo test lint format lock

setup:
	@scripts/setup.sh

demo: setup
	@.venv/bin/python scripts/demo.py

test: setup
	.venv/bin/python -m pytest -n 2 --dist loadfile

lint: setup
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/nbstripout --verify notebooks/*.ipynb

format: setup
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .
	.venv/bin/nbstripout notebooks/*.ipynb

lock:
	uv lock
