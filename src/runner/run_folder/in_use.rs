//! Why a run may not use a folder.

use std::path::PathBuf;

use crate::job::Place;

/// Why a run may not use a folder.
#[derive(Debug, thiserror::Error)]
pub enum FolderInUse {
    #[error(
        "the run folder `{}` holds another run: {}\n  \
         hint: name another folder with --run-dir; --overwrite removes that run's files first",
        folder.display(), files.join(", ")
    )]
    HoldsRun { folder: PathBuf, files: Vec<String> },
    #[error("the run folder `{}` holds {what}\n  hint: name another folder with --run-dir", folder.display())]
    IsAnothers { folder: PathBuf, what: String },
    #[error(
        "the run in `{0}` has saved checkpoints itself, the last of which is `{last}`\n  \
         hint: --resume {0} goes on from that one; --run-dir names another folder",
        folder.display()
    )]
    HasSaved { folder: PathBuf, last: Place },
    #[error("a run is under way in `{}`\n  hint: name another folder with --run-dir", folder.display())]
    UnderWay { folder: PathBuf },
    #[error(
        "this run reads `{}`, and would overwrite it in its run folder `{}`\n  \
         hint: name another folder with --run-dir",
        file.display(), folder.display()
    )]
    Reads { folder: PathBuf, file: PathBuf },
}
