//! Which layers go to which device.

use super::validated::Devices;
use crate::layers::{Layer, size};

/// The part of each top-level layer, counted from 0; parts are contiguous and none is left out.
///
/// There are as many parts as asked for, or as there are GPUs if those are fewer; without any GPU there is
/// one part, on the CPU. A split at named layers keeps its first parts and puts the others on the last GPU.
/// A split by count makes parts of about equal parameter bytes.
pub fn devices(layers: &[Layer], asked: &Devices, gpus_available: u32) -> Vec<usize> {
    let available = gpus_available.max(1) as usize;
    match asked {
        Devices::One => vec![0; layers.len()],
        Devices::At(names) => {
            let mut part = 0;
            let parts = layers.iter().map(|layer| {
                part += usize::from(names.contains(&layer.name));
                part.min(available - 1)
            });
            parts.collect()
        }
        Devices::Count(count) => {
            let bytes: Vec<u64> = layers.iter().map(|layer| size::parameter_bytes(&layer.op)).collect();
            even(&bytes, (*count as usize).min(available).min(layers.len()))
        }
    }
}

/// How many devices the split wants.
pub fn wanted(asked: &Devices) -> usize {
    match asked {
        Devices::One => 1,
        Devices::Count(count) => *count as usize,
        Devices::At(names) => names.len() + 1,
    }
}

/// Contiguous, non-empty parts with the least sum of squared weights, which is to say of the most equal weights.
///
/// Between cuts of the same weight the latest wins: an activation stays with the layer before it.
fn even(weights: &[u64], parts: usize) -> Vec<usize> {
    let count = weights.len();
    // Weight of the layers before each, as f64: the squares of bytes do not fit integers.
    let mut before = vec![0.0; count + 1];
    for (index, weight) in weights.iter().enumerate() {
        before[index + 1] = before[index] + *weight as f64;
    }
    let square = |from: usize, to: usize| (before[to] - before[from]).powi(2);

    // best[to]: the least sum for the first `to` layers in as many parts as rounds so far.
    let mut best: Vec<f64> = (0..=count).map(|to| square(0, to)).collect();
    let mut cuts = Vec::new();
    for part in 1..parts {
        let mut next = vec![f64::INFINITY; count + 1];
        let mut cut = vec![0; count + 1];
        for to in part + 1..=count {
            for (from, least) in best.iter().enumerate().take(to).skip(part) {
                let sum = least + square(from, to);
                if sum <= next[to] {
                    (next[to], cut[to]) = (sum, from);
                }
            }
        }
        best = next;
        cuts.push(cut);
    }

    let mut assigned = vec![0; count];
    let mut end = count;
    for (part, cut) in cuts.iter().enumerate().rev() {
        let start = cut[end];
        assigned[start..end].fill(part + 1);
        end = start;
    }
    assigned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Dropout, LayerOp, Linear, Relu};

    /// The tutorial's network: convolutions, then two linear layers.
    fn convnet() -> Vec<Layer> {
        let linear = |ins, outs| LayerOp::Linear(Linear { in_features: ins, out_features: outs, bias: true });
        let ops = [
            ("conv1", linear(9, 32)),
            ("relu1", LayerOp::Relu(Relu {})),
            ("conv2", linear(288, 64)),
            ("relu2", LayerOp::Relu(Relu {})),
            ("dropout1", LayerOp::Dropout(Dropout { p: 0.25 })),
            ("fc1", linear(9216, 128)),
            ("relu3", LayerOp::Relu(Relu {})),
            ("fc2", linear(128, 10)),
        ];
        ops.map(|(name, op)| Layer { name: name.into(), op }).to_vec()
    }

    fn at(names: &[&str]) -> Devices {
        Devices::At(names.iter().map(|name| name.to_string()).collect())
    }

    #[test]
    fn a_named_layer_starts_the_next_device() {
        assert_eq!(devices(&convnet(), &at(&["dropout1"]), 2), [0, 0, 0, 0, 1, 1, 1, 1]);
        assert_eq!(devices(&convnet(), &at(&["conv2", "fc1"]), 8), [0, 0, 1, 1, 1, 2, 2, 2]);
    }

    #[test]
    fn fewer_gpus_than_asked_for_are_used_as_they_are_and_none_is_the_cpu() {
        assert_eq!(devices(&convnet(), &at(&["conv2", "fc1"]), 2), [0, 0, 1, 1, 1, 1, 1, 1]);
        assert_eq!(devices(&convnet(), &at(&["conv2", "fc1"]), 1), [0; 8]);
        assert_eq!(devices(&convnet(), &Devices::Count(4), 0), [0; 8]);
        assert_eq!(devices(&convnet(), &Devices::Count(4), 2), devices(&convnet(), &Devices::Count(2), 2));
    }

    #[test]
    fn a_count_makes_parts_of_about_equal_bytes() {
        // Nearly all bytes are fc1's; the cut comes right before it.
        assert_eq!(devices(&convnet(), &Devices::Count(2), 2), [0, 0, 0, 0, 0, 1, 1, 1]);
        assert_eq!(even(&[5, 5, 5, 5], 2), [0, 0, 1, 1]);
        assert_eq!(even(&[1, 1, 1, 9], 2), [0, 0, 0, 1]);
        assert_eq!(even(&[4, 0, 4, 0, 4, 0], 3), [0, 0, 1, 1, 2, 2]);
        assert_eq!(even(&[0, 0, 0], 3), [0, 1, 2]);
    }

    proptest::proptest! {
        #[test]
        fn parts_are_contiguous_and_none_is_left_out(weights: Vec<u32>, parts in 1usize..6) {
            let weights: Vec<u64> = weights.into_iter().take(40).map(u64::from).collect();
            let parts = parts.min(weights.len()).max(1);
            let assigned = even(&weights, parts);
            proptest::prop_assert_eq!(assigned.len(), weights.len());
            if !weights.is_empty() {
                proptest::prop_assert_eq!(assigned[0], 0);
                proptest::prop_assert_eq!(assigned[weights.len() - 1], parts - 1);
                proptest::prop_assert!(assigned.windows(2).all(|pair| pair[1] - pair[0] <= 1));
            }
        }
    }
}
