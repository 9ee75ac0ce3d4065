//! The binary: everything is in the library.

/// Tensors are made and freed by the hundred in each step, on one thread and another. The `override` feature has libtorch
/// use it, too.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    pstrain::cli::main()
}
