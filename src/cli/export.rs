//! `pstrain export`: the model of a run as a file of Python. (Whom a run is told to is in `watch::export`.)

use super::args::{ExportArgs, ExportFormat};
use super::exit::{DONE, Failure};
use super::stdout;
use crate::runner::export::{Export, ExportError};

pub fn export(args: &ExportArgs) -> Result<u8, Failure> {
    let ExportArgs { run, to: ExportFormat::Python, out, which, force } = args;
    let written = Export { run, out: out.as_deref(), which: which.model(), force: *force }.write()?;
    let names: Vec<String> = written.iter().map(|path| path.display().to_string()).collect();
    let folder = written[0].parent().map_or_else(String::new, |folder| folder.display().to_string());
    stdout::line(format_args!(
        "wrote {}\n\n  cd {folder} && python3 -c 'import model; print(model.load())'",
        names.join(", ")
    ))?;
    Ok(DONE)
}

impl From<ExportError> for Failure {
    fn from(error: ExportError) -> Failure {
        match error {
            ExportError::Refused(told) => Failure::usage(told),
            ExportError::Job(errors) => errors.into(),
            ExportError::Failed(error) => error.into(),
        }
    }
}
