# The two commands: `make demo` and `make test`. `make help` lists the rest.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

ROOT := $(CURDIR)
# cargo reads a relative CARGO_TARGET_DIR from the directory it runs in, which is this one.
TARGET := $(if $(CARGO_TARGET_DIR),$(CARGO_TARGET_DIR),target)
NEXTEST_PROFILE := $(if $(CI),ci,default)
export PATH := $(ROOT)/.tools/bin:$(PATH)

# Two cores and one target directory: cargo is parallel enough.
.NOTPARALLEL:
.PHONY: help demo test up down bench bench-json chaos earlier-release rights pods sandbox-levels manifests image tools build build-release build-bench fmt lint deny unit doc-test doc book

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' Makefile

demo: tools build ## build, start everything, send a signed webhook and a chat message, show their whole way
	$(TARGET)/debug/nexus demo

# The long part last, so that the summary of the tests is the last thing printed.
test: tools lint deny build doc doc-test unit ## everything that CI runs

up: tools build ## start everything and keep it running, data in .nexus/
	$(TARGET)/debug/nexus up

down: ## stop what `make up` started
	@if [ -x $(TARGET)/debug/nexus ]; then $(TARGET)/debug/nexus down; else echo "down: nothing was built here yet"; fi

bench: tools build-bench ## measure: table (release build, two cores suffice)
	$(TARGET)/release/nexus bench

bench-json: tools build-bench ## measure: JSON on standard output
	@$(TARGET)/release/nexus bench --json

# The release before this one, which tests/chaos/upgrade.rs replaces by this one and takes back, as programs of its own.
EARLIER := $(shell cat tests/earlier-release)
EARLIER_ROOM := $(abspath $(TARGET))/earlier-release
HAS_EARLIER = $(shell git cat-file -e '$(EARLIER)^{commit}' 2>/dev/null && echo yes)
EARLIER_BINARIES = $(if $(HAS_EARLIER),$(EARLIER_ROOM)/build/debug)

earlier-release: ## the programs of the commit in tests/earlier-release, into target/earlier-release, if the history is at hand
	@if [ -z "$(HAS_EARLIER)" ]; then \
		echo "earlier-release: $(EARLIER) is not at hand: one build stands for both releases"; \
	else \
		if [ "$$(git -C $(EARLIER_ROOM)/source rev-parse HEAD 2>/dev/null)" != $(EARLIER) ]; then \
			rm -rf $(EARLIER_ROOM)/source; \
			git worktree prune; \
			git worktree add --quiet --detach $(EARLIER_ROOM)/source $(EARLIER); \
		fi; \
		CARGO_TARGET_DIR=$(EARLIER_ROOM)/build cargo build --workspace --bins \
			--manifest-path $(EARLIER_ROOM)/source/Cargo.toml; \
	fi

# Millions of events want a release build of the services. NEXUS_CHAOS_RATE says how many a second come to replicas that come and
# go, 600 if it says nothing; NEXUS_CHAOS_EVENTS how many a large copy has, two million if it says nothing.
MILLIONS := test(replicas_that_come_and_go) | test(a_large_copy)

chaos: tools build build-release earlier-release ## the long forms: at least 200 kills, every zone's clock changes, a million streams of models, a copy of two million events, floods, slow conversations, races, hostile hooks one by one
	@deploy/fetch-tools cargo-nextest
	NEXUS_CHAOS=long NEXUS_BIN_BEFORE=$(EARLIER_BINARIES) cargo nextest run --workspace --test chaos --profile chaos \
		-E 'not ($(MILLIONS))'
	NEXUS_CHAOS=long NEXUS_BIN=$(abspath $(TARGET))/release cargo nextest run --workspace --test chaos --profile chaos \
		-E '$(MILLIONS)'
	NEXUS_CHAOS=long cargo nextest run -p shared --test schedules -E 'test(oracle)' --profile chaos
	NEXUS_CHAOS=long cargo nextest run -p shared --test llm_bounds --profile chaos
	NEXUS_CHAOS=long cargo nextest run -p adapter-svc -p hook-svc -p broker-svc \
		-E 'test(hostile::) & package(adapter-svc) | test(head_of_line) | test(approvals_once)' --profile chaos
	NEXUS_HOOKS=long cargo nextest run -p hook-svc \
		-E 'test(whatever_hooks_try_others_do_not_pay) | test(hostile_hooks_cost_nobody_else_a_result)' --profile chaos
	$(MAKE) rights

# Left out: stories that do to the bus, on their own connection, what none of the users may (they change streams and write
# messages by hand), and pods, which have users of their own.
WITHOUT_USERS := test(bad_input) | test(backup_keys) | test(backup_intents) | test(pods) | test(approval::) | test(absence) \
	| test(an_operator_looks_around_and_switches_hooks) | test(later_release) | test(lost_wakeups) | test(stale_owner) \
	| test(metrics_parse_and_failures_name_their_ids)
USED_RIGHTS := $(abspath $(TARGET))/used-rights.txt

rights: tools build ## the stories on servers with users; a right that is recorded as used and that none of them used fails
	@deploy/fetch-tools cargo-nextest
	@rm -f $(USED_RIGHTS)
	NEXUS_TEST_USERS=all NEXUS_TEST_RIGHTS=$(USED_RIGHTS) cargo nextest run --workspace $(FEATURES) --test e2e \
		-E 'not ($(WITHOUT_USERS))' --profile chaos
	@unused=$$(LC_ALL=C comm -23 <(grep -v ' # ' tests/data/used-rights.txt) <(LC_ALL=C sort -u $(USED_RIGHTS))); \
	if [ -n "$$unused" ]; then \
		echo "rights: recorded in tests/data/used-rights.txt as used, and not used by the stories:"; echo "$$unused"; exit 1; \
	fi

pods: tools build ## the manifests of k8s/ run as pods, with their networks: an evening of an operator, NATS rolled (needs root and nftables)
	@deploy/fetch-tools cargo-nextest
	cargo nextest run --workspace $(FEATURES) --test e2e -E 'test(pods)'

manifests: ## checkov's look at the manifests of k8s/: what it finds is mended, or accepted with a reason (needs kubectl and pip)
	deploy/check-manifests

image: ## the images nexus and nexus-hook, without Docker, into target/dist/images (needs buildah)
	deploy/image/build $(TARGET)/dist/images

# Each part of the sandbox that a machine may lack; a lower level of `hooks.sandbox` than `enforce` runs hooks there.
SANDBOX_PARTS := landlock seccomp launcher
RUNNER := CARGO_TARGET_$(shell rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')_RUNNER

sandbox-levels: build ## the tests of hook-svc as on machines that lack Landlock, seccomp, or the launcher (needs root)
	@deploy/fetch-tools cargo-nextest
	cargo build --workspace $(FEATURES) --example lacking
	@for part in $(SANDBOX_PARTS); do \
		echo "hook-svc without $$part:"; \
		env $(RUNNER)="$(abspath $(TARGET))/debug/examples/lacking $$part" \
			cargo nextest run --workspace $(FEATURES) -E 'package(hook-svc)'; \
	done

tools: ## nats-server and Bun into .tools/, unless fitting ones are on the PATH
	@deploy/fetch-tools
	@deploy/fetch-tools --optional wordllama-l2-supercat-256

# One profile and one feature set for the demo and the tests, so that nothing is built twice.
FEATURES := --features cli/bench

build: ## the six binaries, dev profile
	cargo build --workspace --bins $(FEATURES)

build-release: ## the six binaries, release profile
	@cargo build --release --bins -p adapter-svc -p hook-svc -p broker-svc -p delivery-svc -p scheduler-svc -p cli

build-bench: ## the six binaries with `nexus bench`, release profile
	@cargo build --release --bins -p adapter-svc -p hook-svc -p broker-svc -p delivery-svc -p scheduler-svc -p cli $(FEATURES)

fmt: ## format
	cargo fmt --all

lint: ## formatting and lints
	cargo fmt --all --check
	cargo clippy --workspace --all-targets $(FEATURES) -- -D warnings

# Advisories need a database that is fetched from outside: checked where one is at hand.
deny: ## licences, bans and sources of the dependencies
	@deploy/fetch-tools cargo-deny
	cargo deny --workspace check licenses bans sources
	@if [ -d "$${CARGO_HOME:-$$HOME/.cargo}/advisory-dbs" ]; then cargo deny --workspace --offline check advisories; \
	else echo "deny: no advisory database on this machine: advisories not checked"; fi

# The service binaries come first: stories and chaos start them from the target directory.
unit: build ## unit, integration and end-to-end tests
	@deploy/fetch-tools --optional cargo-nextest all-minilm-l6-v2
	@if cargo nextest --version >/dev/null 2>&1; then \
		cargo nextest run --workspace $(FEATURES) --profile $(NEXTEST_PROFILE); \
	else \
		echo "unit: no cargo-nextest: running cargo test, one binary after another"; \
		cargo test --workspace $(FEATURES) --lib --bins --tests -- --test-threads=2; \
	fi

doc-test: ## examples in the documentation
	cargo test --workspace --doc

doc: book ## the documentation, warnings denied
	RUSTDOCFLAGS="-D warnings" cargo doc --workspace --no-deps

book: ## the pages of docs/ as a book in target/book, where mdbook can be had
	@deploy/fetch-tools --optional mdbook
	@if mdbook --version >/dev/null 2>&1; then \
		mdbook build docs --dest-dir "$(abspath $(TARGET))/book"; \
	else \
		echo "book: no mdbook: the pages are read as they are"; \
	fi
