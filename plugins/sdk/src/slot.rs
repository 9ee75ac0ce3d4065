//! What an instance of a plug-in holds between the host's calls: nothing, and from `open` on what its author made.

use crate::{Error, Result, config};
use serde::de::DeserializeOwned;
use std::cell::RefCell;

pub struct Slot<P>(RefCell<Option<P>>);

impl<P> Slot<P> {
    #[expect(clippy::new_without_default, reason = "made by the export macros only, in a constant")]
    pub const fn new() -> Self {
        Slot(RefCell::new(None))
    }

    /// Reads the configuration and fills the slot with what `make` makes of it, which also says what to tell the host.
    pub(crate) fn open<C: DeserializeOwned, T>(
        &self,
        json: &str,
        make: impl FnOnce(C) -> Result<(P, T)>,
    ) -> Result<T, String> {
        crate::panic::install_hook();
        let (made, told) = config::parse(json).and_then(make).map_err(error_text)?;
        *self.0.borrow_mut() = Some(made);
        Ok(told)
    }

    /// Runs the host's call `name` on what `open` made.
    pub(crate) fn call<T>(&self, name: &str, run: impl FnOnce(&mut P) -> Result<T>) -> Result<T, String> {
        let mut slot = self.0.borrow_mut();
        let held = slot.as_mut().ok_or_else(|| format!("`{name}` was called before `open`"))?;
        run(held).map_err(error_text)
    }
}

fn error_text(error: Error) -> String {
    format!("{error:#}")
}
