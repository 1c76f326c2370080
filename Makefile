# Fulgur: the commands every contributor knows. `make help` lists them.
SHELL := /bin/bash
GO    ?= go
FUZZTIME ?= 10s
# -race needs a C compiler; RACE=1 makes its absence a failure.
CC_FOUND := $(shell command -v $$($(GO) env CC) 2>/dev/null)
RACEPKGS := ./internal/gateway/... ./internal/controller/... ./internal/cli/... ./internal/store/... ./internal/trainer/... ./internal/api/...
VERSION := $(shell git describe --tags --always --dirty 2>/dev/null)
LDFLAGS := -s -w -X github.com/fulgur-rl/fulgur/internal/cli.buildVersion=$(VERSION)

.PHONY: help
help: ## list the commands
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## build the one binary, bin/fulgur, static
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '$(LDFLAGS)' -o bin/fulgur ./cmd/fulgur

# Of one commit the same bytes: its time stands for all others.
IMAGE_REPOSITORY ?= localhost
.PHONY: image
image: ## container images of fulgur and of calc's agent, without Docker: OCI layouts and archives in bin/image
	SOURCE_DATE_EPOCH=$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || echo 0)} \
	  $(GO) run ./tools/image -out bin/image -repository '$(IMAGE_REPOSITORY)' -version '$(VERSION)'

.PHONY: demo
demo: ## a tool-using agent learns in minutes; a report opens
	$(GO) run ./cmd/fulgur demo

.PHONY: check
check: ## before a commit: format, vet, staticcheck, layout, short tests, generated files (under 2 minutes warm)
	@out=$$(gofmt -l $$(git ls-files '*.go')); test -z "$$out" || { echo "gofmt -w these files:"; echo "$$out"; exit 1; }
	$(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) run ./tools/kernelgen -check internal/engine/embedded/kernel
	$(GO) test -short ./...

.PHONY: test
test: ## everything that needs only Go (the README's test command)
	$(GO) test ./...
ifneq ($(CC_FOUND),)
	CGO_ENABLED=1 $(GO) test -race -short $(RACEPKGS)
else
	@test -z "$(RACE)" || { echo "RACE=1, and no C compiler was found for go test -race"; exit 1; }
	@echo "no C compiler: the -race pass was left out"
endif

.PHONY: test-long
test-long: ## fuzz targets 10 s each, kill tests, a short soak
	FULGUR_LONG=1 $(GO) test -run 'Long|Kill|Soak' -timeout 15m ./internal/...
	$(MAKE) test-templates
	$(MAKE) fuzz

# The templates are no part of this repository: they come with the source of a Python package, 77 MB, kept in the cache.
TEMPLATES := llama_cpp_python-0.3.36
.PHONY: test-templates
test-templates: ## chat templates of 23 models against what jinja2 made of them (fetches them with pip; left out where it can't)
	@cache="$${XDG_CACHE_HOME:-$$HOME/.cache}/fulgur"; mkdir -p "$$cache"; \
	if [ ! -d "$$cache/$(TEMPLATES)" ]; then \
	  tmp=$$(mktemp -d) && python3 -m pip download -q --no-deps --no-binary :all: -d "$$tmp" llama-cpp-python==0.3.36 && \
	  tar xzf "$$tmp"/*.tar.gz -C "$$tmp" --wildcards '*/vendor/llama.cpp/models/templates/*' && mv "$$tmp/$(TEMPLATES)" "$$cache/" ; rm -rf "$$tmp"; \
	fi; \
	if [ ! -d "$$cache/$(TEMPLATES)" ]; then echo "the templates can't be fetched (pip and a network are needed): left out"; exit 0; fi; \
	FULGUR_TEMPLATES="$$cache/$(TEMPLATES)" $(GO) test -count=1 -run GoldenTemplates ./internal/jinja ./internal/gateway/render

.PHONY: fuzz
fuzz: ## each fuzz target for FUZZTIME (10s)
	@# Go's fuzzer now and then fails at its own deadline, without an input: that is no finding.
	@set -e; for pkg in $$($(GO) list ./internal/...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$pkg 2>/dev/null | grep '^Fuzz' || true); do \
	    echo "== $$pkg $$f"; \
	    out=$$($(GO) test -run '^$$' -fuzz "^$$f$$" -fuzztime $(FUZZTIME) $$pkg 2>&1) || { echo "$$out"; \
	      if echo "$$out" | grep -q 'Failing input written' || ! echo "$$out" | grep -q 'context deadline exceeded'; then exit 1; fi; }; \
	    echo "$$out" | tail -1; done; done

.PHONY: test-browser
test-browser: ## the report in headless Chromium (installs it from Debian where it is missing)
	test/browser/run.sh

.PHONY: test-postgres
test-postgres: ## the store's suite on PostgreSQL (installs it from Debian where it is missing, runs one of its own)
	test/postgres/run.sh

.PHONY: test-sandbox
test-sandbox: ## agents in bubblewrap: probes that try to get out, limits, graders (installs it from Debian where it is missing)
	test/sandbox/run.sh

.PHONY: test-container
test-container: ## the container runner on Podman, with and without root, and on a Docker of its own (installs them from Debian where they are missing)
	test/container/run.sh

.PHONY: test-harness
test-harness: ## real SDKs, harnesses and agentlightning against fulgur, in a namespace without a network (HARNESS=all: the heavy ones too)
	test/harness/run.sh

.PHONY: test-kube
test-kube: ## the runner of Jobs on a real control plane (builds one, 13 to 20 minutes once; needs root; ARGS: to the tests)
	test/kube/run.sh $(ARGS)

.PHONY: test-kubelet
test-kubelet: ## Jobs and NetworkPolicies on a real kubelet and containerd (builds it after test-kube's, 2 minutes; needs root; ARGS: to the tests)
	test/kubelet/run.sh $(ARGS)

.PHONY: test-deploy
test-deploy: ## deploy/ on a real control plane: images are made, gateway and controller installed, calc trains (needs root)
	test/kube/run.sh --with "$(CURDIR)/test/deploy/run.sh" $(ARGS)

.PHONY: cross
cross: ## build for linux and darwin, amd64 and arm64
	@set -e; for t in linux/amd64 linux/arm64 darwin/amd64 darwin/arm64; do \
	  echo "== $$t"; CGO_ENABLED=0 GOOS=$${t%/*} GOARCH=$${t#*/} $(GO) build -o /dev/null ./cmd/fulgur; done

.PHONY: generate
generate: ## write the generated files anew (kernels)
	$(GO) run ./tools/kernelgen internal/engine/embedded/kernel

.PHONY: warmstart
warmstart: ## make examples/calc's data and model anew (10 to 20 minutes; the same bytes on the same kind of CPU)
	$(GO) run ./tools/warmstart

.PHONY: golden
golden: ## the tests against other implementations' numbers (FULGUR_GOLDEN: another folder of such data)
	set -o pipefail; $(GO) test -count=1 -run Golden -v ./internal/... | grep -E '^(=== RUN|---|\s+.*cases|ok|FAIL|PASS)'

.PHONY: bench
bench: ## speed: ratios, side by side (see bench/README.md)
	bench/run.sh
