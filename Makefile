# kvmesh: what a contributor runs. `make` alone lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help build test lint fmt demo bench fuzz checks conformance ci need-go need-race

GO_VERSION := $(shell sed -n 's/^go //p' go.mod)
GOLANGCI_LINT := go tool -modfile=internal/tools/go.mod golangci-lint
PKG ?= ./...
FUZZTIME ?= 10s
FUZZDIR ?= .

help: ## list the targets
	@sed -nE 's/^([a-z-]+):[^#]*## (.*)/\1  ## \2/p' $(MAKEFILE_LIST) | awk -F '  ## ' '{ printf "%-11s  ## %s\n", $$1, $$2 }'

build: need-go ## static binaries into bin/
	CGO_ENABLED=0 go build -trimpath -o bin/ ./cmd/...

test: need-race ## all tests, with the race detector and in random order (PKG=./mesh/... for one part)
	go test -race -shuffle=on -timeout 20m $(PKG)

lint: need-go ## tidy go.mod, go vet, golangci-lint (its first build takes about 80 s)
	go mod tidy -diff
	go vet ./...
	$(GOLANGCI_LINT) run ./...

fmt: need-go ## format with gofumpt and goimports, apply the modernizers of go fix
	$(GOLANGCI_LINT) fmt ./...
	go fix ./...

demo: build ## a mesh of four agents with simulated engines against round robin, on this machine
	bin/kvmesh demo

bench: need-go ## every benchmark (PKG=./cachestate/... for one part)
	go test -run '^$$' -bench . -benchmem $(PKG)

fuzz: need-go ## every Fuzz target for FUZZTIME (10s), below FUZZDIR (.)
	@grep -rnoE '^func Fuzz[A-Za-z0-9_]+' --include='*_test.go' --exclude-dir=sdk $(FUZZDIR) \
	  | sed -E 's|^(.*)/[^/]*:[0-9]+:func (.*)$$|\1 \2|' | sort -u | sed 's|^[^./]|./&|' \
	  | while read -r dir name; do \
	      echo "$$dir $$name"; \
	      go test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZTIME) "$$dir" </dev/null; \
	    done

checks: build ## every executable in deploy/checks: whole processes and real sockets
	@find deploy/checks -maxdepth 1 -type f -perm -u+x 2>/dev/null | sort | while read -r check; do \
	  echo "== $$check"; "$$check" </dev/null; \
	done

conformance: need-go ## the checks of residency on a real vLLM, which it installs (5 minutes, 7 GB); says what is missing
	@deploy/conformance/run

ci: ## what has to pass before a merge
	.ci/run

need-go:
	@command -v go >/dev/null || { \
	  echo 'kvmesh needs Go $(GO_VERSION) or newer and there is no go in PATH: see https://go.dev/dl/' >&2; exit 1; }
	@go list -m >/dev/null 2>&1 || { \
	  echo "kvmesh needs Go $(GO_VERSION) or newer and this is $$(GOTOOLCHAIN=local go env GOVERSION): GOTOOLCHAIN=auto lets go fetch it" >&2; \
	  exit 1; }

need-race: need-go
	@[ "$$(go env CGO_ENABLED)" = 1 ] || { \
	  echo 'make test needs cgo and a C compiler (gcc or clang) for go test -race: CGO_ENABLED is 0 or none was found' >&2; exit 1; }
	@cc=$$(go env CC); command -v "$${cc%% *}" >/dev/null || { \
	  echo "make test needs a C compiler for go test -race: $$cc not found" >&2; exit 1; }
