# Targets: test, e2e, faults, faults-slice, fuzz, soak, differential, vuln, docs, docs-check, lint, bench, growth, bench-packages, cover, ci.

STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.9.0
REPORT := build/conformance.jsonl
GUARANTEES := go run ./internal/cmd/guarantees -readme README.md -out docs/guarantees.md

# Programs are built in checkouts that git does not trust, too.
export GOFLAGS := $(GOFLAGS) -buildvcs=false

.PHONY: test e2e faults faults-slice fuzz soak differential vuln docs docs-check docs-compare fmt-check vet staticcheck lint bench growth bench-packages bench-once cover mod-check ci clean

# Every test against real servers, with the race detector, and a slice of the fault
# laboratory. A skipped test is a failure. V=1 prints a line for each test.
test:
	scripts/install-servers
	V=$(V) scripts/test all

# idemhttp with clients and routers that others wrote: a module of its own, so that
# users do not inherit them.
e2e:
	cd e2e && IDEM_REQUIRE_ALL=1 go test -race -count 1 ./...

# Ten thousand faults over every driver, in half an hour: docs/reliability.md. One
# driver: make faults FAULTS='-faults.driver redis -faults.seed 7 -faults.count 200'
FAULTS := -faults.count 10000
faults:
	scripts/install-servers
	cd internal/faults && IDEM_REQUIRE_ALL=1 go test -count 1 -v -timeout 90m -run 'TestFaults|TestVerbs|TestFailover|TestTorn' . $(FAULTS)

# Some of them, and what the laboratory says of drivers that are broken on purpose:
# the part of make test.
faults-slice:
	cd internal/faults && IDEM_REQUIRE_ALL=1 go test -race -count 1 ./...

# Every fuzz target, each for five minutes: make fuzz FUZZTIME=30s
FUZZTIME := 5m
fuzz:
	scripts/fuzz $(FUZZTIME)

# Claims, replays and a purge beside them on each driver, in a store of a million
# records: memory and goroutines stay flat. One driver: make soak SOAK=redis
SOAK := .
SOAK_KEYS := 1000000
SOAK_FOR := 3m
soak:
	scripts/install-servers
	IDEM_REQUIRE_ALL=1 go test -count 1 -v -timeout 3h -run 'TestSoak/$(SOAK)' ./internal/soak -soak.keys $(SOAK_KEYS) -soak.for $(SOAK_FOR)

# Many random sequences of verbs on all drivers; make test has some.
CHECKS := 5000
differential:
	scripts/install-servers
	IDEM_REQUIRE_ALL=1 go test -count 1 -timeout 3h ./internal/differential -rapid.checks $(CHECKS)

# Known vulnerabilities in what each module calls, tests included. It asks
# vuln.go.dev, or a copy: make vuln VULNDB=file:///srv/vulndb
VULNDB := https://vuln.go.dev
vuln:
	scripts/vuln $(GOVULNCHECK) $(VULNDB)

# Writes docs/guarantees.md and the table of README.md from what the conformance
# suite found.
docs:
	scripts/install-servers
	scripts/test conformance
	$(GUARANTEES) $(REPORT)

# Fails when these documents differ from what the suite finds now.
docs-check:
	scripts/install-servers
	scripts/test conformance
	$(MAKE) docs-compare

# The same, with the report that the last make test left.
docs-compare:
	$(GUARANTEES) -check $(REPORT)

fmt-check:
	@files=$$(gofmt -l .) && if [ -n "$$files" ]; then echo "not gofmted:"; echo "$$files"; exit 1; fi

# The modules beside the library's own.
MODULES := bench e2e internal/faults

vet:
	go vet ./...
	@for m in $(MODULES); do echo "go vet: $$m"; (cd $$m && go vet ./...) || exit 1; done

staticcheck:
	go run $(STATICCHECK) ./...
	@for m in $(MODULES); do echo "staticcheck: $$m"; (cd $$m && go run $(STATICCHECK) ./...) || exit 1; done

# golangci-lint runs too where it is installed.
lint: fmt-check vet staticcheck
	@if command -v golangci-lint >/dev/null; then golangci-lint run; else echo "golangci-lint is not installed: left out"; fi

# Measures idem beside floors, hand-written patterns and other libraries, and
# writes docs/performance.md and docs/performance.svg: make bench ROUNDS=3
ROUNDS := 15
bench:
	scripts/install-servers
	cd bench && IDEM_REQUIRE_ALL=1 go test -run '^TestTable$$' -count 1 -timeout 1h -v . -rounds $(ROUNDS) -slice 200ms -out ../docs

# Measures stores of ten thousand, a million and ten million keys, and what purging costs, and
# writes the tables of docs/scale.md: half an hour, 25 GB of disk, and 10 GB of memory for
# Redis. One store, smaller: make growth GROWTH='TestGrowth/sqlite' SIZES=10000,1000000
GROWTH := TestGrowth
SIZES := 10000,1000000,10000000
growth:
	scripts/install-servers
	cd bench && IDEM_REQUIRE_ALL=1 go test -run '^$(subst /,$$/^,$(GROWTH))$$' -count 1 -timeout 3h -v . -sizes $(SIZES) -rounds 9 -slice 500ms -growth ../docs/scale.md

# The Go benchmarks of the packages.
bench-packages:
	scripts/install-servers
	IDEM_REQUIRE_ALL=1 go test -p 1 -run '^$$' -bench . -benchmem ./...

# One pass of each benchmark: they still work. The figures mean nothing.
bench-once:
	IDEM_REQUIRE_ALL=1 go test -p 1 -run '^$$' -bench . -benchtime 1x ./...

cover:
	scripts/install-servers
	scripts/cover

mod-check:
	go mod tidy -diff
	go mod verify
	@for m in $(MODULES); do echo "go mod tidy -diff: $$m"; (cd $$m && go mod tidy -diff) || exit 1; done

ci:
	.ci/run

clean:
	rm -rf build
