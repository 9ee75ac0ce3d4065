//! What a group sends with.
//!
//! Gloo is within libtorch. NCCL and MPI are shared objects (`backends/`), which [`object`] opens when a group wants
//! them, so that this crate needs neither; [`find`] decides which object, and whether it fits.

use std::ffi::{CString, c_char};
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::ptr::{self, NonNull};
use std::time::{Duration, Instant};

use crate::shim::group::{self as c, BackendBox};
use crate::store::millis;
use crate::{Result, Store, TorchError, cuda, shim};

mod find;
pub(crate) mod listening;
mod object;

use object::{Object, TORCH};

/// What a [`ProcessGroup`](crate::ProcessGroup) sends with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Backend {
    /// TCP, for CPU tensors. Within libtorch.
    #[default]
    Gloo,
    /// Nvidia's library, for CUDA tensors.
    Nccl,
    /// Whatever `mpirun` sends with.
    Mpi,
}

/// `c10::DeviceType`.
pub(crate) const CPU: i8 = 0;
pub(crate) const CUDA: i8 = 1;

impl Backend {
    /// The best there is: NCCL where there are a GPU and its object, else Gloo. Never MPI: it wants to be the launcher.
    pub fn auto() -> Self {
        let has_gpu = cuda::load().is_ok() && tch::Cuda::device_count() > 0;
        if has_gpu && Self::Nccl.available().is_ok() { Self::Nccl } else { Self::Gloo }
    }

    /// Whether groups can be made with it on this machine. Opens what it needs.
    ///
    /// # Errors
    /// Says what is missing, and how to get it.
    pub fn available(self) -> Result<(), NoBackend> {
        match self {
            Self::Gloo => Ok(()),
            Self::Mpi => Object::open(self).map(drop),
            Self::Nccl => {
                let object = Object::open(self)?;
                gpu_of(None, 0)?;
                object.new_backend().map(drop)
            }
        }
    }

    /// `c10d::ProcessGroup::BackendType`.
    pub(crate) fn to_c10d(self) -> u8 {
        match self {
            Self::Gloo => 1,
            Self::Nccl => 2,
            Self::Mpi => 4,
        }
    }

    /// The devices whose tensors it takes, the one first that names its part of the store, as in Python.
    pub(crate) fn devices(self) -> &'static [i8] {
        match self {
            Self::Gloo => &[CPU, CUDA],
            Self::Mpi => &[CPU],
            Self::Nccl => &[CUDA],
        }
    }

    /// The prefix of its keys in the group's part of the store.
    pub(crate) fn prefix(self) -> &'static str {
        if self.devices()[0] == CUDA { "cuda/" } else { "cpu/" }
    }
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Gloo => "gloo",
            Self::Nccl => "nccl",
            Self::Mpi => "mpi",
        })
    }
}

/// A backend that no group has yet.
pub(crate) struct Handle(NonNull<BackendBox>);

impl Handle {
    /// Valid as long as `self` is borrowed.
    pub fn ptr(&self) -> *const BackendBox {
        self.0.as_ptr()
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made by the shim and dropped by nobody else.
        unsafe { c::shim_backend_drop(self.0.as_ptr()) }
    }
}

/// Why there is no such backend in this process.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoBackend {
    #[error(
        "backend {backend}: no {object} in {}\n  hint: `make {backend}` builds it; PSTRAIN_BACKENDS names a folder that has it",
        folders(looked)
    )]
    NotFound { backend: Backend, object: &'static str, looked: Vec<PathBuf> },
    #[error("backend {backend}: {} was built for torch {built_for}, this is built for torch {TORCH}\n  hint: `make {backend}` builds it again", path.display())]
    OtherTorch { backend: Backend, path: PathBuf, built_for: String },
    #[error("backend {backend}: {} is not loaded: {why}\n  hint: {hint}", path.display())]
    Untrusted { backend: Backend, path: PathBuf, why: String, hint: String },
    #[error("backend {backend}: {} could not be loaded: {why}\n  hint: {}", path.display(), hint(*backend))]
    NotLoaded { backend: Backend, path: PathBuf, why: String },
    #[error(
        "backend {backend}: libtorch's CUDA half is not here: {why}\n  hint: it comes with `pip install torch=={TORCH}`, into a Python environment that is active or named by PSTRAIN_LIBTORCH"
    )]
    NoCuda { backend: Backend, why: String },
    #[error(
        "backend {backend}: {why}\n  hint: a machine with an NVIDIA GPU and its driver is wanted; `nvidia-smi` shows them; CUDA_VISIBLE_DEVICES may hide them"
    )]
    NoGpu { backend: Backend, why: String },
    #[error(
        "backend {backend}: rank {own} would use the GPU that rank {holder} has ({gpu}), and NCCL takes one rank for each GPU\n  hint: start at most as many ranks as there are GPUs, or use gloo"
    )]
    GpuTaken { backend: Backend, own: u32, holder: u32, gpu: String },
    #[error("backend {backend}: {why}")]
    Other { backend: Backend, why: String },
}

fn folders(looked: &[PathBuf]) -> String {
    looked.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn hint(backend: Backend) -> &'static str {
    match backend {
        Backend::Nccl => "`make nccl` builds it again",
        _ => "`make mpi` installs what it needs, and builds it again",
    }
}

/// What this process has to have before it can make a backend.
pub(crate) enum Source {
    BuiltIn,
    Mpi(Object),
    Nccl { object: Object, device: u32 },
}

impl Source {
    /// The CUDA device that the rank is to use, if it uses one.
    pub fn device(&self) -> Option<u32> {
        if let Self::Nccl { device, .. } = self { Some(*device) } else { None }
    }
}

/// Finds the backend, and makes sure that this rank may have it. `device` is the GPU it is to use.
pub(crate) fn prepare(backend: Backend, device: Option<u32>, store: &Store, rank: u32) -> Result<Source> {
    match backend {
        Backend::Gloo => Ok(Source::BuiltIn),
        Backend::Mpi => Ok(Source::Mpi(Object::open(backend)?)),
        Backend::Nccl => {
            let object = Object::open(backend)?;
            let device = gpu_of(device, rank)?;
            let gpu = object.device(device)?;
            // Whoever comes first has it. Nobody waits, because a Python rank would not say which it uses.
            let held_by = store.compare_set(&format!("gpu/{gpu}"), "", rank.to_string())?;
            match find::who_has_the_gpu(&held_by, rank) {
                Some(holder) => Err(NoBackend::GpuTaken { backend, own: rank, holder, gpu }.into()),
                None => Ok(Source::Nccl { object, device }),
            }
        }
    }
}

/// The CUDA device of a rank: the one it was given, or one after the other.
fn gpu_of(device: Option<u32>, rank: u32) -> Result<u32, NoBackend> {
    let count = u32::try_from(tch::Cuda::device_count()).unwrap_or(0);
    let no_gpu = |why| NoBackend::NoGpu { backend: Backend::Nccl, why };
    match device {
        _ if count == 0 => Err(no_gpu("CUDA sees no GPU".into())),
        Some(device) if device >= count => Err(no_gpu(format!("no GPU {device}: CUDA sees {count}"))),
        Some(device) => Ok(device),
        None => Ok(rank % count),
    }
}

/// Meets the other ranks over `store`, the group's, of which it takes its own part, within `join`; `timeout` is for the
/// operations.
pub(crate) fn make(
    source: &Source,
    (store, prefix): (&Store, &'static str),
    (rank, size): (u32, u32),
    (join, timeout): (Duration, Duration),
    host: Option<IpAddr>,
) -> Result<Handle, TorchError> {
    let (rank, size) = (rank as i32, size as i32);
    let (join, timeout) = (millis(join).max(1), millis(timeout).max(1));
    match source {
        Source::BuiltIn => {
            let host = host.map(|host| CString::new(host.to_string()).expect("an address has no NUL byte"));
            let host = host.as_ref().map_or(ptr::null(), |host| host.as_ptr());
            let prefix = CString::new(prefix).expect("a prefix has no NUL byte");
            let (prefix, announced) = (prefix.as_ptr(), listening::announced);
            // SAFETY: a store that is borrowed, of which the backend takes a reference of its own; `prefix`, and `host` if it
            // is not null, are strings that live until after the call; `announced` keeps what the shim asks of it.
            made(|out| unsafe {
                c::shim_backend_gloo(store.ptr(), prefix, rank, size, join, timeout, host, announced, out)
            })
        }
        Source::Mpi(object) | Source::Nccl { object, .. } => {
            let failed = |why: &dyn fmt::Display| TorchError { message: why.to_string() };
            let new = object.new_backend().map_err(|why| failed(&why))?;
            let store = store.prefix(prefix).map_err(|why| failed(&why))?;
            // SAFETY: as above; `new` is the function that the shim takes it for, because the object says that it has
            // the interface in which it is.
            made(|out| unsafe { c::shim_backend_of_object(new, store.ptr(), rank, size, join, timeout, out) })
        }
    }
}

/// Ends what backends hold for the whole process, as `MPI_Finalize` does, which a rank has to call before it ends well:
/// else mpirun takes its end for a failure. [`process::leave`](crate::process::leave) does it; so does a plain end of
/// the program. Waits for operations that still run, and in MPI for the other ranks.
///
/// False: it took longer than `limit`, or a failed operation never ended.
pub fn finalize(limit: Duration) -> bool {
    let start = Instant::now();
    // Counted, so that each gets its turn, also after one that did not end.
    let late = |object: &&Object| !object.finalize(limit.saturating_sub(start.elapsed()));
    Object::all().iter().filter(late).count() == 0
}

fn made(make: impl FnOnce(*mut *mut BackendBox) -> *mut c_char) -> Result<Handle, TorchError> {
    let mut ptr = std::ptr::null_mut();
    let returned = make(&mut ptr);
    // SAFETY: just returned by a guarded function, passed on once.
    unsafe { shim::check(returned) }?;
    Ok(Handle(NonNull::new(ptr).expect("the shim gives a backend or an error")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_object_says_where_it_was_looked_for_and_how_to_get_it() {
        let missing = NoBackend::NotFound {
            backend: Backend::Mpi,
            object: "libpstrain_mpi_mpich.so",
            looked: vec!["/a".into(), "/b/backends".into()],
        };
        assert_eq!(
            missing.to_string(),
            "backend mpi: no libpstrain_mpi_mpich.so in /a, /b/backends\n  \
             hint: `make mpi` builds it; PSTRAIN_BACKENDS names a folder that has it"
        );
    }

    #[test]
    fn two_ranks_on_one_gpu_are_refused_with_the_reason() {
        let taken = NoBackend::GpuTaken { backend: Backend::Nccl, own: 1, holder: 0, gpu: "GPU-1f".into() };
        assert_eq!(
            taken.to_string(),
            "backend nccl: rank 1 would use the GPU that rank 0 has (GPU-1f), and NCCL takes one rank for each GPU\n  \
             hint: start at most as many ranks as there are GPUs, or use gloo"
        );
    }

    #[test]
    fn an_object_for_another_torch_is_refused_before_it_is_opened() {
        let folder = std::env::temp_dir().join(format!("c10d-other-torch-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.join("libpstrain_mpi_mpich.so");
        std::fs::write(&path, b"..c10d-backend interface=1 torch=2.10.0\0..").unwrap();
        let error = object::check(Backend::Mpi, &path).unwrap_err().to_string();
        assert!(error.contains("was built for torch 2.10.0, this is built for torch 2.11.0"), "{error}");
        std::fs::write(&path, b"..").unwrap();
        let error = object::check(Backend::Mpi, &path).unwrap_err().to_string();
        assert!(error.contains("it is not a backend of c10d"), "{error}");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
