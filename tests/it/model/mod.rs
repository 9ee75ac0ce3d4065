//! Modules and optimizers, and what their tests share.

mod export;
mod layers;
mod optimizers;
mod safetensors;
mod script;
mod threads;

use std::path::PathBuf;

use pstrain::job::shards::RowLife;
use pstrain::job::{Devices, MadeOf, ModuleSpec, Source};
use pstrain::layers::{
    Conv2d, Dropout, Dropout2d, Flatten, InputDtype, Layer, LayerOp, Linear, LogSoftmax, MaxPool2d, Relu,
    Signal,
};
use pstrain::topology::{Rank, Role};
use tch::{Kind, Tensor};

/// A module called `net` on one device.
pub fn spec(input: &[i64], layers: Vec<Layer>) -> ModuleSpec {
    ModuleSpec {
        name: "net".into(),
        stage: None,
        place: Role { name: "server".into(), ranks: vec![Rank(0)] },
        placement: pstrain::job::Placement::Remote,
        devices: Devices::One,
        sources: vec![Source::Field(0)],
        inputs: vec![Signal::new(input, InputDtype::Float32)],
        made_of: MadeOf::Layers(layers),
        weights: None,
        freeze: Vec::new(),
        recompute: false,
        autocast: None,
        row_life: RowLife::FOR_EVER,
    }
}

/// Layers named as in `torch.nn.Sequential`.
pub fn sequential(ops: Vec<LayerOp>) -> Vec<Layer> {
    ops.into_iter().enumerate().map(|(at, op)| Layer { name: at.to_string(), op }).collect()
}

pub fn conv2d(in_channels: i64, out_channels: i64, kernel: i64) -> LayerOp {
    LayerOp::Conv2d(Conv2d {
        in_channels,
        out_channels,
        kernel_size: [kernel; 2],
        stride: [1; 2],
        padding: [0; 2],
        dilation: [1; 2],
        groups: 1,
        bias: true,
    })
}

pub fn linear(in_features: i64, out_features: i64) -> LayerOp {
    LayerOp::Linear(Linear { in_features, out_features, bias: true })
}

/// The tutorial's network for 28 by 28 images.
pub fn conv_net() -> Vec<Layer> {
    let pool = LayerOp::MaxPool2d(MaxPool2d {
        kernel_size: [2; 2],
        stride: None,
        padding: [0; 2],
        dilation: [1; 2],
        ceil_mode: false,
    });
    let named = |(name, op): (&str, LayerOp)| Layer { name: name.into(), op };
    [
        ("conv1", conv2d(1, 32, 3)),
        ("relu1", LayerOp::Relu(Relu {})),
        ("conv2", conv2d(32, 64, 3)),
        ("relu2", LayerOp::Relu(Relu {})),
        ("pool", pool),
        ("dropout1", LayerOp::Dropout2d(Dropout2d { p: 0.25 })),
        ("flatten", LayerOp::Flatten(Flatten { start_dim: 1, end_dim: -1 })),
        ("fc1", linear(9216, 128)),
        ("relu3", LayerOp::Relu(Relu {})),
        ("dropout2", LayerOp::Dropout(Dropout { p: 0.5 })),
        ("fc2", linear(128, 10)),
        ("log_softmax", LayerOp::LogSoftmax(LogSoftmax { dim: 1 })),
    ]
    .into_iter()
    .map(named)
    .collect()
}

/// A file of PyTorch's figures.
pub fn figures(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub trait Close {
    /// Panics unless each element is within `tolerance` of `wanted`'s, relative where it is larger than 1.
    fn assert_close(&self, wanted: &Tensor, tolerance: f64, what: &str);
}

impl Close for Tensor {
    fn assert_close(&self, wanted: &Tensor, tolerance: f64, what: &str) {
        assert_eq!(self.size(), wanted.size(), "{what}: shape");
        if self.numel() == 0 {
            return;
        }
        let (ours, wanted) = (self.to_kind(Kind::Double), wanted.to_kind(Kind::Double));
        let distance = ((&ours - &wanted).abs() / wanted.abs().clamp_min(1.0)).max().double_value(&[]);
        // Not `>`: a NaN is as wrong.
        assert!(distance <= tolerance, "{what}: off by {distance:e}\nours: {ours}\nPyTorch's: {wanted}");
    }
}
