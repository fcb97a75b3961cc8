# The everyday commands; `make help` lists them. CONTRIBUTING.md says when to use which.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-builtin-rules

VENV := .venv
BIN := $(VENV)/bin
# Tests wait for more than they compute: three keep two processors busy.
TEST_JOBS ?= 3
PYTEST_ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PIP_ROOT_USER_ACTION := ignore
# A shell that sets it makes each process of the suite, and each daemon of a test, compile all sources anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## This list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(VENV)/.project ## Create .venv from requirements.lock and make sure that there is an etcd.
	@deploy/get-etcd.sh >/dev/null

$(VENV)/.locked: requirements.lock requirements-alone.lock deploy/make-venv.sh
	@deploy/make-venv.sh $(VENV)
	@echo "installing the packages of requirements.lock (once; about a minute)"
	@$(BIN)/pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/pip install --quiet --require-hashes --no-deps -r requirements-alone.lock
	@touch $@

$(VENV)/.project: pyproject.toml $(VENV)/.locked
	@$(BIN)/pip install --quiet --no-deps --no-build-isolation --no-index --editable .
	@touch $@

.PHONY: demo
demo: setup $(if $(filter hdfs,$(STORE)),hadoop) $(if $(filter docker,$(RUNTIME)),docker) $(if $(filter yarn,$(ON)),yarn) ## Train, kill everything in turn, and see training go on; STORE=hdfs, RUNTIME=docker, ON=yarn.
	@$(BIN)/python -m examples.demo $(if $(STORE),--store $(STORE)) $(if $(RUNTIME),--runtime $(RUNTIME)) $(if $(ON),--on $(ON))

.PHONY: check
check: $(VENV)/.project ## Format, lint, strict types, import contracts, dead code, failpoints, what a command loads.
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/vulture
	$(BIN)/pytest -q tests/chaos/test_failpoints.py tests/cli/test_start.py
	@for script in .ci/run deploy/*.sh deploy/*/*.sh; do bash -n "$$script"; done

.PHONY: test
test: setup etcd-current hadoop fuse docker compiler networks nft zstd browser systemd prometheus ## Every test but the slow ones.
	$(BIN)/pytest -n $(TEST_JOBS) --dist worksteal -m "not slow" $(PYTEST_ARGS)

.PHONY: test-all
test-all: setup etcd-current hadoop fuse docker compiler networks nft zstd browser systemd prometheus kubernetes-check slurm spark yarn ## Every test with its full counts; a dated report in var/reports/.
	@mkdir -p var/reports
	@report="var/reports/$$(date -u +%Y-%m-%dT%H%M%SZ)"; \
	{ echo "commit $$(git describe --always --dirty 2>/dev/null || echo unknown)"; uname -sr; nproc; etcd --version | head -n 1; } >"$$report.txt"; \
	echo "report: $$report.txt"; \
	$(BIN)/pytest -n $(TEST_JOBS) --dist worksteal --durations 25 --junitxml "$$report.xml" $(PYTEST_ARGS) 2>&1 | tee -a "$$report.txt"

# Without a Go that is new enough (exit code 3) the suite runs against the etcd in PATH alone, and says so.
# Any other failure to build is a failure.
.PHONY: etcd-current
etcd-current:
	@deploy/build-etcd.sh var/etcd-3.7 || [[ $$? -eq 3 ]]

# The same, for the manifests for Kubernetes.
.PHONY: kubernetes-check
kubernetes-check:
	@deploy/build-kubernetes-check.sh var/kubernetes-1.37 || [[ $$? -eq 3 ]]

.PHONY: hadoop
hadoop:
	@deploy/get-java.sh >/dev/null
	@deploy/hdfs/get-jars.sh >/dev/null

.PHONY: fuse
fuse:
	@deploy/get-fuse.sh

.PHONY: docker
docker:
	@deploy/get-docker.sh

.PHONY: compiler
compiler:
	@deploy/get-cc.sh

.PHONY: networks
networks:
	@deploy/get-chaos.sh

.PHONY: nft
nft:
	@deploy/get-nft.sh

.PHONY: zstd
zstd:
	@deploy/get-zstd.sh

.PHONY: browser
browser:
	@deploy/get-browser.sh

.PHONY: systemd
systemd:
	@deploy/get-systemd.sh

.PHONY: prometheus
prometheus:
	@deploy/get-prometheus.sh

.PHONY: slurm
slurm:
	@deploy/get-slurm.sh

.PHONY: spark
spark: $(VENV)/.locked
	@deploy/get-spark.sh >/dev/null

.PHONY: yarn
yarn: hadoop
	@deploy/get-java.sh javac >/dev/null
	@deploy/hdfs/get-jars.sh yarn >/dev/null

.PHONY: hdfs-up
hdfs-up: ## A real HDFS on this machine, to try things on; HA=1: with two NameNodes.
	@deploy/hdfs/hdfs.sh up var/hdfs $(if $(filter 1,$(HA)),--ha)

.PHONY: hdfs-down
hdfs-down: ## End it and remove what was stored in it.
	@deploy/hdfs/hdfs.sh down var/hdfs

.PHONY: yarn-up
yarn-up: yarn ## A real YARN beside the HDFS of hdfs-up.
	@deploy/yarn/yarn.sh up var/yarn var/hdfs

.PHONY: yarn-down
yarn-down: ## End it, and what its containers left.
	@deploy/yarn/yarn.sh down var/yarn

FOR ?= 3h
PATIENCE ?= 3
.PHONY: chaos
chaos: setup etcd-current hadoop fuse docker compiler networks ## Break a cluster in many ways, plant bugs, run seeds; FOR=60m: so long in all.
	@$(BIN)/python -m chaos all --for $(FOR) --seed $$(date -u +%Y%m%d) --patience $(PATIENCE)

.PHONY: lock
lock: $(VENV)/.locked ## Resolve the dependencies of pyproject.toml anew into the lock files.
	@env -u PIP_FIND_LINKS $(BIN)/pip-compile --quiet --upgrade --extra demo --extra dev --strip-extras --allow-unsafe \
	    --generate-hashes --no-header --no-emit-index-url --no-emit-find-links --no-emit-trusted-host \
	    --output-file requirements.lock.new pyproject.toml
	@{ echo '# Exact versions for Linux x86_64 and Python 3.11; written by `make lock`.'; cat requirements.lock.new; } >requirements.lock
	@rm requirements.lock.new
	@deploy/lock-alone.sh $(BIN)/pip 'tf-keras>=2.21,<2.22' 'tensorflow-serving-api>=2.21,<2.22' >requirements-alone.lock

.PHONY: proto
proto: $(VENV)/.locked ## Generate the messages of supervisor/wire/*.proto, with their types.
	$(BIN)/python -m grpc_tools.protoc --proto_path . --plugin protoc-gen-mypy=$(BIN)/protoc-gen-mypy \
	    --python_out . --mypy_out quiet:. supervisor/wire/*.proto

.PHONY: clean
clean: ## Remove what these commands made, but for var/reports and var/local.
	@deploy/hdfs/hdfs.sh down var/hdfs
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find var -mindepth 1 -maxdepth 1 ! -name reports ! -name local -exec rm -rf {} + 2>/dev/null || true
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
