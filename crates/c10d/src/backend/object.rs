//! Opens the shared objects that hold NCCL and MPI (`backends/`), and calls them.

use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;
use std::{env, fs};

use super::find::{self, Launch, Mpi};
use super::{Backend, NoBackend};
use crate::{cuda, shim};

/// `backends/object.h` has the same number.
const INTERFACE: u32 = 1;

/// What an object has to be built for; checked by build.rs.
pub(super) const TORCH: &str = env!("C10D_TORCH_VERSION");

/// Where the scripts put the objects, in the source tree that this crate was built in.
const BUILT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../.deps/backends");

/// An open object; it is never closed, because threads of its own run in it.
#[derive(Clone, Debug)]
pub struct Object {
    pub backend: Backend,
    pub path: PathBuf,
    handle: Handle,
}

#[derive(Clone, Copy, Debug)]
struct Handle(*mut c_void);

// SAFETY: a handle of the loader, which any thread may use; it stays valid because the object is never closed.
unsafe impl Send for Handle {}

/// Those of this process. Written while one is opened.
static OPEN: Mutex<Vec<Object>> = Mutex::new(Vec::new());

impl Object {
    /// Opens the object of a backend; a second call gives the same.
    ///
    /// # Errors
    /// It is nowhere to be found, does not fit, or the loader does not take it.
    pub fn open(backend: Backend) -> Result<Self, NoBackend> {
        let mut open = OPEN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = open.iter().find(|object| object.backend == backend) {
            return Ok(known.clone());
        }
        let path = find(backend)?;
        // Before it is believed what it was built for, and long before it is loaded.
        let path = ownership::check_code(&path).map_err(|untrusted| NoBackend::Untrusted {
            backend,
            path,
            why: untrusted.to_string(),
            hint: untrusted.hint(),
        })?;
        check(backend, &path)?;
        if backend == Backend::Nccl {
            cuda::load().map_err(|no_cuda| NoBackend::NoCuda { backend, why: no_cuda.why })?;
        }
        let handle = shim::open_library(&path);
        let handle = handle.map_err(|why| NoBackend::NotLoaded { backend, path: path.clone(), why })?;
        let object = Self { backend, path, handle: Handle(handle) };
        open.push(object.clone());
        Ok(object)
    }

    /// Those that have been opened.
    pub fn all() -> Vec<Self> {
        OPEN.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Its `c10d_backend_new`, for the shim.
    pub fn new_backend(&self) -> Result<*mut c_void, NoBackend> {
        self.symbol(c"c10d_backend_new")
    }

    /// Which GPU CUDA's `device` is, in words that are the same in all processes.
    pub fn device(&self, device: u32) -> Result<String, NoBackend> {
        type Device = unsafe extern "C" fn(i32, *mut *mut c_char) -> *mut c_char;
        let symbol = self.symbol(c"c10d_backend_device")?;
        // SAFETY: `backends/object.h` declares this symbol so, and the interface's number was compared.
        let device_of = unsafe { std::mem::transmute::<*mut c_void, Device>(symbol) };
        let mut id = std::ptr::null_mut();
        // SAFETY: a pointer for the result, which is taken below, as is the message.
        let message = unsafe { device_of(device as i32, &mut id) };
        // SAFETY: null or a string for `free`, each taken once.
        let (message, id) = unsafe { (shim::take_text(message), shim::take_text(id)) };
        match (message, id) {
            (None, Some(id)) => Ok(id),
            (why, _) => Err(NoBackend::NoGpu {
                backend: self.backend,
                why: why.unwrap_or_else(|| format!("no device {device}")),
            }),
        }
    }

    /// Whether the object has let go of what it held for the process.
    pub fn finalize(&self, limit: Duration) -> bool {
        type Finalize = unsafe extern "C" fn(i64) -> bool;
        let Ok(symbol) = self.symbol(c"c10d_backend_finalize") else { return false };
        // SAFETY: as for the device.
        let finalize = unsafe { std::mem::transmute::<*mut c_void, Finalize>(symbol) };
        // SAFETY: takes any number.
        unsafe { finalize(i64::try_from(limit.as_millis()).unwrap_or(i64::MAX)) }
    }

    fn symbol(&self, name: &CStr) -> Result<*mut c_void, NoBackend> {
        // SAFETY: a handle of an object that is open, and a NUL-terminated name.
        let symbol = unsafe { libc::dlsym(self.handle.0, name.as_ptr()) };
        if symbol.is_null() {
            let why = format!("it has no {}", name.to_string_lossy());
            return Err(NoBackend::NotLoaded { backend: self.backend, path: self.path.clone(), why });
        }
        Ok(symbol)
    }
}

/// Where the object is.
pub fn find(backend: Backend) -> Result<PathBuf, NoBackend> {
    let program = env::current_exe().ok();
    let named = env::var_os("PSTRAIN_BACKENDS");
    let folders = find::folders(named.as_deref(), program.as_deref(), Path::new(BUILT));
    let at = |object: &str| folders.iter().map(|folder| folder.join(object)).find(|path| path.exists());
    let object = match backend {
        Backend::Gloo => return Err(NoBackend::Other { backend, why: "it is within libtorch".into() }),
        Backend::Nccl => "libpstrain_nccl.so",
        Backend::Mpi => {
            let named = env::var("PSTRAIN_MPI").ok();
            let is_set = |name| env::var_os(name).is_some();
            let launch = Launch {
                named: named.as_deref(),
                open_mpi: is_set("OMPI_COMM_WORLD_RANK"),
                pmi: is_set("PMI_RANK"),
                pmix: is_set("PMIX_RANK"),
            };
            let mpi = find::which_mpi(launch, |mpi: Mpi| at(mpi.object()).is_some());
            mpi.map_err(|why| NoBackend::Other { backend, why })?.object()
        }
    };
    at(object).ok_or(NoBackend::NotFound { backend, object, looked: folders })
}

/// That it was built for this torch, and for this version of the interface.
pub fn check(backend: Backend, path: &Path) -> Result<(), NoBackend> {
    let not_loaded = |why: String| NoBackend::NotLoaded { backend, path: path.into(), why };
    let bytes = fs::read(path).map_err(|error| not_loaded(error.to_string()))?;
    let built_for =
        find::built_for(&bytes).ok_or_else(|| not_loaded("it is not a backend of c10d".into()))?;
    if built_for.torch != TORCH {
        return Err(NoBackend::OtherTorch { backend, path: path.into(), built_for: built_for.torch });
    }
    if built_for.interface != INTERFACE {
        return Err(not_loaded(format!(
            "it has version {} of the interface, {INTERFACE} is wanted",
            built_for.interface
        )));
    }
    Ok(())
}
