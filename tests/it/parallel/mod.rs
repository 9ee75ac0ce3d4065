//! Modules, tables and parameters on other ranks, over real meshes: against the same model in one process.

mod pull_push;
mod remote_module;
mod shards;
mod state;

use pstrain::parallel::{ModuleState, StateSnapshot};

/// What all owners of a module had.
fn collected(snapshots: &[StateSnapshot]) -> ModuleState {
    let mut state = ModuleState::default();
    for snapshot in snapshots {
        state.counters.merge(&snapshot.counters);
        for (at, entry) in snapshot.entries.iter().enumerate() {
            state.add(entry, entry.first(), snapshot.pieces(at)).unwrap();
        }
    }
    state.whole().unwrap()
}
