//! Backends that may be missing: what they say where they are.

use c10d::{Backend, Error, Options, ProcessGroup, Store};

#[test]
fn gloo_is_always_there() {
    assert_eq!(Backend::Gloo.available(), Ok(()));
}

#[test]
fn auto_is_available_and_never_mpi_and_without_a_gpu_it_is_gloo() {
    let auto = Backend::auto();
    assert_eq!(auto.available(), Ok(()));
    assert_ne!(auto, Backend::Mpi);
    if !std::path::Path::new("/dev/nvidia0").exists() {
        assert_eq!(auto, Backend::Gloo);
    }
}

#[test]
fn a_backend_that_is_not_to_be_had_says_what_to_do() {
    for backend in [Backend::Nccl, Backend::Mpi] {
        let Err(missing) = backend.available() else { continue };
        let text = missing.to_string();
        assert!(text.starts_with(&format!("backend {backend}: ")), "{text}");
        assert!(text.contains("\n  hint: "), "{text}");
        let options = Options { backend, ..Options::default() };
        let error = ProcessGroup::new(&Store::hash().unwrap(), 0, 1, options).unwrap_err();
        assert!(matches!(&error, Error::NoBackend(same) if *same == missing), "{error}");
    }
}

/// MPI knows how many processes it started: here one, by nobody.
#[test]
#[ignore = "needs an MPI: `make test-mpi` runs it"]
fn mpi_without_mpirun_refuses_a_group_of_two() {
    let options = Options { backend: Backend::Mpi, ..Options::default() };
    let error = ProcessGroup::new(&Store::hash().unwrap(), 0, 2, options).unwrap_err().to_string();
    assert!(error.contains("a group of 2 ranks, but MPI knows 1 process"), "{error}");
    assert!(error.contains("mpirun -n 2"), "{error}");
}
