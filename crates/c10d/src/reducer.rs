//! Data-parallel training: every rank computes the gradients of its own part of a batch, and a [`Reducer`] averages
//! them over the ranks while the backward still runs.
//!
//! It is c10d's own Reducer, the engine of PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed:
//! Experiences on Accelerating Data Parallel Training", VLDB 2020), made and called as Python does it. So a rank may
//! be Rust's and another Python's.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use c10d::reducer::{Reducer, ReducerOptions};
//! use c10d::{Options, ProcessGroup, Store};
//! use tch::{Device, Kind, Tensor, nn, nn::Module, nn::OptimizerConfig};
//!
//! // One rank of one; usually there are several, each with its own part of the data.
//! let group = ProcessGroup::new(&Store::hash()?, 0, 1, Options::default())?;
//! let vars = nn::VarStore::new(Device::Cpu);
//! let model = nn::linear(vars.root(), 4, 2, Default::default());
//! let mut optimizer = nn::Sgd::default().build(&vars, 0.1)?;
//!
//! let mut reducer = Reducer::new(&vars.trainable_variables(), &[], &group, ReducerOptions::default())?;
//! for _ in 0..3 {
//!     let batch = Tensor::randn([8, 4], (Kind::Float, Device::Cpu));
//!     optimizer.zero_grad();
//!     reducer.before_forward()?;
//!     let loss = model.forward(&batch).square().mean(Kind::Float);
//!     reducer.backward(&loss)?;
//!     optimizer.step(); // the same on all ranks
//! }
//! # Ok(())
//! # }
//! ```
//!
//! # Order
//! A step is [`before_forward`](Reducer::before_forward), the forward, and one backward. All ranks do the same steps in
//! the same order. Meanwhile the group sends for the reducer: start nothing else in it from another thread, and no
//! other backward over these parameters either.

use std::ptr::{self, NonNull};

use tch::Tensor;

use crate::{Backend, Error, ProcessGroup, Result, shim};

mod ffi;
mod hooks;
mod options;
mod power_sgd;
mod setup;
mod stats;

pub use hooks::{Bucket, CommHook};
pub use options::{Hook, ReducerOptions};
pub use power_sgd::{PowerSgd, PowerSgdOptions};
pub use stats::ReducerStats;

use hooks::HookThread;
use setup::{Foreign, c_text, check, config, defined, foreign, names, paired};

/// Averages the gradients of one model over the ranks of a group. See the [module](self).
///
/// Dropping it takes its hooks off the parameters, at any time between backwards.
pub struct Reducer {
    ptr: NonNull<ffi::ReducerBox>,
    /// Dropped after `ptr`, which feeds it.
    hook: Option<HookThread>,
    group: ProcessGroup,
    n_parameters: usize,
    synchronise: bool,
    /// Why it cannot be used any more.
    broken: Option<String>,
}

// SAFETY: the C++ side belongs to no thread: what the engine's threads touch is behind its mutexes, and the rest is
// touched by whoever holds this value.
unsafe impl Send for Reducer {}

impl Reducer {
    /// Makes a reducer over `parameters`: leaves that require grad, in the same order on all ranks, each once. Every
    /// rank of `group` has to call it. When it comes back, parameters and `buffers` have the values of rank 0.
    ///
    /// # Errors
    /// A parameter is not a leaf, does not require grad or is there twice; the ranks' parameters differ in number, shape
    /// or dtype (then on all ranks, naming the first that does); an option cannot be; the group fails.
    pub fn new(
        parameters: &[Tensor],
        buffers: &[Tensor],
        group: &ProcessGroup,
        options: ReducerOptions,
    ) -> Result<Self> {
        let names = names(parameters, &options.names);
        check(parameters, buffers, &names)?;
        let config = config(&options)?;
        // Before any communication, so that a wrong option leaves no other rank waiting.
        let foreign = foreign(options.hook)?;
        let names = names.iter().map(|name| c_text(name)).collect::<Vec<_>>();
        let names: Vec<_> = names.iter().map(|name| name.as_ptr()).collect();
        let (list, more) = (shim::pointers(parameters), shim::pointers(buffers));
        let mut made = ptr::null_mut();
        // SAFETY: a group and tensors that are borrowed, of which C++ takes references of its own; one name for each
        // parameter, alive until after the call, which copies them.
        let returned = unsafe {
            ffi::shim_reducer_new(
                group.ptr(),
                list.as_ptr(),
                names.as_ptr(),
                list.len(),
                more.as_ptr(),
                more.len(),
                &config,
                &mut made,
            )
        };
        // SAFETY: just returned by a guarded function.
        unsafe { shim::check(returned) }.map_err(|error| group.explain("Reducer::new", &error))?;
        let mut reducer = Self {
            ptr: NonNull::new(made).expect("the shim gives a reducer or an error"),
            hook: None,
            group: group.clone(),
            n_parameters: parameters.len(),
            synchronise: true,
            broken: None,
        };
        reducer.register(foreign)?;
        Ok(reducer)
    }

    fn register(&mut self, hook: Foreign) -> Result<()> {
        let returned = match hook {
            Foreign::None => return Ok(()),
            // The others' all-reduce has its own ways with what is small.
            Foreign::Gather(_) if self.group.backend() != Backend::Gloo => return Ok(()),
            // SAFETY: a reducer that is alive and has no hook yet.
            Foreign::Cast(dtype) => unsafe { ffi::shim_reducer_hook_cast(self.ptr.as_ptr(), dtype) },
            Foreign::Gather(up_to_bytes) => {
                // SAFETY: as above.
                unsafe { ffi::shim_reducer_hook_gather(self.ptr.as_ptr(), up_to_bytes) }
            }
            Foreign::Rust(hook) => {
                // Every rank makes this group at this point.
                let own = self.group.twin("reducer hook")?;
                let (thread, foreign) = HookThread::start(hook, own)?;
                self.hook = Some(thread);
                // SAFETY: as above; the hook is valid until C++ calls its `drop`.
                unsafe { ffi::shim_reducer_hook_foreign(self.ptr.as_ptr(), foreign) }
            }
        };
        // SAFETY: just returned by a guarded function.
        Ok(unsafe { shim::check(returned) }?)
    }

    /// Before each forward. After the first backward it arranges the buckets in the order in which the gradients came;
    /// and it gives the buffers the values of rank 0.
    ///
    /// # Errors
    /// The backward before is not finished or has failed; the group fails.
    pub fn before_forward(&mut self) -> Result<()> {
        self.usable("Reducer::before_forward")?;
        // SAFETY: a reducer that is alive.
        let returned = unsafe { ffi::shim_reducer_before_forward(self.ptr.as_ptr(), self.synchronise) };
        self.checked("Reducer::before_forward", returned, false)
    }

    /// Before a backward that you run yourself: `loss.f_backward()`. `outputs` are what it will start from, which
    /// matters where parameters may stay unused. [`Reducer::backward`] does both, and tells at once which parameters
    /// got no gradient; here the next [`Reducer::before_forward`] only says that some did not.
    ///
    /// A rank whose outputs reach no parameter at all needs [`Reducer::backward`].
    ///
    /// # Errors
    /// A backward before has failed.
    pub fn before_backward(&mut self, outputs: &[Tensor]) -> Result<()> {
        self.usable("Reducer::before_backward")?;
        if !self.synchronise {
            return Ok(());
        }
        let list = shim::pointers(outputs);
        // SAFETY: a reducer that is alive, and tensors borrowed until after the call.
        let returned =
            unsafe { ffi::shim_reducer_before_backward(self.ptr.as_ptr(), list.as_ptr(), list.len()) };
        self.checked("Reducer::before_backward", returned, false)
    }

    /// The backward of a loss of one element. Each parameter's `.grad` becomes the average over the ranks of what it
    /// would be otherwise: what was in it counts too. So zero the gradients in between.
    ///
    /// # Errors
    /// As for [`Reducer::backward_from`].
    pub fn backward(&mut self, loss: &Tensor) -> Result<()> {
        let loss = std::slice::from_ref(loss);
        let seeds = [loss[0].f_ones_like()?];
        self.backward_from(loss, &seeds, false)
    }

    /// The backward of several outputs, each with the gradient it starts from, of its shape and dtype. It returns when
    /// the averages are there.
    ///
    /// # Errors
    /// A parameter got no gradient although none may stay unused: the other ranks wait for it, and this reducer is of
    /// no more use. The same after a peer was lost, or a communication hook failed. An error of the graph itself, as
    /// an output that does not require grad.
    pub fn backward_from(
        &mut self,
        outputs: &[Tensor],
        grad_outputs: &[Tensor],
        retain_graph: bool,
    ) -> Result<()> {
        self.usable("Reducer::backward")?;
        paired(outputs, grad_outputs)?;
        let (from, seeds) = (shim::pointers(outputs), shim::pointers(grad_outputs));
        let mut broken = false;
        // SAFETY: a reducer that is alive; as many seeds as outputs, borrowed until after the call.
        let returned = unsafe {
            ffi::shim_reducer_backward(
                self.ptr.as_ptr(),
                from.as_ptr(),
                seeds.as_ptr(),
                from.len(),
                retain_graph,
                self.synchronise,
                &mut broken,
            )
        };
        self.checked("Reducer::backward", returned, broken)
    }

    /// As [`engine::grad`](crate::engine::grad), with the averages over the ranks as the gradients of this reducer's
    /// parameters. It calls [`Reducer::before_backward`] itself. Nothing is written to `.grad`, and nothing is read
    /// from it.
    ///
    /// All parameters are averaged, also those that are not among the `inputs`; inputs that are no parameters get the
    /// gradients of this rank. The i-th result is `None` where input i has no gradient: no output depends on it, or,
    /// for a parameter, no rank used it. The averages are tensors of their own, except with
    /// [`gradient_as_bucket_view`](ReducerOptions::gradient_as_bucket_view): then they are the memory to which the
    /// next backward writes.
    ///
    /// While [`Reducer::no_sync`] lasts, the gradients of parameters wait in the reducer and their results are `None`;
    /// the next run that synchronises gives the averages of the sums.
    ///
    /// Where a rank has nothing to differentiate, but its peers have, it calls this too, with no outputs (and
    /// `find_unused_parameters`).
    ///
    /// # Errors
    /// As for [`Reducer::backward_from`] and [`engine::grad`](crate::engine::grad).
    pub fn grad(
        &mut self,
        outputs: &[Tensor],
        inputs: &[Tensor],
        grad_outputs: &[Tensor],
        retain_graph: bool,
    ) -> Result<Vec<Option<Tensor>>> {
        self.usable("Reducer::grad")?;
        paired(outputs, grad_outputs)?;
        defined(inputs)?;
        let (from, seeds) = (shim::pointers(outputs), shim::pointers(grad_outputs));
        let wanted = shim::pointers(inputs);
        let mut results = vec![ptr::null_mut(); wanted.len()];
        let mut broken = false;
        // SAFETY: a reducer that is alive; as many seeds as outputs and results as inputs; tensors that are borrowed
        // until after the call.
        let returned = unsafe {
            ffi::shim_reducer_grad(
                self.ptr.as_ptr(),
                from.as_ptr(),
                seeds.as_ptr(),
                from.len(),
                wanted.as_ptr(),
                wanted.len(),
                retain_graph,
                self.synchronise,
                &mut broken,
                results.as_mut_ptr(),
            )
        };
        // SAFETY: each pointer is null or a tensor made for us, taken once. Taken before the check, so that none leaks.
        let gradients = results.into_iter().map(|result| unsafe { shim::adopt(result) }).collect();
        self.checked("Reducer::grad", returned, broken)?;
        Ok(gradients)
    }

    /// Whether the next steps average; true at first. Change it between steps only, on all ranks alike.
    pub fn set_synchronise(&mut self, synchronise: bool) {
        self.synchronise = synchronise;
    }

    /// Lets `steps` run without averaging. Gradients add up on each rank, in `.grad` or, of [`Reducer::grad`], in the
    /// reducer, and the next step that synchronises averages their sums: a larger batch for one communication.
    pub fn no_sync<R>(&mut self, steps: impl FnOnce(&mut Self) -> R) -> R {
        let before = std::mem::replace(&mut self.synchronise, false);
        let result = steps(self);
        self.synchronise = before;
        result
    }

    /// Writes zeros to every parameter's `.grad` and leaves it where it is: with
    /// [`gradient_as_bucket_view`](ReducerOptions::gradient_as_bucket_view) in its bucket, where the next gradient then
    /// need not be copied to. (`Tensor::zero_grad` panics for such a view; an optimizer's drops it.)
    ///
    /// # Errors
    /// None that is known.
    pub fn zero_grad(&mut self) -> Result<()> {
        // SAFETY: a reducer that is alive.
        let returned = unsafe { ffi::shim_reducer_zero_grad(self.ptr.as_ptr()) };
        // SAFETY: just returned by a guarded function.
        Ok(unsafe { shim::check(returned) }?)
    }

    /// The ranks that it averages over.
    pub fn group(&self) -> &ProcessGroup {
        &self.group
    }

    fn usable(&self, operation: &'static str) -> Result<()> {
        let Some(why) = &self.broken else { return Ok(()) };
        Err(Error::Misuse {
            operation: self.group.operation(operation),
            reason: format!("an earlier backward of this reducer failed: {why}"),
            hint: "make a new group of the ranks that are left, and a new reducer",
        })
    }

    fn checked(
        &mut self,
        operation: &'static str,
        returned: *mut std::ffi::c_char,
        broken: bool,
    ) -> Result<()> {
        // SAFETY: just returned by a guarded function, passed on once.
        let Err(error) = (unsafe { shim::check(returned) }) else { return Ok(()) };
        // What the hook met says more than what became of it in the engine.
        let met = self.hook.as_ref().and_then(HookThread::failure);
        let error = met.unwrap_or_else(|| self.group.explain(operation, &error));
        if broken {
            self.broken = Some(error.to_string());
        }
        Err(error)
    }
}

impl Drop for Reducer {
    fn drop(&mut self) {
        // SAFETY: made by the shim, and dropped by nobody else.
        let returned = unsafe { ffi::shim_reducer_free(self.ptr.as_ptr()) };
        // SAFETY: just returned by a guarded function. Nobody is left to hear of a hook that was not there.
        let _ = unsafe { shim::check(returned) };
    }
}

impl std::fmt::Debug for Reducer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut shown = f.debug_struct("Reducer");
        shown.field("parameters", &self.n_parameters).field("group", &self.group);
        shown.field("synchronise", &self.synchronise).field("broken", &self.broken).finish_non_exhaustive()
    }
}
