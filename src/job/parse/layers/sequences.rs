//! Layers that go along the steps of a sequence.

use super::{divisors_hint, flag, need_size};
use crate::config::{Item, MOST, Table};
use crate::job::layer::{LayerOp, Lstm, LstmOutput};

pub(super) fn lstm(t: &Table<'_>) -> Option<LayerOp> {
    let (input_size, hidden_size) = (need_size(t, "input_size"), need_size(t, "hidden_size"));
    let num_layers = t.or("num_layers", 1, |item| item.integer(1..=1024));
    let bias = flag(t, "bias", true);
    let dropout = t.or("dropout", 0.0, Item::probability);
    let bidirectional = flag(t, "bidirectional", false);
    let outputs = [("sequence", LstmOutput::Sequence), ("last", LstmOutput::Last)];
    let output = t.or("output", LstmOutput::Sequence, |item| item.choice(&outputs));
    let batch_first = batch_first(t);
    t.refuse("proj_size", "leave it out, and put a linear layer behind");
    let (input_size, hidden_size, batch_first) = (input_size?, hidden_size?, batch_first?);
    Some(LayerOp::Lstm(Lstm {
        input_size,
        hidden_size,
        num_layers,
        bias,
        batch_first,
        dropout,
        bidirectional,
        output,
    }))
}

/// PyTorch's default is false, and a job's batches always have the samples first: it would run along the
/// samples instead of along time, without any error. So it has to be said.
fn batch_first(t: &Table<'_>) -> Option<bool> {
    const HINT: &str =
        "write batch_first = true (PyTorch's default, false, would take the samples for time steps)";
    match t.get("batch_first") {
        None => {
            t.missing("batch_first", HINT);
            None
        }
        Some(item) => {
            let batch_first = item.flag()?;
            if !batch_first {
                item.wrong("does not fit: the first dimension of a batch counts the samples", HINT);
            }
            batch_first.then_some(true)
        }
    }
}

pub(super) fn attention(t: &Table<'_>) -> Option<LayerOp> {
    let embed_dim = need_size(t, "embed_dim");
    let num_heads = t.need("num_heads", "4", |item| {
        let (heads, width) = (item.integer(1..=MOST)?, embed_dim?);
        if width % heads != 0 {
            item.wrong(format!("does not divide embed_dim = {width}"), divisors_hint(width));
            return None;
        }
        Some(heads)
    });
    let dropout = t.or("dropout", 0.0, Item::probability);
    let bias = flag(t, "bias", true);
    let causal = flag(t, "causal", false);
    let batch_first = batch_first(t);
    for key in ["add_bias_kv", "add_zero_attn", "kdim", "vdim"] {
        t.refuse(key, "leave it out: query, key and value are the layer's input");
    }
    let (embed_dim, num_heads, batch_first) = (embed_dim?, num_heads?, batch_first?);
    Some(LayerOp::MultiheadAttention { embed_dim, num_heads, dropout, bias, batch_first, causal })
}
