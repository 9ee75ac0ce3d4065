//! The one door to libtorch's generator, which belongs to the whole process.
//!
//! Whoever draws from it seeds it first and draws under the same lock, so nobody depends on what others drew before.
//! Code that draws often and can do without libtorch (dropout on the CPU) does not come here.

use std::sync::{Mutex, PoisonError};

/// Guards the generators of all devices. Held from the seeding to the last draw.
static GENERATOR: Mutex<()> = Mutex::new(());

/// Runs `draw` with libtorch's generators freshly seeded; nobody else draws meanwhile.
///
/// The same seed gives the numbers that PyTorch gives after `torch.manual_seed(seed)`. The CPU's generator uses the
/// seed's low 32 bits only.
pub fn seeded<T>(seed: u64, draw: impl FnOnce() -> T) -> T {
    // Each user seeds anew, so a panic of another leaves nothing behind that could harm.
    let _held = GENERATOR.lock().unwrap_or_else(PoisonError::into_inner);
    tch::manual_seed(seed.cast_signed());
    draw()
}
