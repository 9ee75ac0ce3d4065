//! Embeddings and normalisations.

use figment::value::Value;

use super::{above_zero, divisors_hint, flag, need_size};
use crate::config::{Item, MOST, Table};
use crate::job::layer::{BagMode, LayerOp};

pub(super) fn embedding(t: &Table<'_>) -> Option<LayerOp> {
    let (num_embeddings, embedding_dim) = (need_size(t, "num_embeddings"), need_size(t, "embedding_dim"));
    let padding_idx = t.get("padding_idx").and_then(|item| {
        let rows = num_embeddings?;
        let index = item.integer(-rows..=rows - 1)?;
        // PyTorch counts a negative one from the end.
        Some(if index < 0 { rows + index } else { index })
    });
    let sparse = flag(t, "sparse", false);
    embedding_refusals(t);
    let (num_embeddings, embedding_dim) = (num_embeddings?, embedding_dim?);
    Some(LayerOp::Embedding { num_embeddings, embedding_dim, padding_idx, sparse })
}

pub(super) fn embedding_bag(t: &Table<'_>) -> Option<LayerOp> {
    let (num_embeddings, embedding_dim) = (need_size(t, "num_embeddings"), need_size(t, "embedding_dim"));
    let modes = [("sum", BagMode::Sum), ("mean", BagMode::Mean), ("max", BagMode::Max)];
    let mode = t.or("mode", BagMode::Mean, |item| item.choice(&modes));
    let sparse = t.or("sparse", false, |item| {
        let sparse = item.flag()?;
        if sparse && mode == BagMode::Max {
            item.wrong(
                "does not go with mode = \"max\"",
                "use mode \"sum\" or \"mean\", or leave sparse out",
            );
        }
        Some(sparse)
    });
    t.refuse("padding_idx", "leave it out");
    t.refuse(
        "include_last_offset",
        "leave it out: bags are padded to one length with -1, so there are no offsets",
    );
    embedding_refusals(t);
    let (num_embeddings, embedding_dim) = (num_embeddings?, embedding_dim?);
    Some(LayerOp::EmbeddingBag { num_embeddings, embedding_dim, mode, sparse, include_last_offset: false })
}

fn embedding_refusals(t: &Table<'_>) {
    for key in ["max_norm", "norm_type", "scale_grad_by_freq"] {
        t.refuse(key, "leave it out");
    }
}

pub(super) fn batch_norm(t: &Table<'_>, dims: u8) -> Option<LayerOp> {
    let num_features = need_size(t, "num_features");
    let eps = above_zero(t, "eps", 1e-5);
    let momentum = t.or("momentum", 0.1, Item::probability);
    let affine = flag(t, "affine", true);
    let track_running_stats = flag(t, "track_running_stats", true);
    Some(LayerOp::BatchNorm { dims, num_features: num_features?, eps, momentum, affine, track_running_stats })
}

pub(super) fn layer_norm(t: &Table<'_>) -> Option<LayerOp> {
    let normalized_shape = t.need("normalized_shape", "64", |item| match item.value() {
        Value::Array(..) => item.integers(1..=MOST).filter(|shape| {
            if shape.is_empty() {
                item.wrong("has no dimension", "name the last dimensions of the input, for example 64");
            }
            !shape.is_empty()
        }),
        _ => item.integer(1..=MOST).map(|size| vec![size]),
    });
    let eps = above_zero(t, "eps", 1e-5);
    let elementwise_affine = flag(t, "elementwise_affine", true);
    let bias = flag(t, "bias", true);
    Some(LayerOp::LayerNorm { normalized_shape: normalized_shape?, eps, elementwise_affine, bias })
}

pub(super) fn group_norm(t: &Table<'_>) -> Option<LayerOp> {
    let num_channels = need_size(t, "num_channels");
    let num_groups = t.need("num_groups", "4", |item| {
        let (groups, channels) = (item.integer(1..=MOST)?, num_channels?);
        if channels % groups != 0 {
            item.wrong(format!("does not divide num_channels = {channels}"), divisors_hint(channels));
            return None;
        }
        Some(groups)
    });
    let eps = above_zero(t, "eps", 1e-5);
    let affine = flag(t, "affine", true);
    Some(LayerOp::GroupNorm { num_groups: num_groups?, num_channels: num_channels?, eps, affine })
}
