# `make` lists what there is. Every target does the set-up it needs; a set-up that is up to
# date costs nothing.

PYTHON  ?= python3
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
TESTING := $(VENV)/.testing
SHOW    := $(VENV)/.demo
SPARK   := $(VENV)/.pipeline
KAFKA   := $(VENV)/.kafka
PIP     := $(BIN)/python -m pip --disable-pip-version-check
INSTALL := $(PYTHON) deploy/install.py

# An environment that was copied or moved runs the code of where it was.
ifneq ($(shell $(BIN)/python -c 'print(open("$(VENV)/.root").read())' 2>/dev/null),$(CURDIR))
$(READY) $(TESTING) $(SHOW) $(SPARK): FORCE
FORCE:
endif

# Python may keep what it compiles: packages are installed without that.
export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := help
.PHONY: help setup java demo demo-pipeline test test-kafka test-spark test-clients test-all test-night test-budgets test-properties durations check lint types layers names format docs js manifests image dist bench model isolation faults soak fuzz groups reactive kills planted lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(READY) $(KAFKA) ## a .venv with all dependencies, and a local Kafka for the tests

$(READY): pyproject.toml requirements.lock deploy/install.py
	@$(INSTALL) requirements.lock --size "1.2 GB, several minutes"
	@touch $@ $(TESTING) $(SHOW) $(SPARK)

# Versions are those of requirements.lock, so that the rest can be installed into the same .venv later.
$(TESTING): pyproject.toml requirements-test.lock deploy/install.py
	@$(INSTALL) requirements-test.lock --size "110 MB, half a minute or more"
	@touch $@ $(SHOW)

$(SHOW): pyproject.toml requirements-demo.lock deploy/install.py
	@$(INSTALL) requirements-demo.lock --size "30 MB, about 15 seconds"
	@touch $@

$(SPARK): pyproject.toml requirements-pipeline.lock deploy/install.py
	@$(INSTALL) requirements-pipeline.lock --size "560 MB, a minute or more"
	@touch $@ $(SHOW)

# Soft: the demo needs no Kafka, and a test that does says itself what is missing.
$(KAFKA): | $(TESTING)
	@command -v java >/dev/null || [ -f $(READY) ] || exit 0; \
	if $(BIN)/gateway broker --prefetch; then touch $@; \
	else echo "make: no local Kafka yet; the tests that need one will say so" >&2; fi

demo: $(SHOW) ## what the demo needs, then the demo in a browser: http://127.0.0.1:8080; PORT=9000 for another
	@$(BIN)/gateway demo $(if $(PORT),--port $(PORT)) $(ARGS)

# Asked for before anything is downloaded.
java:
	@command -v "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" >/dev/null || { \
	  echo "make: Spark needs Java 17; on Debian: apt-get install openjdk-17-jre-headless" >&2; exit 1; }

demo-pipeline: java $(SPARK) ## a shop, Spark jobs over it, live in a browser; PORT=9000; needs Java 17
	@$(BIN)/gateway pipeline prefetch
	$(BIN)/gateway pipeline demo $(if $(PORT),--port $(PORT)) $(ARGS)

PYTEST := $(BIN)/python -m pytest
SHARED := -n auto --dist loadgroup --no-loadscope-reorder
test: $(TESTING) $(KAFKA) ## what needs Python alone, in minutes; ARGS="-k name" for some of it
	$(PYTEST) --tier test $(or $(ARGS),$(SHARED))

test-kafka: setup ## real brokers, and the program as a process
	$(PYTEST) --tier kafka $(or $(ARGS),$(SHARED))

test-spark: setup ## Spark jobs; needs Java 17
	$(PYTEST) --tier spark $(or $(ARGS),$(SHARED))

test-clients: setup ## browsers, clients in other languages, proxies, deploy, executed pages
	$(PYTEST) --tier clients $(or $(ARGS),$(SHARED))

test-all: test ## everything CI runs; a test whose program is missing says what installs it
	@$(MAKE) --no-print-directory setup
	@$(MAKE) --no-print-directory -j2 --output-sync check
	$(PYTEST) --tier kafka --tier spark --tier clients $(SHARED)

test-night: ## budgets of time and memory, random properties, seeds of faults, a soak: some hours
	@$(MAKE) --no-print-directory --keep-going test-budgets test-properties faults soak \
	  SEEDS=$(or $(SEEDS),1-20) MINUTES=$(or $(MINUTES),30)

test-budgets: setup
	$(PYTEST) --tier night

test-properties: setup
	GATEWAY_HYPOTHESIS_PROFILE=night $(PYTEST) --tier test $(SHARED)

durations: setup ## write what each module of tests takes into tests/durations.json
	$(PYTEST) --tier test --tier kafka --tier spark --tier clients $(SHARED) --record-durations

check: lint types layers names ## ruff, mypy, import-linter, and names in pages

lint: $(READY) ## ruff
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY) ## mypy, strict
	$(BIN)/mypy

layers: $(READY) ## a layer imports only layers below it
	$(BIN)/lint-imports

names: $(READY) ## files, tests and links that pages name are there
	$(BIN)/python tests/lint.py

format: $(READY) ## rewrite as ruff likes it
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site is built without a network. A link or an anchor that leads nowhere ends it.
docs: $(READY) ## write docs/reference, build the site into site/; SERVE=1 serves it
	PYTHONPATH=docs $(BIN)/python -m docgen
	$(BIN)/python -m zensical build --clean --strict
	rm -rf site/docgen
	$(if $(SERVE),$(BIN)/python -m zensical serve --dev-addr 127.0.0.1:$(or $(PORT),8000))

js: ## bundle gateway/web/js/src into gateway/web/js/gateway.js; needs node and npm
	cd gateway/web/js/src && npm ci --silent --ignore-scripts && npm run --silent build

manifests: $(READY) ## write deploy/kustomize anew from the Helm chart
	$(BIN)/python deploy/render_kustomize.py

# Root, buildah and debootstrap; there need be no registry of images.
image: setup ## build the images by buildah over a Debian, and run them read-only
	$(BIN)/python -m pytest tests/deploy/test_image_build.py -q -n 0 $(ARGS)

dist: $(READY) ## build sdist, wheel, npm tarball and the context of an image into dist/
	$(BIN)/python deploy/build_dist.py

bench: $(TESTING) $(KAFKA) ## beside its peers, at most 20 minutes; WORK="lat sat" PEER="raw gateway" ARGS=--help
	$(BIN)/python -m bench $(foreach each,$(WORK),--work $(each)) $(foreach each,$(PEER),--peer $(each)) $(ARGS)

model: $(READY) ## the model test for an hour; SECONDS=60 for a minute
	GATEWAY_MODEL_SECONDS=$(or $(SECONDS),3600) $(BIN)/python -m pytest tests/model -q --timeout 0 $(ARGS)

isolation: setup ## clients and what is not theirs, at full size; CLIENTS=1000 RECORDS=100 SECONDS=60 for less
	GATEWAY_ISOLATION_CLIENTS=$(or $(CLIENTS),10000) GATEWAY_ISOLATION_RECORDS=$(or $(RECORDS),1000) \
	  GATEWAY_ISOLATION_SECONDS=$(or $(SECONDS),600) \
	  $(BIN)/python -m pytest tests/e2e/test_isolation.py tests/hub/test_isolation.py -q -s --timeout 0 $(ARGS)

faults: setup ## faults against real brokers and gateways, and a report; SEEDS=1-20 SECONDS=60 CLIENTS=200 KIND=broker-killed ARGS=--spark
	PYTHONPATH=tests $(BIN)/python -m bench.faults --seeds $(or $(SEEDS),1-3) --seconds $(or $(SECONDS),60) \
	  --clients $(or $(CLIENTS),200) $(foreach each,$(KIND),--kind $(each)) \
	  --report $(or $(REPORT),faults-report) $(ARGS)

soak: setup ## thousands of clients come and go under faults: does anything grow? MINUTES=30 CLIENTS=5000 RATE=5000 ARGS=--help
	PYTHONPATH=tests $(BIN)/python -m bench.faults.soak --minutes $(or $(MINUTES),30) \
	  --clients $(or $(CLIENTS),5000) --rate $(or $(RATE),5000) --report $(or $(REPORT),soak-report) $(ARGS)

# Each of some 17 properties in its turn.
fuzz: $(READY) ## hostile input for ten minutes; MINUTES=60 for an hour
	GATEWAY_FUZZ_SECONDS=$$(( $(or $(MINUTES),10) * 60 / 17 )) $(BIN)/python -m pytest tests/fuzz -q --timeout 0 $(ARGS)

groups: $(READY) ## random histories of a reactive group in virtual time; HISTORIES=100000 for more
	GATEWAY_GROUP_HISTORIES=$(or $(HISTORIES),10000) \
	  $(BIN)/python -m pytest tests/sidecar/reactive/test_liveness.py -q -n 2 --timeout 0 $(ARGS)

reactive: setup ## the reactive consumer with its back end away; SECONDS=300 RECORDS=20000 for more
	GATEWAY_REACTIVE_AWAY=$(or $(SECONDS),10) GATEWAY_REACTIVE_RECORDS=$(or $(RECORDS),10000) \
	  GATEWAY_REACTIVE_FAULTS=$(or $(SECONDS),300) \
	  $(BIN)/python -m pytest tests/e2e/test_sidecar_reactive.py tests/e2e/test_sidecar_faults.py -q -s --timeout 0 $(ARGS)

planted: setup ## which tests find each of sixty planted faults; OUTPUT=found.jsonl ARGS="--only NAME"
	PYTHONPATH=tests $(BIN)/python -m planted --output $(or $(OUTPUT),.venv/planted.jsonl) $(ARGS)

kills: setup ## a job whose process tree is killed; RECORDS=200000 KILLS=5 JOB=query|sessions|aggregate|join|enrich|program
	GATEWAY_KILLS=$(or $(KILLS),5) GATEWAY_KILLS_RECORDS=$(or $(RECORDS),200000) \
	  GATEWAY_KILLS_JOB=$(or $(JOB),query) \
	  $(BIN)/python -m pytest $(if $(filter program,$(JOB)),tests/pipeline/test_library_kafka.py,\
	    tests/pipeline/test_kills.py tests/pipeline/exactly_once/test_faults.py) -q -s --timeout 0 $(ARGS)

# The other locks are parts of requirements.lock: pip-compile keeps the versions of the file that it
# writes. The lines cut off say that the package itself is not pinned: it is this folder.
COMPILE = CUSTOM_COMPILE_COMMAND="make lock" $(BIN)/pip-compile --quiet --generate-hashes \
	  --strip-extras --unsafe-package kafka-gateway --no-emit-index-url --no-emit-find-links \
	  --no-emit-trusted-host pyproject.toml
PARTS := requirements-demo.lock requirements-pipeline.lock requirements-test.lock deploy/requirements.lock
lock: $(READY) ## write requirements.lock and its parts anew from pyproject.toml; ARGS=--upgrade for newer versions
	$(PIP) install --quiet pip-tools
	$(COMPILE) --extra dev --output-file requirements.lock $(ARGS)
	for part in $(PARTS); do cp requirements.lock $$part; done
	$(COMPILE) --extra demo --output-file requirements-demo.lock
	$(COMPILE) $(patsubst %,--extra %,avro pipeline protobuf) --output-file requirements-pipeline.lock
	$(COMPILE) --extra test --output-file requirements-test.lock
	$(COMPILE) $(patsubst %,--extra %,avro ksqldb otel protobuf server) --output-file deploy/requirements.lock
	sed -i.old '/^# WARNING/,$$d' requirements.lock $(PARTS)
	rm -f *.lock.old deploy/*.lock.old

clean: ## remove the .venv and everything made; downloads stay cached
	rm -rf $(VENV) dist site node_modules .*_cache .hypothesis
	rm -rf examples/*/node_modules examples/*/dist gateway/web/js/src/node_modules
	find gateway docs tests bench examples -name __pycache__ -type d -prune -exec rm -rf {} +
