//! What a metric can be called: nothing that records have another meaning for.

use crate::config::Item;
use crate::layers;

/// Keys of records beside which figures stand, and which no figure can have for a name.
pub const RESERVED: [&str; 9] =
    ["kind", "step", "epoch", "rank", "samples", "targets", "loss", "best", "time_s"];

/// What the loss's own value is called in records.
const LOSS: &str = "loss";

/// As a job writes it. `None`: what is wrong has been reported.
pub(super) fn name(item: &Item<'_>) -> Option<String> {
    let name = item.text()?;
    (free(name, item) && layers::check_name(name, item)).then(|| name.into())
}

/// Do records call nothing else so?
pub(super) fn free(name: &str, item: &Item<'_>) -> bool {
    let taken = match name {
        LOSS => "is what records call the loss",
        name if RESERVED.contains(&name) => "is a key that each record has",
        _ => return true,
    };
    item.wrong(taken, "give it another name");
    false
}
