# SPDX-License-Identifier: GPL-3.0-or-later
# All targets write to .venv and $(LLAMA_CPP_CLUSTER_CACHE). `make clean` removes .venv and prints where the cache is.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo serve check test bench docs release lab clean

ifeq ($(HOME)$(LLAMA_CPP_CLUSTER_CACHE),)
$(error HOME is not set, so there is no place for downloads and builds: set LLAMA_CPP_CLUSTER_CACHE to a folder)
endif
export LLAMA_CPP_CLUSTER_CACHE ?= $(HOME)/.cache/llama_cpp_cluster
# Ansible needs UTF-8.
ifneq ($(shell locale charmap 2>/dev/null),UTF-8)
export LC_ALL := C.UTF-8
endif
# Pass these values as they were typed: make would expand a $ in them.
override export MODEL := $(value MODEL)
override export WORKERS := $(value WORKERS)
override export PROMPT := $(value PROMPT)
override export SESSIONS := $(value SESSIONS)

help: ## Show this list
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p; s/^\(test-\)%:.*## /\1NAME\t/p' Makefile

demo: ## Run a small trained model over two workers on this machine; change it with MODEL=/path/model.gguf (or random) WORKERS=3 PROMPT="..."
	@scripts/demo.sh

serve: ## Serve an OpenAI-compatible API on this machine until Ctrl-C; change it with MODEL=/path/model.gguf WORKERS=3 GROUPS=2
	@SERVE=yes GROUPS_WANTED="$(GROUPS)" exec scripts/demo.sh

check: ## Run the linters and the unit tests; do this after every change
	@scripts/bootstrap.sh dev
	@scripts/check.sh

test: ## Run all tiers: check, sanity, the built collection, real llama.cpp processes, clusters on test hosts (root)
	@scripts/bootstrap.sh dev
	@scripts/test.sh

# docs/development.md says what each adds. All but the first four make test hosts, which needs root.
test-%: ## Run one tier, in full: integration performance ansible docs; cluster aarch64 pages faults upgrade serve gateway tunnel kubernetes fuzz (root)
	@scripts/bootstrap.sh dev
	@case $* in \
		integration | performance) exec scripts/$*.sh ;; \
		ansible) exec scripts/release.sh test-ansible ;; \
		docs) exec scripts/docs.sh test ;; \
		*) exec scripts/molecule.sh $* ;; \
	esac

bench: ## Measure RPC and threads, serving, loads, restarts, and rollouts to test hosts, as tables and JSON (root)
	@scripts/bootstrap.sh dev
	@scripts/bench.sh

docs: ## Build the site from docs/ and the specs of roles and plugins, in build/docs/html; it can be read without a network
	@scripts/bootstrap.sh dev
	@scripts/docs.sh

release: ## Check this commit with ansible-test sanity, build its archive in dist with a bill of materials, and check that with galaxy-importer; KEY=<a gpg key> signs it
	@scripts/bootstrap.sh dev
	@scripts/release.sh

lab: ## Start test hosts for inventories/lab: master, worker1, worker2, outsider (root); scripts/lab.sh down removes them
	@scripts/bootstrap.sh dev
	@scripts/lab.sh up

clean: ## Remove .venv; keep the cache of downloads and builds
	rm -rf .venv
	@echo "Kept: $(LLAMA_CPP_CLUSTER_CACHE) (downloads and builds; remove it by hand to free the space)"
