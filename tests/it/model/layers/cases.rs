//! The layers of each case, as `tests/data/layers.py` has them.

use pstrain::job::layer::{BagMode, Conv, GeluApproximation, Layer, LayerOp, Lstm, LstmOutput};

use crate::model::{conv2d, linear, sequential};

fn conv<const N: usize>(in_channels: i64, out_channels: i64, kernel_size: [i64; N]) -> Conv<N> {
    let (stride, padding, dilation) = ([1; N], [0; N], [1; N]);
    Conv { in_channels, out_channels, kernel_size, stride, padding, dilation, groups: 1, bias: true }
}

fn embedding(padding_idx: Option<i64>, sparse: bool) -> Vec<LayerOp> {
    vec![LayerOp::Embedding { num_embeddings: 7, embedding_dim: 3, padding_idx, sparse }]
}

fn bag(mode: BagMode, sparse: bool, include_last_offset: bool) -> Vec<LayerOp> {
    vec![LayerOp::EmbeddingBag { num_embeddings: 9, embedding_dim: 3, mode, sparse, include_last_offset }]
}

fn batch_norm(dims: u8, num_features: i64) -> LayerOp {
    LayerOp::BatchNorm {
        dims,
        num_features,
        eps: 1e-5,
        momentum: 0.1,
        affine: true,
        track_running_stats: true,
    }
}

fn layer_norm(shape: &[i64]) -> LayerOp {
    LayerOp::LayerNorm { normalized_shape: shape.into(), eps: 1e-5, elementwise_affine: true, bias: true }
}

fn group_norm(num_groups: i64, num_channels: i64) -> LayerOp {
    LayerOp::GroupNorm { num_groups, num_channels, eps: 1e-5, affine: true }
}

fn lstm(output: LstmOutput, change: impl Fn(&mut Lstm)) -> Vec<LayerOp> {
    let mut lstm = Lstm {
        input_size: 3,
        hidden_size: 4,
        num_layers: 1,
        bias: true,
        batch_first: false,
        dropout: 0.0,
        bidirectional: false,
        output,
    };
    change(&mut lstm);
    vec![LayerOp::Lstm(lstm)]
}

fn attention(num_heads: i64, dropout: f64, bias: bool, batch_first: bool, causal: bool) -> Vec<LayerOp> {
    vec![LayerOp::MultiheadAttention { embed_dim: 8, num_heads, dropout, bias, batch_first, causal }]
}

fn residual(layers: Vec<Layer>) -> LayerOp {
    LayerOp::Residual { layers }
}

fn named(name: &str, op: LayerOp) -> Layer {
    Layer { name: name.into(), op }
}

/// The layers of a case in `tests/data/layers.py`.
pub fn layers(case: &str) -> Vec<LayerOp> {
    use LstmOutput::{Last, Sequence};
    match case {
        "linear" => vec![linear(5, 3)],
        "linear_no_bias" => vec![LayerOp::Linear { in_features: 5, out_features: 3, bias: false }],
        "conv1d" => vec![LayerOp::Conv1d(conv(3, 4, [3]))],
        "conv1d_options" => vec![LayerOp::Conv1d(Conv {
            stride: [2],
            padding: [2],
            dilation: [2],
            groups: 2,
            bias: false,
            ..conv(4, 6, [3])
        })],
        "conv2d" => vec![conv2d(2, 3, 3)],
        "conv2d_options" => vec![LayerOp::Conv2d(Conv {
            stride: [2, 1],
            padding: [2, 1],
            dilation: [2, 3],
            groups: 2,
            bias: false,
            ..conv(4, 6, [3, 2])
        })],
        "embedding" => embedding(None, false),
        "embedding_padding" => embedding(Some(2), false),
        "embedding_sparse" => embedding(None, true),
        "bag_sum" | "bag_offsets" | "bag_padded_sum" => bag(BagMode::Sum, false, false),
        "bag_mean" | "bag_padded_mean" | "bag_padded_nested" => bag(BagMode::Mean, false, false),
        "bag_max" | "bag_padded_max" => bag(BagMode::Max, false, false),
        "bag_sum_sparse" | "bag_padded_sum_sparse" => bag(BagMode::Sum, true, false),
        "bag_padded_mean_sparse" => bag(BagMode::Mean, true, false),
        "bag_last_offset" => bag(BagMode::Mean, false, true),
        "batch_norm1d" | "batch_norm1d_eval" => vec![batch_norm(1, 4)],
        "batch_norm1d_length" => vec![LayerOp::BatchNorm {
            dims: 1,
            num_features: 4,
            eps: 1e-3,
            momentum: 0.3,
            affine: true,
            track_running_stats: true,
        }],
        "batch_norm2d" | "batch_norm2d_eval" => vec![batch_norm(2, 3)],
        "batch_norm2d_plain" | "batch_norm2d_untracked" => vec![LayerOp::BatchNorm {
            dims: 2,
            num_features: 3,
            eps: 1e-5,
            momentum: 0.1,
            affine: case == "batch_norm2d_untracked",
            track_running_stats: case == "batch_norm2d_plain",
        }],
        "layer_norm" => vec![layer_norm(&[6])],
        "layer_norm_2d" => vec![LayerOp::LayerNorm {
            normalized_shape: vec![2, 6],
            eps: 1e-2,
            elementwise_affine: true,
            bias: true,
        }],
        "layer_norm_no_bias" | "layer_norm_plain" => vec![LayerOp::LayerNorm {
            normalized_shape: vec![6],
            eps: 1e-5,
            elementwise_affine: case == "layer_norm_no_bias",
            bias: case == "layer_norm_plain",
        }],
        "group_norm" => vec![group_norm(2, 6)],
        "group_norm_plain" => {
            vec![LayerOp::GroupNorm { num_groups: 3, num_channels: 6, eps: 1e-2, affine: false }]
        }
        "relu" => vec![LayerOp::Relu],
        "gelu" => vec![LayerOp::Gelu { approximate: GeluApproximation::None }],
        "gelu_tanh" => vec![LayerOp::Gelu { approximate: GeluApproximation::Tanh }],
        "silu" => vec![LayerOp::Silu],
        "tanh" => vec![LayerOp::Tanh],
        "sigmoid" => vec![LayerOp::Sigmoid],
        "softmax" => vec![LayerOp::Softmax { dim: 1 }],
        "softmax_last" => vec![LayerOp::Softmax { dim: -1 }],
        "log_softmax" => vec![LayerOp::LogSoftmax { dim: 1 }],
        "max_pool2d" => vec![LayerOp::MaxPool2d {
            kernel_size: [2; 2],
            stride: [2; 2],
            padding: [0; 2],
            dilation: [1; 2],
            ceil_mode: false,
        }],
        "max_pool2d_options" => vec![LayerOp::MaxPool2d {
            kernel_size: [3, 2],
            stride: [2, 1],
            padding: [1, 0],
            dilation: [1, 2],
            ceil_mode: true,
        }],
        "avg_pool2d" => vec![LayerOp::AvgPool2d {
            kernel_size: [2; 2],
            stride: [2; 2],
            padding: [0; 2],
            ceil_mode: false,
            count_include_pad: true,
        }],
        "avg_pool2d_options" => vec![LayerOp::AvgPool2d {
            kernel_size: [3, 2],
            stride: [2, 1],
            padding: [1, 1],
            ceil_mode: true,
            count_include_pad: false,
        }],
        "avg_pool2d_padded" => vec![LayerOp::AvgPool2d {
            kernel_size: [3; 2],
            stride: [2; 2],
            padding: [1; 2],
            ceil_mode: false,
            count_include_pad: true,
        }],
        "adaptive_avg_pool2d" => vec![LayerOp::AdaptiveAvgPool2d { output_size: [3, 2] }],
        "adaptive_avg_pool2d_one" => vec![LayerOp::AdaptiveAvgPool2d { output_size: [1, 1] }],
        "dropout_eval" => vec![LayerOp::Dropout { p: 0.5 }, LayerOp::Dropout2d { p: 0.5 }],
        "dropout_all" => vec![LayerOp::Dropout { p: 1.0 }],
        "dropout_none" => vec![LayerOp::Dropout { p: 0.0 }, LayerOp::Dropout2d { p: 0.0 }],
        "flatten" => vec![LayerOp::Flatten { start_dim: 1, end_dim: -1 }],
        "flatten_part" => vec![LayerOp::Flatten { start_dim: 1, end_dim: 2 }],
        "reshape" => vec![LayerOp::Reshape { shape: vec![4, -1] }],
        "residual" => vec![
            residual(vec![
                named("up", linear(4, 6)),
                named("act", LayerOp::Relu),
                named("down", linear(6, 4)),
            ]),
            LayerOp::Tanh,
        ],
        "residual_nested" => vec![
            residual(sequential(vec![
                LayerOp::Relu,
                residual(sequential(vec![linear(4, 4), LayerOp::Relu])),
                layer_norm(&[4]),
            ])),
            linear(4, 2),
        ],
        "relu_in_place" => [
            LayerOp::Conv1d(conv(2, 3, [2])),
            batch_norm(1, 3),
            group_norm(1, 3),
            layer_norm(&[4]),
            linear(4, 3),
        ]
        .into_iter()
        .flat_map(|op| [op, LayerOp::Relu])
        .collect(),
        "lstm" => lstm(Sequence, |_| {}),
        "lstm_batch_first" => lstm(Sequence, |lstm| lstm.batch_first = true),
        "lstm_last" => lstm(Last, |lstm| lstm.batch_first = true),
        "lstm_deep" => lstm(Sequence, |lstm| {
            (lstm.num_layers, lstm.bidirectional, lstm.batch_first) = (2, true, true);
        }),
        "lstm_deep_last" => lstm(Last, |lstm| (lstm.num_layers, lstm.bidirectional) = (2, true)),
        "lstm_no_bias" => lstm(Sequence, |lstm| (lstm.num_layers, lstm.bias) = (2, false)),
        "lstm_dropout_all" => lstm(Sequence, |lstm| {
            (lstm.num_layers, lstm.bidirectional, lstm.batch_first, lstm.dropout) = (3, true, true, 1.0);
        }),
        "attention" => attention(2, 0.0, true, true, false),
        "attention_length_first" => attention(4, 0.0, false, false, false),
        "attention_causal" => attention(2, 0.0, true, true, true),
        "attention_dropout_all" => attention(2, 1.0, true, true, false),
        unknown => panic!("case `{unknown}` stands in layers.py only"),
    }
}
