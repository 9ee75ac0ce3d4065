//! How a [`Reducer`](super::Reducer) works, with PyTorch's names and defaults.

use super::hooks::CommHook;
use super::power_sgd::PowerSgdOptions;

/// How a [`Reducer`](super::Reducer) works. All ranks must choose the same.
pub struct ReducerOptions {
    /// How many megabytes (2^20 bytes) of gradients are sent together. A larger bucket makes fewer messages, a smaller
    /// one starts earlier.
    pub bucket_cap_mb: f64,
    /// The same for the bucket that is sent first. PyTorch takes 1 where `bucket_cap_mb` is left alone, and otherwise
    /// `bucket_cap_mb`: do so too where a rank is PyTorch's.
    pub first_bucket_mb: f64,
    /// Allows a backward in which a rank leaves parameters without a gradient. Such a rank adds zeros to the average;
    /// a parameter that no rank used keeps no gradient. Costs a walk over the graph and a small all-reduce each time.
    pub find_unused_parameters: bool,
    /// Leaves the gradients in the buckets, where they were averaged, instead of copying them out: less memory and
    /// time. Gradients must then not be replaced in place by others; see [`Reducer::grad`](super::Reducer::grad).
    pub gradient_as_bucket_view: bool,
    /// Promises that every backward uses the same parameters the same number of times. The first one then only learns
    /// how often, and sends at its end; parameters may stay unused and may be used twice. It needs
    /// [`Reducer::backward`](super::Reducer::backward) or [`grad`](super::Reducer::grad).
    pub static_graph: bool,
    /// Gives all ranks the buffers of rank 0, at the start and before every forward that synchronises.
    pub broadcast_buffers: bool,
    /// Fills the buckets anew behind the first backward, in the order in which gradients came in it; until then one bucket
    /// has them all. Without it, the buckets have the last parameters' gradients first, from the first backward on: which
    /// numbers meet in a sum of three or more ranks, and so its last bits, are then the same in each step, also in a
    /// process that goes on with another's. Leave it on where a rank is PyTorch's, which would
    /// have other buckets.
    pub rebuild_buckets: bool,
    /// How a bucket becomes its average.
    pub hook: Hook,
    /// What the parameters are called in messages, in their order; may be empty.
    pub names: Vec<String>,
}

impl Default for ReducerOptions {
    /// PyTorch's own.
    fn default() -> Self {
        Self {
            bucket_cap_mb: 25.0,
            first_bucket_mb: 1.0,
            find_unused_parameters: false,
            gradient_as_bucket_view: false,
            static_graph: false,
            broadcast_buffers: true,
            rebuild_buckets: true,
            hook: Hook::None,
            names: Vec::new(),
        }
    }
}

/// How the gradients of a bucket become their average over the ranks.
#[derive(Default)]
pub enum Hook {
    /// By an all-reduce.
    #[default]
    None,
    /// By an all-reduce; but over Gloo, where the other ranks' buckets take together at most so many bytes, each rank
    /// sends its own to every other and adds them up itself, in the order of the ranks. Gloo's all-reduce sends a bucket
    /// in parts, round after round: where the bytes are few a round costs more than they do.
    Gather { up_to_bytes: u64 },
    /// By an all-reduce of their values in float16: half the bytes. Each is off by up to 2^-11 of itself for each
    /// sum, values beyond 65504 become infinite, and those under about 6e-8 become zero.
    Fp16,
    /// The same in bfloat16: off by up to 2^-8 of itself, with the range of float32.
    Bf16,
    /// By sums of matrices of low rank.
    PowerSgd(PowerSgdOptions),
    /// As you say.
    Custom(Box<dyn CommHook>),
}
