//! The calls that ranks make to one another about the run itself: a file for each service, with the name, the request and
//! the reply of each of its calls. Callers and callees share them.

pub(super) mod bench;
pub(super) mod checkpoint;
pub(super) mod collectives_demo;
pub(super) mod driver;
pub(super) mod flight;
pub(super) mod preflight;
pub(super) mod record;
pub(super) mod trace;
pub(super) mod validation;
