//! Activation recomputation: memory for time ("Training Deep Nets with Sublinear Memory Cost", Chen et al., 2016;
//! `torch.utils.checkpoint`).

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use tch::Tensor;

use crate::shim::{self, AtTensor, recompute::Forward};
use crate::{TorchError, engine};

/// What is computed twice.
type Run = Box<dyn Fn(&[Tensor]) -> Result<Tensor, TorchError> + Send + Sync>;

/// The output of `forward` over `inputs`. It is computed without a graph; the backward computes it again, on its own
/// thread, with copies of the inputs that share their memory, and then goes through that graph. So between the two only the
/// inputs are kept.
///
/// `forward` must compute the same each time, and gradients come to its `inputs` only, not to other tensors that it uses.
///
/// # Errors
/// What `forward` says; an input that is undefined. In a backward the same come as its errors.
pub fn recomputed(
    inputs: &[Tensor],
    forward: impl Fn(&[Tensor]) -> Result<Tensor, TorchError> + Send + Sync + 'static,
) -> Result<Tensor, TorchError> {
    engine::defined(&[inputs])?;
    let run: Box<Run> = Box::new(Box::new(forward));
    let forward = Forward { state: Box::into_raw(run).cast(), run: call, drop: end };
    let handles = shim::pointers(inputs);
    let mut output = ptr::null_mut();
    // SAFETY: tensors borrowed until after the call, which copies their handles; a state made for `call` and `end`, which
    // the shim takes over and ends once.
    let returned =
        unsafe { shim::recompute::shim_recomputed(handles.as_ptr(), handles.len(), forward, &mut output) };
    // SAFETY: null or a tensor made for us, taken once; a message just returned by a guarded function.
    let (output, failed) = unsafe { (shim::adopt(output), shim::check(returned)) };
    failed?;
    output.ok_or_else(|| TorchError { message: "a forward gave no tensor".into() })
}

/// # Safety
/// As `ShimForward::run` says; `state` comes from [`recomputed`].
unsafe extern "C" fn call(
    state: *mut c_void,
    inputs: *const *mut AtTensor,
    n_inputs: usize,
    reason: *mut c_char,
    capacity: usize,
) -> *mut AtTensor {
    // SAFETY: the caller's promise: a state that is alive, used by shared reference only, and `n_inputs` handles.
    let (run, handles) = unsafe { (&*state.cast::<Run>(), slice::from_raw_parts(inputs, n_inputs)) };
    // SAFETY: each is ours now.
    let inputs: Vec<Tensor> = handles.iter().filter_map(|&handle| unsafe { shim::adopt(handle) }).collect();
    // A panic may not cross into C++.
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&inputs)));
    let message = match outcome {
        Ok(Ok(output)) => return shim::release(output),
        Ok(Err(error)) => error.message,
        Err(_) => "the forward panicked".into(),
    };
    // SAFETY: the caller's promise: room for `capacity` bytes, all zero.
    unsafe { shim::write_reason(&message, reason, capacity) };
    ptr::null_mut()
}

/// # Safety
/// `state` comes from [`recomputed`] and is used no more.
unsafe extern "C" fn end(state: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(state.cast::<Run>()) });
}

#[cfg(test)]
mod tests {
    use tch::{Device, Kind};

    use super::*;

    fn leaf(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    fn product(inputs: &[Tensor]) -> Result<Tensor, TorchError> {
        let hidden = inputs[0].f_mul(&inputs[1]).and_then(|product| product.f_tanh());
        hidden.map_err(|error| TorchError { message: crate::torch_message(&error) })
    }

    #[test]
    fn gradients_are_those_of_the_forward_that_keeps_its_activations() {
        let (x, w) = (leaf(&[1.0, 2.0, 3.0]), leaf(&[0.5, -0.5, 0.1]));
        let gradients = |y: Tensor| {
            let seed = Tensor::ones([3], (Kind::Float, Device::Cpu)) * 2.0;
            engine::grad(&[y], &[x.shallow_clone(), w.shallow_clone()], &[seed], false).unwrap()
        };
        let inputs = [x.shallow_clone(), w.shallow_clone()];
        let kept = gradients(product(&inputs).unwrap());
        let again = gradients(recomputed(&inputs, product).unwrap());
        for (kept, again) in kept.iter().zip(&again) {
            assert_eq!(kept.as_ref().unwrap(), again.as_ref().unwrap());
        }
    }

    #[test]
    fn the_forward_runs_once_for_the_output_and_once_for_each_backward() {
        use std::sync::Arc;
        use std::sync::atomic::{AtomicU32, Ordering};

        let runs = Arc::new(AtomicU32::new(0));
        let counted = runs.clone();
        let x = leaf(&[1.0]);
        let y = recomputed(&[x.shallow_clone()], move |inputs| {
            counted.fetch_add(1, Ordering::Relaxed);
            Ok(&inputs[0] * 3.0)
        })
        .unwrap();
        assert_eq!(runs.load(Ordering::Relaxed), 1);
        let seed = || Tensor::from_slice(&[1f32]);
        let gradient = |retain| engine::grad(&[y.shallow_clone()], &[x.shallow_clone()], &[seed()], retain);
        assert_eq!(gradient(true).unwrap()[0].as_ref().unwrap().double_value(&[0]), 3.0);
        assert!(gradient(false).is_ok());
        assert_eq!(runs.load(Ordering::Relaxed), 3);
        assert!(gradient(false).unwrap_err().message.contains("was freed by a backward before"));
        drop(y);
        assert_eq!(Arc::strong_count(&runs), 1, "what it used is freed with the graph");
    }

    #[test]
    fn an_error_of_the_second_forward_is_the_backwards() {
        use std::sync::atomic::{AtomicBool, Ordering};

        let first = AtomicBool::new(true);
        let x = leaf(&[1.0]);
        let y = recomputed(&[x.shallow_clone()], move |inputs| match first.swap(false, Ordering::Relaxed) {
            true => Ok(&inputs[0] * 3.0),
            false => Err(TorchError { message: "no more".into() }),
        });
        let error = engine::grad(&[y.unwrap()], &[x], &[Tensor::from_slice(&[1f32])], false).unwrap_err();
        assert!(error.message.contains("no more"), "{error}");
    }

    #[test]
    fn nothing_is_kept_where_nothing_requires_a_gradient() {
        let y = recomputed(&[Tensor::from_slice(&[1f32])], |inputs| Ok(&inputs[0] * 3.0)).unwrap();
        assert!(!y.requires_grad());
    }
}
