# Two commands do all the set-up they need: `make run` and `make test`.
export OMP_WAIT_POLICY ?= passive
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)

.PHONY: run test setup build lint bench interop gpu-check mpi nccl test-mpi

run: build
	$(TARGET_DIR)/debug/pstrain spawn --world-size 4

test: build
	cargo test --workspace --quiet
	scripts/test-mpi --if-built
	scripts/test-plugins

build: setup
	cargo build --quiet

setup:
	@scripts/setup
	@scripts/build-plugins

lint: setup
	cargo fmt --all --check
	rustfmt --edition 2024 --check src/optimizers/*.rs # modules of a macro, which cargo fmt does not see
	cargo clippy --workspace --all-targets --quiet -- -D warnings
	RUSTDOCFLAGS="-D warnings -A rustdoc::private-intra-doc-links" cargo doc --workspace --no-deps --document-private-items --quiet
	cd plugins && cargo fmt --all --check
	cd plugins && cargo clippy --workspace --all-targets --quiet -- -D warnings

# All benchmarks, beside PyTorch's, in about 45 minutes; docs/performance.md gets the tables. DATA is a folder with MNIST's
# files: `target/debug/pstrain data fetch mnist` gets them. INTEROP_PYTHON may name a Python with PyTorch.
bench: build
	bench/all.py --data $(or $(DATA),data/mnist)

# Ranks in Rust and in Python in one group; sets up a Python with PyTorch once.
interop: build
	@scripts/setup-interop
	cargo build --quiet --package c10d --examples
	scripts/interop

# Needs a machine with a GPU, the built binary, and that machine's own torch 2.11.0.
gpu-check:
	scripts/gpu-check

# Backends that are loaded when a job asks for them; with them built, `make test` runs more.
mpi nccl: setup
	@scripts/setup-$@

# The crate's tests under the mpirun of each MPI that is built.
test-mpi: setup
	scripts/test-mpi
