PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint gpu-check clean

demo: $(STAMP)
	$(BIN)/heterotask run canny $(ARGS)

test: $(STAMP)
	$(BIN)/python -m pytest -q -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

$(STAMP): pyproject.toml constraints.txt heterotask_core/runtime/_native.c
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[all,dev]'
	@echo "compiling the planner, once, in about a minute"
	$(BIN)/python -c "from heterotask_core.planning.base import Budget; \
	    from heterotask_core.planning.portfolio import PORTFOLIO; \
	    from heterotask_core.planning.memory import warm_up_walk; from heterotask_core.planning.search import warm_up; \
	    PORTFOLIO.plan(warm_up(), budget=Budget(evaluations=10)); warm_up_walk(warm_up())"
	touch $(STAMP)

gpu-check: $(STAMP)
	$(BIN)/python benchmarks/gpu_check.py

clean:
	rm -rf $(VENV) build *.egg-info
