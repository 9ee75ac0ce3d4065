# Two commands do all the set-up they need: `make run` and `make test`.
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

PREFIX ?= /usr/local

.PHONY: run test test-all setup setup-packages setup-libtorch setup-plugins build docs install wheel test-wheel deb lint lint-text lint-code lint-docs lint-plugins bench interop gpu-check mpi nccl test-mpi test-launchers test-exporters test-page

run: build
	$(TARGET_DIR)/debug/pstrain spawn --world-size 4

# Builds the program once more, with assertions (Cargo.toml). Unit tests compute little: not optimised they take as long, and are
# built in a fifth of the time. Tests run side by side: none of OpenMP's threads spins. Some only wait, so there is one more than
# cores.
test: export OMP_WAIT_POLICY ?= passive
test: export RUST_TEST_THREADS ?= 3
test: setup
	cargo test --workspace --lib --quiet --config profile.test.package.pstrain.opt-level=0
	cargo test --workspace --bins --test '*' --quiet
	cargo test --workspace --doc --quiet
	cargo test --manifest-path tests/schema/Cargo.toml --target-dir $(TARGET_DIR)/schema --quiet
	scripts/test-mpi --if-built
	scripts/test-plugins

# The slow statistics whole, of which `make test` runs a part, and what takes long; but for what needs PyTorch in Python (`interop`).
test-all: export TEST_ALL = 1
test-all: test
	cargo test --test it --quiet -- --ignored --skip in_python

build: setup
	cargo build --quiet

# One program, with its plug-ins and a data set inside. libtorch 2.11.0 is not installed: README.md says where the program
# looks for it.
install: setup
	cargo build --release --quiet --bin pstrain
	install -D -m 755 $(TARGET_DIR)/release/pstrain $(DESTDIR)$(PREFIX)/bin/pstrain
	scripts/install-docs $(TARGET_DIR)/release/pstrain $(DESTDIR)$(PREFIX)/share
	@echo "installed $(DESTDIR)$(PREFIX)/bin/pstrain; it looks for libtorch 2.11.0 in PSTRAIN_LIBTORCH, in the active" \
	  "Python environment, in $(or $(LIBTORCH),$(CURDIR)/.deps/libtorch), in $(PREFIX)/lib, and where python3 has torch"

# For a Python environment: dist/pstrain-*.whl, which brings torch with it.
wheel: setup
	@scripts/build-wheel

# What a new user does with it, in an empty environment; fetches torch (3 GB).
test-wheel: wheel
	scripts/test-wheel

# For Debian and its kin: target/debian/pstrain_*.deb.
deb: setup
	@scripts/build-deb

# With --jobs=2 libtorch is fetched while the plug-ins are built.
setup: setup-libtorch setup-plugins

setup-packages:
	@scripts/setup-packages

setup-libtorch: setup-packages
	@scripts/setup-libtorch

setup-plugins: setup-packages
	@scripts/build-plugins

lint: lint-text lint-code lint-docs lint-plugins

lint-text: setup
	cargo fmt --all --check
	rustfmt --edition 2024 --check src/optimizers/*.rs src/optimizers/schedule/*.rs src/layers/*.rs src/metrics/*.rs # modules of a macro, which cargo fmt does not see
	cargo fmt --manifest-path tests/schema/Cargo.toml --check
	cd plugins && cargo fmt --all --check
	scripts/deny

lint-code: setup
	cargo clippy --workspace --all-targets --quiet -- -D warnings

lint-docs: lint-code
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items --quiet

# Beside rustdoc, which has one thread.
lint-plugins: lint-code
	cd plugins && cargo clippy --workspace --all-targets --quiet -- -D warnings

# What is generated from the table of keys; a test says when it is stale.
docs: build
	$(TARGET_DIR)/debug/pstrain schema > docs/job.schema.json
	$(TARGET_DIR)/debug/pstrain schema --reference > docs/job.md

# All benchmarks, beside PyTorch's, in about an hour; docs/performance.md gets the tables. DATA is a folder with MNIST's
# files: `target/debug/pstrain data fetch mnist` gets them. INTEROP_PYTHON may name a Python with PyTorch.
bench: build
	bench/all.py --data $(or $(DATA),data/mnist)

# Ranks in Rust and in Python in one group, and saved weights in Python; sets up a Python with PyTorch once.
interop: build
	@scripts/setup-interop
	cargo build --quiet --package c10d --examples
	scripts/interop
	cargo test --quiet --test it -- --ignored in_python

# A run told to TensorBoard's own reader, Prometheus' promtool, OpenTelemetry's messages and a real MLflow server, which it fetches.
test-exporters: build
	@scripts/setup-exporters
	scripts/test-exporters

# The page of a run in a real Chromium, live and as a file: its console, its widths, its keyboard, a long run.
test-page: build
	scripts/test-page

# Needs a machine with a GPU, the built binary, and that machine's own torch 2.11.0.
gpu-check:
	scripts/gpu-check

# What `pstrain launch` writes, by a real Slurm, a real sshd, TorchX and published schemas; says what of these is missing.
test-launchers: build
	scripts/test-launchers

# Backends that are loaded when a job asks for them; with them built, `make test` runs more.
mpi nccl: setup
	@scripts/setup-$@

# The crate's tests under the mpirun of each MPI that is built.
test-mpi: setup
	scripts/test-mpi
