# SPDX-License-Identifier: GPL-3.0-or-later
# All targets write to .venv and $(LLAMA_CPP_CLUSTER_CACHE). `make clean` removes .venv and prints where the cache is.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo serve lab lab-down test test-integration test-cluster test-aarch64 test-faults test-upgrade test-serve test-gateway test-tunnel test-kubernetes test-performance test-fuzz test-docs test-pages bench check test-ansible docs release clean

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
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' Makefile

demo: ## Run a small trained model over two workers on this machine; change it with MODEL=/path/model.gguf (or random) WORKERS=3 PROMPT="..."
	@scripts/demo.sh

serve: ## Serve an OpenAI-compatible API on this machine until Ctrl-C; change it with MODEL=/path/model.gguf WORKERS=3 GROUPS=2
	@SERVE=yes GROUPS_WANTED="$(GROUPS)" exec scripts/demo.sh

check: ## Run the linters and the unit tests; do this after every change
	@scripts/bootstrap.sh dev
	@scripts/check.sh

docs: ## Build the site from docs/ and the specs of roles and plugins, in build/docs/html; it can be read without a network
	@scripts/bootstrap.sh dev
	@scripts/docs.sh

test-docs: ## Test the site in a browser: phone and desktop, light and dark, accessibility, search; not part of make test
	@scripts/bootstrap.sh dev
	@scripts/docs.sh test

test: ## Run all tiers: check, sanity, the built collection, real llama.cpp processes, clusters on test hosts (root)
	@scripts/bootstrap.sh dev
	@scripts/test.sh

test-integration: ## Test with real llama.cpp processes and Ansible runs on this machine; make test runs most of it
	@scripts/bootstrap.sh dev
	@scripts/integration.sh

test-cluster: ## Test a cluster on test hosts, from minimal systems to reset (root); make test runs most of it
test-aarch64: ## Test a cluster of aarch64 hosts of two CPU classes, emulated on other machines (root); make test runs a part of it
test-pages: ## Run the blocks of README and docs/start as they stand, with test hosts in the place of other machines (root); part of make test
test-cluster test-aarch64 test-pages test-faults test-upgrade test-serve test-tunnel test-gateway test-kubernetes test-fuzz:
	@scripts/bootstrap.sh dev
	@scripts/molecule.sh $(@:test-%=%)

test-faults: ## Test what is reported, and how soon, when something breaks, and that the cluster recovers (root for the hosts' part)
test-upgrade: ## Test upgrades of a cluster on test hosts in which something breaks (root); not part of make test
test-serve: ## Test an API over workers on test hosts: who reaches it, what ends it, how soon it is back (root); not part of make test
test-tunnel: ## Test a tunnel on test hosts: who reaches it, who can read it, what it survives (root); not part of make test
test-gateway: ## Test two groups behind a gateway on test hosts: who reaches it, what happens to requests when something breaks (root); not part of make test
test-kubernetes: ## Test the image and a group of its pods on test hosts, with stand-ins for Kubernetes: who reaches them, what a lost pod costs (root); not part of make test
test-performance: ## Test what patched workers and masters compute, and how they handle malformed requests; builds llama.cpp several times
	@scripts/bootstrap.sh dev
	@scripts/performance.sh

test-fuzz: ## Send 500 sessions of malformed requests to each of two confined workers on test hosts; FUZZ_SESSIONS changes it (root)
test-ansible: ## Run the unit tests and ansible-test sanity with ansible-core 2.19, 2.20, 2.21 and the newest, on each installed Python; not part of make test
	@scripts/bootstrap.sh dev
	@scripts/release.sh test-ansible

release: ## Check this commit with ansible-test sanity, build its archive in dist with a bill of materials, and check that with galaxy-importer; KEY=<a gpg key> signs it
	@scripts/bootstrap.sh dev
	@scripts/release.sh

bench: ## Measure tasks, RPC and threads, loads, and rollouts to test hosts, as tables and JSON (root)
	@scripts/bootstrap.sh dev
	@scripts/bench.sh

lab: ## Start test hosts for inventories/lab: master, worker1, worker2, outsider (root)
	@scripts/bootstrap.sh dev
	@scripts/lab.sh up

lab-down: ## Remove the test hosts
	@scripts/lab.sh down

clean: ## Remove .venv; keep the cache of downloads and builds
	rm -rf .venv
	@echo "Kept: $(LLAMA_CPP_CLUSTER_CACHE) (downloads and builds; remove it by hand to free the space)"
