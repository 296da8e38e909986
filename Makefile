# SPDX-License-Identifier: GPL-3.0-or-later
# Everything goes into .venv and $(LLAMA_CPP_CLUSTER_CACHE); `make clean` removes the first, and says where the second is.
SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help demo serve lab lab-down test test-integration test-cluster test-aarch64 test-matrix test-faults test-upgrade test-serve test-gateway test-tunnel test-kubernetes test-performance test-fuzz test-docs bench check test-ansible docs release clean

ifeq ($(HOME)$(LLAMA_CPP_CLUSTER_CACHE),)
$(error HOME is not set, so there is no place for downloads and builds: set LLAMA_CPP_CLUSTER_CACHE to a folder)
endif
export LLAMA_CPP_CLUSTER_CACHE ?= $(HOME)/.cache/llama_cpp_cluster
# Ansible works in no other encoding.
ifneq ($(shell locale charmap 2>/dev/null),UTF-8)
export LC_ALL := C.UTF-8
endif
# As typed: make would expand a $ in them.
override export MODEL := $(value MODEL)
override export WORKERS := $(value WORKERS)
override export PROMPT := $(value PROMPT)
override export SESSIONS := $(value SESSIONS)

help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile

demo: ## Distributed inference on this machine; MODEL=/path/model.gguf WORKERS=3 PROMPT="..." change it
	@scripts/demo.sh

serve: ## An OpenAI-compatible API on this machine until Ctrl-C, over workers; MODEL=/path/model.gguf WORKERS=3 GROUPS=2 change it
	@SERVE=yes GROUPS_WANTED="$(GROUPS)" scripts/demo.sh

check: ## Lint and unit tests, after every change
	@scripts/bootstrap.sh dev
	@scripts/check.sh

docs: ## The site, from docs/ and from the specs of roles and plugins, in build/docs/html; opened as files, it needs no network
	@scripts/bootstrap.sh dev
	@scripts/docs.sh

test-docs: ## The site in a browser: phone and desktop, light and dark, accessibility, search; no part of test
	@scripts/bootstrap.sh dev
	@scripts/docs.sh test

test: ## Everything: check, sanity, the built collection, real llama.cpp processes, clusters on test hosts (root)
	@scripts/bootstrap.sh dev
	@scripts/test.sh

test-integration: ## Real llama.cpp processes and Ansible runs on this machine; test has most of it
	@scripts/bootstrap.sh dev
	@scripts/integration.sh

test-cluster: ## A cluster on test hosts, from minimal systems and back (root); test has most of it
	@scripts/bootstrap.sh dev
	@scripts/cluster.sh

test-aarch64: ## A cluster of aarch64 hosts of two CPU classes, emulated where this machine is none (root); test has a part of it
	@scripts/bootstrap.sh dev
	@scripts/aarch64.sh

test-matrix: ## Masters and workers of all generations of the RPC protocol meet each other, as docs/reference/compatibility.md says; builds llama.cpp three times
	@scripts/bootstrap.sh dev
	@scripts/matrix.sh

test-faults: ## What breaks: what is said, how soon, and that all is ready again by itself; the hosts' part needs root
	@scripts/bootstrap.sh dev
	@scripts/faults.sh

test-upgrade: ## What becomes of a cluster on test hosts when something breaks while it gets another llama.cpp (root); no part of test
	@scripts/bootstrap.sh dev
	@scripts/upgrade.sh

test-serve: ## An API over workers on test hosts: who reaches it, what ends it, and how soon it is back (root); no part of test
	@scripts/bootstrap.sh dev
	@scripts/serve.sh

test-tunnel: ## A tunnel between masters and workers on test hosts: who reaches it, who can read it, and what it survives (root); no part of test
	@scripts/bootstrap.sh dev
	@scripts/tunnel.sh

test-gateway: ## Two groups behind a gateway on test hosts: who reaches it, and what becomes of requests when something breaks (root); no part of test
	@scripts/bootstrap.sh dev
	@scripts/gateway.sh

test-kubernetes: ## The image and a group of its pods on test hosts, with stand-ins for Kubernetes: who reaches them, and what a lost pod costs (root); no part of test
	@scripts/bootstrap.sh dev
	@scripts/kubernetes.sh

test-performance: ## What patched workers and masters compute, all of it, and what malformed requests do to them; builds llama.cpp several times
	@scripts/bootstrap.sh dev
	@scripts/performance.sh

test-fuzz: ## What malformed requests do to confined workers on test hosts, for long: FUZZ_SESSIONS=500 each (root)
	@scripts/bootstrap.sh dev
	@scripts/fuzz.sh

test-ansible: ## Unit tests and ansible-test sanity with ansible-core 2.19, 2.20, 2.21 and the newest, on each Python that is here; no part of test
	@scripts/bootstrap.sh dev
	@scripts/release.sh test-ansible

release: ## The archive of this commit, judged by galaxy-importer, with a bill of materials, in dist; KEY=<a key of gpg's> signs it
	@scripts/bootstrap.sh dev
	@scripts/release.sh

bench: ## What things cost, measured, as tables and JSON: tasks, RPC and threads, loads, and rollouts to test hosts (root)
	@scripts/bootstrap.sh dev
	@scripts/bench.sh

lab: ## Test hosts to try things on, with inventories/lab: master, worker1, worker2, outsider (root)
	@scripts/bootstrap.sh dev
	@scripts/lab.sh up

lab-down: ## Remove them
	@scripts/lab.sh down

clean: ## Remove .venv; the cache of downloads and builds is kept
	rm -rf .venv
	@echo "Kept: $(LLAMA_CPP_CLUSTER_CACHE) (downloads and builds; remove it by hand to free the space)"
