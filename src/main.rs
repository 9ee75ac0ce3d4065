fn main() -> std::process::ExitCode {
    pstrain::cli::main()
}
