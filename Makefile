# Targets are described in docs/testing.md. Nothing here needs root or hardware.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := build
# One build for programs and tests, without a C compiler; only race needs one.
export CGO_ENABLED := 0

GO       ?= go
GOTEST    = $(GO) run ./tools/gotest
# What runs under the race detector: everything that has goroutines of its own. The
# longest is first, so that the others run beside it.
RACEPKGS  = ./store/... ./meta/... ./driver/... ./gpu/... ./internal/... ./alloc/...
# The size of the demo's workload; make demo DEMO_SIZE=256MiB for a small disk.
DEMO_SIZE ?= 1GiB

.PHONY: build ugdsctl demo test crash race fuzz counts bench lint soak lab lab-full lab-kasan kmod

## build: programs into bin/, and everything once more for arm64
build: ugdsctl
	$(GO) build ./...
	GOARCH=arm64 $(GO) build ./...

ugdsctl:
	$(GO) build -o bin/ ./cmd/...

## demo: a gigabyte in, closed, read back in a new process, every byte compared
demo: ugdsctl
	bin/ugdsctl demo --size $(DEMO_SIZE)

## test: every test, the crash laboratory in its short form
test:
	$(GOTEST) -timeout 10m ./...

## crash: the crash laboratory in full, and every safeguard of the store switched off once
crash:
	@code=0; \
	$(GOTEST) -v -timeout 20m ./store/crashtest -full || code=1; \
	$(GOTEST) -v -timeout 20m -tags ugds_mutants -run 'Mutant' ./store/crashtest || code=1; \
	exit $$code

## race: the same tests under the race detector, which needs a C compiler
race:
	@if ! command -v $$($(GO) env CC) >/dev/null; then \
	  echo "SKIP-COUNTED: race: no C compiler"; echo "0 passed, 0 failed, 1 skipped"; \
	  [[ "$${UGDS_NO_SKIP:-0}" != 1 ]]; exit; \
	fi; \
	export CGO_ENABLED=1 GORACE=atexit_sleep_ms=50; code=0; \
	$(GOTEST) -race -timeout 15m $$($(GO) list $(RACEPKGS) | grep -v /store/crashtest) || code=1; \
	$(GOTEST) -race -v -timeout 15m ./store/crashtest || code=1; \
	exit $$code

## fuzz: every fuzz target in four minutes, those of the driver for 30 s each
fuzz:
	@code=0; \
	$(GOTEST) -fuzz-each 30s ./driver/nvme ./driver/ctrl || code=1; \
	$(GOTEST) -fuzz-for 28s $$($(GO) list ./... | grep -v -e /driver/nvme -e /driver/ctrl) || code=1; \
	exit $$code

## counts: what an I/O costs the NVMe driver, counted exactly, the fault campaign in full, and each safeguard switched off once
counts:
	@code=0; \
	$(GOTEST) -v -timeout 5m ./tools/cref -counts || code=1; \
	$(GOTEST) -v -timeout 5m -run 'I09' ./driver/ctrl || code=1; \
	$(GOTEST) -v -timeout 10m -run 'FaultCampaign' ./driver/ctrl -campaign 1000000 || code=1; \
	$(GOTEST) -v -timeout 10m -run 'Mutant' ./driver/ctrl -mutants || code=1; \
	exit $$code

## lint: vet for both machines and both builds, staticcheck, the repository's own rules
lint:
	$(GO) vet ./...
	$(GO) vet -tags ugds_mutants ./...
	$(GO) vet -tags 'nogpu ugds_lab' ./...
	GOARCH=arm64 $(GO) vet ./...
	$(GO) tool staticcheck ./...
	$(GO) test -count=1 ./tools/lint

## bench: the promises on speed, each contestant in ten processes, and a page with plots
bench: ugdsctl
	bin/ugdsctl bench --suite gates --rounds 10 --html bench.html --force

## lab: the drivers on QEMU's controllers, a real kernel and a real IOMMU
lab:
	$(GO) run ./tools/lab -jobs 2

## lab-full: the same, and what takes minutes, with a cover profile
lab-full:
	@mkdir -p bin
	$(GO) run ./tools/lab -full -jobs 2 -cover bin/lab.cover $(if $(TRACE),-trace $(TRACE))

## lab-kasan: the kernel module, and VFIO by iommufd, under a kernel with KASAN and lockdep, which it builds from source the first time
lab-kasan:
	$(GO) run ./tools/lab -kasan

## soak: the long forms, for a night; each run has seeds of its own
soak:
	$(GOTEST) -v -timeout 12h ./store/crashtest -full -soak 5h -seed $$(date +%s)
	$(GOTEST) -v -timeout 2h ./driver/file -run Kill -kill-rounds 200
	$(GOTEST) -v -timeout 4h ./store -long -register 1h
	$(GOTEST) -v -timeout 2h ./meta -long
	$(GOTEST) -fuzz-each 10m ./...

## kmod: the kernel module into bin/kmod; KDIR=… for other headers than the running kernel's
kmod:
	mkdir -p bin/kmod
	cp -r kmod/. bin/kmod
	$(MAKE) -C bin/kmod modules
