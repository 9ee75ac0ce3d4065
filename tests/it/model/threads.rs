//! One module used by many at once, and its running statistics.

use crate::model::{conv_net, spec};
use pstrain::layers::{BatchNorm2d, Dropout, Dropout2d, Layer, LayerOp};
use pstrain::model::{Mode, Module};
use tch::{Device, Kind, Tensor};

fn leaves(params: &[Tensor]) -> Vec<Tensor> {
    params.iter().map(|p| p.detach().set_requires_grad(true)).collect()
}

fn images(seed: u64, batch: i64, shape: &[i64]) -> Tensor {
    let size: Vec<i64> = std::iter::once(batch).chain(shape.iter().copied()).collect();
    pstrain::layers::rng::seeded(seed, || Tensor::randn(size, (Kind::Float, Device::Cpu)))
}

/// Output and gradients of one training forward and backward of the whole ConvNet.
fn pass(module: &Module, params: &[Tensor], seed: u64) -> Vec<Tensor> {
    let leaves = leaves(params);
    let y = module.forward(&leaves, &[images(seed, 4, &[1, 28, 28])], Mode::train(seed)).unwrap();
    let mut all = Tensor::run_backward(&[y.square().sum(Kind::Float)], &leaves, false, false);
    all.push(y.detach());
    all
}

#[test]
fn threads_that_share_a_module_get_what_they_would_get_alone() {
    let module = Module::build(&spec(&[1, 28, 28], conv_net()), &[Device::Cpu], 1).unwrap();
    let params = module.initial_parameters().unwrap();
    let alone: Vec<_> = (0..6).map(|seed| pass(&module, &params, seed)).collect();
    let copies: Vec<Vec<Tensor>> = (0..6).map(|_| params.iter().map(Tensor::copy).collect()).collect();
    let together: Vec<Vec<Tensor>> = std::thread::scope(|scope| {
        let threads: Vec<_> = copies
            .into_iter()
            .enumerate()
            .map(|(seed, params)| {
                let module = &module;
                scope.spawn(move || pass(module, &params, seed as u64))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (alone, together) in alone.iter().flatten().zip(together.iter().flatten()) {
        assert!(alone.equal(together), "a thread changed what another computed");
    }
}

fn normalised() -> Module {
    let norm = LayerOp::BatchNorm2d(BatchNorm2d {
        num_features: 3,
        eps: 1e-5,
        momentum: 0.1,
        affine: true,
        track_running_stats: true,
    });
    let layers = vec![Layer { name: "bn".into(), op: norm }];
    Module::build(&spec(&[3, 4, 4], layers), &[Device::Cpu], 1).unwrap()
}

#[test]
fn running_statistics_count_every_batch_of_every_thread() {
    let module = normalised();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let module = &module;
            scope.spawn(move || {
                let params = leaves(&module.initial_parameters().unwrap());
                for step in 0..25 {
                    let x = images(thread * 100 + step, 2, &[3, 4, 4]);
                    // Another thread's update comes between this forward and its backward.
                    let y = module.forward(&params, &[x], Mode::train(0)).unwrap();
                    let _ = Tensor::run_backward(&[y.square().sum(Kind::Float)], &params, false, false);
                }
            });
        }
    });
    let buffers = module.buffers().unwrap();
    assert_eq!(buffers[2].0, "bn.num_batches_tracked");
    assert_eq!(buffers[2].1.int64_value(&[]), 100);
    assert!(buffers[1].1.double_value(&[0]) > 0.5);
}

#[test]
fn one_value_per_channel_is_no_batch_to_normalise() {
    let module = normalised();
    let params = module.initial_parameters().unwrap();
    let x = || images(1, 1, &[3, 1, 1]);
    let error = module.forward(&params, &[x()], Mode::train(0)).unwrap_err().to_string();
    assert_eq!(
        error,
        "module `net`, layer `bn`, input of shape [1, 3, 1, 1]: invalid shape: batch normalisation trains on more than 1 value per channel\n  hint: set data.drop_last = true, or another train.batch_size"
    );
    assert!(module.forward(&params, &[x()], Mode::EVAL).is_ok());
    assert_eq!(module.buffers().unwrap()[2].1.int64_value(&[]), 0);
}

#[test]
fn dropout_draws_the_same_whatever_was_drawn_before() {
    for op in [LayerOp::Dropout(Dropout { p: 0.3 }), LayerOp::Dropout2d(Dropout2d { p: 0.3 })] {
        let layers =
            vec![Layer { name: "0".into(), op: op.clone() }, Layer { name: "1".into(), op: op.clone() }];
        let module = Module::build(&spec(&[64, 5, 5], layers), &[Device::Cpu], 1).unwrap();
        let x = Tensor::ones([32, 64, 5, 5], (Kind::Float, Device::Cpu));
        let run = |seed| module.forward(&[], &[x.shallow_clone()], Mode::train(seed)).unwrap();
        let first = run(7);
        let _ = Tensor::rand([100], (Kind::Float, Device::Cpu));
        assert!(first.equal(&run(7)));
        assert!(!first.equal(&run(8)));
        // Both layers dropped, each by a mask of its own: 0.7 * 0.7 are left, divided by as much.
        let kept = first.ne(0.0).to_kind(Kind::Float).mean(Kind::Float).double_value(&[]);
        assert!((kept - 0.49).abs() < 0.03, "{kept}");
        assert!((first.max().double_value(&[]) - 1.0 / 0.49).abs() < 1e-5);
        let channel = first.get(0).get(0);
        let whole = channel.eq_tensor(&channel.get(0).get(0)).all().int64_value(&[]) == 1;
        assert!(whole || op == LayerOp::Dropout(Dropout { p: 0.3 }), "channels are dropped whole");
    }
}
