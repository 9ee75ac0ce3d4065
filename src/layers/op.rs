//! What a layer says of itself in its file.

use std::fmt::Debug;
use std::ops::Range;

use tch::{Kind, TchError, Tensor};

use super::masks::MaskSource;
use super::python::Python;
use super::shape::{Output, Signal};
use super::tables::{BagMode, Columns, asked};
use super::{Layer, LayerOp};

/// What a layer computes. Nothing has a default: each says everything. Those that change each number by itself say less,
/// see [`Elementwise`](super::elementwise::Elementwise).
pub trait Op: Debug + Send + Sync {
    /// Names and shapes of its own parameters, in the order of PyTorch's `named_parameters`.
    fn parameters(&self) -> Vec<ParameterSpec>;

    /// Its buffers, in the order of PyTorch's `named_buffers`.
    fn buffers(&self) -> Vec<Buffer>;

    /// Writes the initial values of its parameters over zeros, drawing from libtorch's generator as PyTorch's module does,
    /// in its order. Call it under [`seeded`](super::rng::seeded), without recording gradients.
    ///
    /// # Errors
    /// What libtorch refuses.
    fn draw(&self, parameters: &mut [Tensor]) -> Result<(), TchError>;

    /// One sample of what it gives for one of its input, or why it does not take that.
    fn output(&self, input: &Signal) -> Output;

    /// Multiply-accumulates of one sample's forward, about.
    fn macs(&self, input: &Signal, output: &Signal) -> u64;

    /// Is its gradient sparse: only the rows that a batch has touched?
    fn has_sparse_gradient(&self) -> bool;

    /// Its rows, if it is a table that can lie on several ranks.
    fn rows(&self) -> Option<RowTable>;

    /// How it makes one of several inputs, if it does.
    fn joins(&self) -> Option<&dyn Join>;

    /// Layers that its input goes through first.
    fn inner(&self) -> &[Layer];

    fn memory(&self) -> Memory;

    /// What it is in Python, with the names of its parameters and buffers.
    fn python(&self) -> Python;

    /// Its output for a batch.
    ///
    /// # Errors
    /// What libtorch refuses.
    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError>;
}

/// What there is to say of a layer that makes one of several inputs.
pub trait Join: Debug + Send + Sync {
    /// One sample of what it gives for one of each input, or why it does not take these: there are at least two.
    fn joined(&self, inputs: &[Signal]) -> Output;

    /// Multiply-accumulates of one sample's forward, about.
    fn joined_macs(&self, inputs: &[Signal]) -> u64;
}

/// A parameter as PyTorch names it within its layer, with its shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParameterSpec {
    pub name: String,
    pub shape: Vec<i64>,
}

pub(super) fn parameter(name: impl Into<String>, shape: impl Into<Vec<i64>>) -> ParameterSpec {
    ParameterSpec { name: name.into(), shape: shape.into() }
}

/// A weight, and a bias if there is one.
pub(super) fn weight_and_bias(weight: Vec<i64>, bias: Option<i64>) -> Vec<ParameterSpec> {
    let mut parameters = vec![parameter("weight", weight)];
    parameters.extend(bias.map(|size| parameter("bias", [size])));
    parameters
}

/// A buffer as PyTorch names it within its layer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Buffer {
    pub name: &'static str,
    pub shape: Vec<i64>,
    pub first: First,
}

/// What a buffer starts from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum First {
    /// Numbers of f32.
    Zeros,
    /// Numbers of f32.
    Ones,
    /// A count from 0, of int64.
    Count,
}

impl Buffer {
    /// As it is before the first batch, on the CPU.
    ///
    /// # Errors
    /// Libtorch could not make it (memory).
    pub fn make(&self) -> Result<Tensor, TchError> {
        let cpu = tch::Device::Cpu;
        match self.first {
            First::Zeros => Tensor::f_zeros(&self.shape, (Kind::Float, cpu)),
            First::Ones => Tensor::f_ones(&self.shape, (Kind::Float, cpu)),
            First::Count => Tensor::f_zeros(&self.shape, (Kind::Int64, cpu)),
        }
    }

    pub fn bytes(&self) -> u64 {
        let each = match self.first {
            First::Zeros | First::Ones => 4,
            First::Count => 8,
        };
        self.shape.iter().fold(each, |bytes: u64, size| bytes.saturating_mul(size.unsigned_abs()))
    }
}

/// A table of rows, of which a batch uses some.
#[derive(Clone, Debug, PartialEq)]
pub struct RowTable {
    /// All tables as one.
    pub table: TableSpec,
    /// The tables, if each column of ids has its own.
    pub columns: Option<Columns>,
    /// How the rows of a bag become one; none: each stays by itself.
    pub bags: Option<BagMode>,
    /// Rows are multiplied by numbers that come behind the ids.
    pub weights: bool,
    /// The layer over rows that are all there: none is padding, and their gradients are dense.
    pub over_rows: LayerOp,
}

/// One of the tables that a layer looks rows up in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TablePart {
    /// The name of its parameter.
    pub name: String,
    /// Which rows are its of the one that all make together; None: it is the only one, and has whatever ids there are.
    pub ids: Option<Range<i64>>,
    pub rows: i64,
}

impl TablePart {
    /// The name of the list of its ids in a file, where it has not all of its rows.
    pub fn ids_name(&self) -> String {
        format!("{}ids", self.name.strip_suffix("weight").unwrap_or(&self.name))
    }
}

impl RowTable {
    /// The tables, in the order of their rows, named as in the layer.
    pub fn tables(&self) -> Vec<TablePart> {
        match &self.columns {
            None => vec![TablePart { name: "weight".into(), ids: None, rows: self.table.rows }],
            Some(columns) => {
                let part = |(name, ids): (String, Range<i64>)| {
                    let rows = ids.end - ids.start;
                    TablePart { name, ids: Some(ids), rows }
                };
                columns.tables().map(part).collect()
            }
        }
    }

    /// The ids of a batch, which may come in several inputs, and the weights if there are such.
    ///
    /// # Errors
    /// What libtorch refuses.
    pub fn asked(&self, inputs: &[Tensor]) -> Result<(Tensor, Option<Tensor>), TchError> {
        let inputs: Vec<&Tensor> = inputs.iter().collect();
        asked(&inputs, self.bags.is_some(), self.weights)
    }
}

/// The table of an embedding layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableSpec {
    /// The table's rows; of one that is cut by hash the most that one rank holds.
    pub rows: i64,
    /// Numbers in a row.
    pub dim: i64,
    /// The id whose row is zero and stays so.
    pub padding: Option<i64>,
}

/// What may be written over to save memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Its output is not among what its backward reads: the next layer may write over it.
    pub forgets_output: bool,
    /// It can write over its input, see [`ForwardArgs::may_overwrite`].
    pub writes_over_input: bool,
}

impl Memory {
    /// Its backward reads its output, or may.
    pub const KEEPS_OUTPUT: Memory = Memory { forgets_output: false, writes_over_input: false };
    pub const FORGETS_OUTPUT: Memory = Memory { forgets_output: true, writes_over_input: false };
}

/// One forward of one layer.
pub struct ForwardArgs<'a> {
    /// The layer's own, in the order of [`Op::parameters`].
    pub params: &'a [Tensor],
    /// A batch; its first dimension counts the samples.
    pub x: &'a Tensor,
    /// The batch's further inputs, of a layer that [joins](Op::joins) them.
    pub others: &'a [Tensor],
    /// What the inner layers gave for it.
    pub inner: Option<&'a Tensor>,
    pub train: bool,
    /// Nobody needs `x` any more.
    pub may_overwrite: bool,
    /// Copies of the layer's own buffers, all of one moment, in the order of [`Op::buffers`].
    pub buffers: &'a dyn Fn() -> Result<Vec<Tensor>, TchError>,
    /// What a training forward saw of its batch, for the buffers.
    pub seen: &'a mut dyn FnMut(Seen),
    /// Where random numbers come from.
    pub masks: &'a dyn Fn() -> MaskSource,
}

impl ForwardArgs<'_> {
    /// The batch's inputs, all of them.
    pub fn inputs(&self) -> Vec<&Tensor> {
        std::iter::once(self.x).chain(self.others).collect()
    }

    /// Where the random numbers of a training forward come from.
    pub fn training_masks(&self) -> Option<MaskSource> {
        self.train.then(self.masks)
    }
}

/// What a training forward saw of its batch. Buffers are named by their position in [`Op::buffers`].
#[derive(Debug)]
pub enum Seen {
    /// The batch's own value, which a running mean moves to by `momentum`.
    Mean { buffer: usize, seen: Tensor, momentum: f64 },
    /// One batch more.
    Batch { buffer: usize },
}

/// Each of so many parameters once at each position of the output. `channels_first`: a position's numbers are the first dimension's, as
/// in images, and else the last one's.
pub(super) fn at_each_position(parameters: u64, output: &Signal, channels_first: bool) -> u64 {
    let values_at_a_position = match output.shape.as_slice() {
        [channels, ..] if channels_first => *channels,
        [channels, _, _] => *channels,
        [.., last] => *last,
        [] => 1,
    };
    parameters.saturating_mul(output.elements() / values_at_a_position.max(1).unsigned_abs())
}
