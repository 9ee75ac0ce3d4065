//! Operations with a backward of their own (`torch.autograd.Function`).

use std::ffi::{c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::{ptr, slice};

use tch::Tensor;

use crate::shim::{self, AtTensor, Backward};
use crate::{TorchError, engine};

/// From the gradient of the output, and what was kept, to those of the inputs.
type Run = Box<dyn Fn(&Tensor, &[Tensor]) -> Result<Vec<Tensor>, TorchError> + Send + Sync>;

/// `output`, which was computed of `inputs` without a graph, in one: `backward` gets the output's gradient and `kept`, which are
/// inputs, and gives a gradient for each input, of its shape and dtype.
///
/// # Errors
/// A tensor that is undefined. In a backward: what `backward` says, and that something kept was written to meanwhile.
pub fn with_backward(
    inputs: &[Tensor],
    kept: &[Tensor],
    output: &Tensor,
    backward: impl Fn(&Tensor, &[Tensor]) -> Result<Vec<Tensor>, TorchError> + Send + Sync + 'static,
) -> Result<Tensor, TorchError> {
    engine::defined(&[inputs, kept, slice::from_ref(output)])?;
    let run: Box<Run> = Box::new(Box::new(backward));
    let backward = Backward { state: Box::into_raw(run).cast(), run: call, drop: end };
    let (from, saved) = (shim::pointers(inputs), shim::pointers(kept));
    let mut result = ptr::null_mut();
    // SAFETY: tensors borrowed until after the call, which copies their handles; a state made for `call` and `end`, which
    // the shim takes over and ends once.
    let returned = unsafe {
        shim::shim_with_backward(
            from.as_ptr(),
            from.len(),
            saved.as_ptr(),
            saved.len(),
            shim::pointer(output),
            backward,
            &mut result,
        )
    };
    // SAFETY: null or a tensor made for us, taken once; a message just returned by a guarded function.
    let (result, failed) = unsafe { (shim::adopt(result), shim::check(returned)) };
    failed?;
    Ok(result.expect("the shim gives a tensor or an error"))
}

/// # Safety
/// As `ShimBackward::run` says; `state` comes from [`with_backward`].
unsafe extern "C" fn call(
    state: *mut c_void,
    given: *const *mut AtTensor,
    n_given: usize,
    results: *mut *mut AtTensor,
    n_results: usize,
    reason: *mut c_char,
    capacity: usize,
) -> bool {
    // SAFETY: the caller's promise: a state that is alive, used by shared reference only, and `n_given` handles.
    let (run, handles) = unsafe { (&*state.cast::<Run>(), slice::from_raw_parts(given, n_given)) };
    // SAFETY: each is ours now.
    let given: Vec<Tensor> = handles.iter().filter_map(|&handle| unsafe { shim::adopt(handle) }).collect();
    // A panic may not cross into C++.
    let outcome = catch_unwind(AssertUnwindSafe(|| run(&given[0], &given[1..])));
    let message = match outcome {
        Ok(Ok(made)) if made.len() == n_results => {
            // SAFETY: the caller's promise: room for so many.
            let results = unsafe { slice::from_raw_parts_mut(results, n_results) };
            results.iter_mut().zip(made).for_each(|(result, made)| *result = shim::release(made));
            return true;
        }
        Ok(Ok(made)) => format!("a backward gave {} gradients for {n_results} inputs", made.len()),
        Ok(Err(error)) => error.message,
        Err(_) => "the backward panicked".into(),
    };
    // SAFETY: the caller's promise: room for `capacity` bytes, all zero.
    unsafe { shim::write_reason(&message, reason, capacity) };
    false
}

/// # Safety
/// `state` comes from [`with_backward`] and is used no more.
unsafe extern "C" fn end(state: *mut c_void) {
    // SAFETY: the caller's promise.
    drop(unsafe { Box::from_raw(state.cast::<Run>()) });
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn leaf(values: &[f32]) -> Tensor {
        Tensor::from_slice(values).set_requires_grad(true)
    }

    /// x * y, as if it were 10 x + y.
    fn odd_product(x: &Tensor, y: &Tensor) -> Tensor {
        let output = tch::no_grad(|| x * y);
        let backward = |gradient: &Tensor, kept: &[Tensor]| {
            assert_eq!(kept.len(), 1);
            Ok(vec![gradient * 10.0, gradient.shallow_clone()])
        };
        let inputs = [x.shallow_clone(), y.shallow_clone()];
        with_backward(&inputs, &inputs[..1], &output, backward).unwrap()
    }

    fn gradients(output: Tensor, inputs: &[&Tensor]) -> Result<Vec<Vec<f32>>, TorchError> {
        let inputs: Vec<Tensor> = inputs.iter().map(|input| input.shallow_clone()).collect();
        let found = engine::grad(&[output.sum(tch::Kind::Float)], &inputs, &[Tensor::from(1f32)], false)?;
        Ok(found.into_iter().map(|gradient| Vec::try_from(gradient.unwrap()).unwrap()).collect())
    }

    #[test]
    fn the_backward_is_the_callers() {
        let (x, y) = (leaf(&[1.0, 2.0]), leaf(&[3.0, 4.0]));
        let output = odd_product(&(&x * 2.0), &y);
        assert_eq!(Vec::<f32>::try_from(&output.detach()).unwrap(), [6.0, 16.0]);
        assert_eq!(gradients(output, &[&x, &y]).unwrap(), [[20.0, 20.0], [1.0, 1.0]]);
    }

    #[test]
    fn nothing_is_recorded_where_no_gradient_is_wanted() {
        let x = Tensor::from_slice(&[1.0f32]);
        assert!(!odd_product(&x, &x).requires_grad());
        let w = leaf(&[1.0]);
        assert!(!tch::no_grad(|| odd_product(&w, &w)).requires_grad());
    }

    #[test]
    fn what_was_written_to_is_not_used_and_what_was_freed_neither() {
        let (x, y) = (leaf(&[1.0]), leaf(&[3.0]));
        let mut hidden = &x * 2.0;
        let output = odd_product(&hidden, &y);
        let _ = hidden.f_add_scalar_(1.0).unwrap();
        let error = gradients(output, &[&y]).unwrap_err().message;
        assert!(error.contains("modified by an inplace operation"), "{error}");
        let twice = odd_product(&x, &y);
        gradients(twice.shallow_clone(), &[&y]).unwrap();
        let error = gradients(twice, &[&y]).unwrap_err().message;
        assert!(error.contains("retain_graph = true"), "{error}");
    }

    #[test]
    fn a_backward_that_fails_says_why_and_is_dropped() {
        let held = Arc::new(());
        let x = leaf(&[1.0]);
        for panics in [false, true] {
            let of_backward = held.clone();
            let backward = move |_: &Tensor, _: &[Tensor]| {
                let _held = &of_backward;
                assert!(!panics, "as it is told");
                Err(TorchError { message: "not today".into() })
            };
            let output =
                with_backward(&[x.shallow_clone()], &[], &Tensor::from_slice(&[1f32]), backward).unwrap();
            let error = gradients(output, &[&x]).unwrap_err().message;
            assert_eq!(error, if panics { "the backward panicked" } else { "not today" });
        }
        assert_eq!(Arc::strong_count(&held), 1);
    }
}
