//! What the RPC thread keeps, each table with its owner. Nothing in here sends or receives.

pub(super) mod barriers;
pub(super) mod calls;
pub(super) mod membership;
pub(super) mod pins;
pub(super) mod references;
pub(super) mod served;
pub(super) mod service;
pub(super) mod stands;
