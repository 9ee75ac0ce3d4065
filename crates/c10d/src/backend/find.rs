//! Which object a backend is in, and whether it fits: decisions, without a look at the world.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The folders where an object is looked for, in this order.
///
/// `PSTRAIN_BACKENDS` (`named`) alone where it is set. Else beside the program (`program`), in `backends/` there, and
/// where `make mpi` and `make nccl` put it (`built`, a folder of the source tree that the program was built in).
pub fn folders(named: Option<&OsStr>, program: Option<&Path>, built: &Path) -> Vec<PathBuf> {
    if let Some(named) = named.filter(|named| !named.is_empty()) {
        return vec![named.into()];
    }
    let beside = program.and_then(Path::parent);
    let beside = beside.into_iter().flat_map(|folder| [folder.to_path_buf(), folder.join("backends")]);
    beside.chain([built.to_path_buf()]).collect()
}

/// An implementation of MPI. They agree on the interface and not on the ABI, so each has its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    OpenMpi,
    Mpich,
}

impl Mpi {
    pub const ALL: [Self; 2] = [Self::OpenMpi, Self::Mpich];

    pub fn object(self) -> &'static str {
        match self {
            Self::OpenMpi => "libpstrain_mpi_openmpi.so",
            Self::Mpich => "libpstrain_mpi_mpich.so",
        }
    }
}

/// What is known of who started this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Launch<'a> {
    /// `PSTRAIN_MPI`: `openmpi` or `mpich`.
    pub named: Option<&'a str>,
    /// `OMPI_COMM_WORLD_RANK` is set: Open MPI's mpirun.
    pub open_mpi: bool,
    /// `PMI_RANK` is set: MPICH's mpirun, one of its descendants, or Slurm with `--mpi=pmi2`.
    pub pmi: bool,
    /// `PMIX_RANK` is set: Slurm with `--mpi=pmix`, for which Debian's Open MPI is built and its MPICH is not.
    pub pmix: bool,
}

/// Which MPI started this process; without a launcher the first that `is_here`, and Open MPI where none is.
///
/// # Errors
/// The name is none that is known.
pub fn which_mpi(launch: Launch<'_>, is_here: impl Fn(Mpi) -> bool) -> Result<Mpi, String> {
    match launch.named {
        Some("openmpi") => return Ok(Mpi::OpenMpi),
        Some("mpich") => return Ok(Mpi::Mpich),
        None | Some("") => {}
        Some(other) => return Err(format!("PSTRAIN_MPI is `{other}`\n  hint: use openmpi or mpich")),
    }
    // Open MPI first: a job started by its mpirun from within a Slurm job or another mpirun has the others' too.
    if launch.open_mpi {
        return Ok(Mpi::OpenMpi);
    }
    if launch.pmi {
        return Ok(Mpi::Mpich);
    }
    if launch.pmix {
        return Ok(Mpi::OpenMpi);
    }
    Ok(Mpi::ALL.into_iter().find(|&mpi| is_here(mpi)).unwrap_or(Mpi::OpenMpi))
}

/// What an object says of itself (`c10d_backend_built_for` in `backends/object.h`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BuiltFor {
    pub interface: u32,
    pub torch: String,
}

/// Reads it from the object's bytes, so that an object that does not fit need not be opened.
pub fn built_for(object: &[u8]) -> Option<BuiltFor> {
    const MARK: &[u8] = b"c10d-backend interface=";
    let start = object.windows(MARK.len()).position(|window| window == MARK)? + MARK.len();
    let text = object[start..].split(|&byte| byte == 0).next()?;
    let (interface, torch) = std::str::from_utf8(text).ok()?.split_once(" torch=")?;
    Some(BuiltFor { interface: interface.parse().ok()?, torch: torch.to_owned() })
}

/// Whether two ranks would use one GPU, which NCCL cannot: who had it first, by the rank that the store holds for it
/// after this rank asked for it.
pub fn who_has_the_gpu(held_by: &[u8], own: u32) -> Option<u32> {
    let holder = std::str::from_utf8(held_by).ok()?.parse().ok()?;
    (holder != own).then_some(holder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_folder_is_the_only_one() {
        let found = folders(Some("/b".as_ref()), Some("/bin/p".as_ref()), "/src/.deps/backends".as_ref());
        assert_eq!(found, [Path::new("/b")]);
    }

    #[test]
    fn beside_the_program_comes_before_where_it_was_built() {
        let found = folders(Some("".as_ref()), Some("/bin/p".as_ref()), "/src/.deps/backends".as_ref());
        assert_eq!(found, ["/bin", "/bin/backends", "/src/.deps/backends"].map(Path::new));
    }

    #[test]
    fn the_launcher_says_which_mpi() {
        let both = |_| true;
        let by = |launch| which_mpi(launch, both).unwrap();
        assert_eq!(by(Launch { open_mpi: true, pmix: true, ..Launch::default() }), Mpi::OpenMpi);
        assert_eq!(by(Launch { pmi: true, ..Launch::default() }), Mpi::Mpich);
        assert_eq!(by(Launch { pmix: true, ..Launch::default() }), Mpi::OpenMpi);
        assert_eq!(by(Launch { named: Some("mpich"), open_mpi: true, ..Launch::default() }), Mpi::Mpich);
    }

    #[test]
    fn without_a_launcher_the_mpi_that_is_here_is_taken() {
        assert_eq!(which_mpi(Launch::default(), |mpi| mpi == Mpi::Mpich), Ok(Mpi::Mpich));
        assert_eq!(which_mpi(Launch::default(), |_| false), Ok(Mpi::OpenMpi));
        let error = which_mpi(Launch { named: Some("lam"), ..Launch::default() }, |_| true).unwrap_err();
        assert_eq!(error, "PSTRAIN_MPI is `lam`\n  hint: use openmpi or mpich");
    }

    #[test]
    fn an_object_tells_its_torch_before_it_is_opened() {
        let bytes = b"\x7fELF..c10d-backend interface=1 torch=2.11.0\0more";
        assert_eq!(built_for(bytes), Some(BuiltFor { interface: 1, torch: "2.11.0".into() }));
        assert_eq!(built_for(b"\x7fELF.."), None);
        assert_eq!(built_for(b"c10d-backend interface=x torch=2\0"), None);
    }

    #[test]
    fn a_gpu_belongs_to_the_rank_that_asked_first() {
        assert_eq!(who_has_the_gpu(b"0", 0), None);
        assert_eq!(who_has_the_gpu(b"0", 1), Some(0));
    }
}
