//! Upsampling of sequences, images and volumes.

use figment::value::Value;
use serde::Serialize;
use tch::{TchError, Tensor};

use super::Layer;
use super::arguments::arguments;
use super::op::{Buffer, ForwardArgs, Join, Memory, Op, ParameterSpec, RowTable};
use super::python::{self, Python};
use super::shape::{Output, Refusal, Signal};
use crate::config::{
    Flag, Integer, Item, Key, Kind, MOST, Number, Optional, Refused, Table, Values, Words, above, flag,
    integer, key, refused, words,
};

arguments! {
    /// A larger image of the same content, also a sequence or a volume: to a size, or by a factor.
    pub struct Upsample {
        size: Option<PerDimension<i64>> = SIZE,
        scale_factor: Option<PerDimension<f64>> = SCALE_FACTOR,
        mode: Mode = MODE,
        align_corners: bool = ALIGN_CORNERS,
    }
    refused: RECOMPUTE;
    rules: check;
}

const SIZE: Key<Optional<Each<Integer>>> = key("size", Each(integer(1..=MOST)))
    .optional()
    .doc("Of the output without its channels: one number or one for each dimension. This or scale_factor.");
const SCALE_FACTOR: Key<Optional<Each<Number>>> = key("scale_factor", Each(above(0.0)))
    .optional()
    .doc("How many times larger the output is: one number or one for each dimension.");
const MODE: Key<Words<Mode>> = key(
    "mode",
    words(&[
        ("nearest", Mode::Nearest),
        ("linear", Mode::Linear),
        ("bilinear", Mode::Bilinear),
        ("bicubic", Mode::Bicubic),
        ("trilinear", Mode::Trilinear),
    ]),
)
.default("nearest")
.doc("Where numbers between those of the input come from; linear is for sequences, trilinear for volumes.");
const ALIGN_CORNERS: Key<Flag> = key("align_corners", flag())
    .default("false")
    .doc("Whether the corners of input and output have the same numbers; not with nearest.");
const RECOMPUTE: Refused = refused(
    "recompute_scale_factor",
    "leave it out: positions are computed with the factor as it is written",
);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    Nearest,
    Linear,
    Bilinear,
    Bicubic,
    Trilinear,
}

impl Mode {
    /// How many dimensions it is for, without samples and channels.
    fn dimensions(self) -> std::ops::RangeInclusive<usize> {
        match self {
            Mode::Nearest => 1..=3,
            Mode::Linear => 1..=1,
            Mode::Bilinear | Mode::Bicubic => 2..=2,
            Mode::Trilinear => 3..=3,
        }
    }

    /// PyTorch's.
    fn name(self) -> &'static str {
        match self {
            Mode::Nearest => "nearest",
            Mode::Linear => "linear",
            Mode::Bilinear => "bilinear",
            Mode::Bicubic => "bicubic",
            Mode::Trilinear => "trilinear",
        }
    }
}

/// One number for all dimensions, or one for each.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(untagged)]
pub enum PerDimension<T> {
    All(T),
    Each(Vec<T>),
}

impl<T: Copy> PerDimension<T> {
    fn of(&self, dim: usize) -> T {
        match self {
            PerDimension::All(number) => *number,
            PerDimension::Each(numbers) => numbers[dim],
        }
    }

    fn fits(&self, dims: usize) -> bool {
        match self {
            PerDimension::All(_) => true,
            PerDimension::Each(numbers) => numbers.len() == dims,
        }
    }
}

impl<T: python::Value> python::Value for PerDimension<T> {
    fn written(&self) -> String {
        match self {
            PerDimension::All(number) => number.written(),
            PerDimension::Each(numbers) => numbers.as_slice().written(),
        }
    }
}

#[derive(Clone, Copy)]
struct Each<V>(V);

impl<V: Values> Values for Each<V> {
    type Read = PerDimension<V::Read>;

    fn read(&self, item: &Item<'_>) -> Option<PerDimension<V::Read>> {
        if !matches!(item.value(), Value::Array(..)) {
            return self.0.read(item).map(PerDimension::All);
        }
        let read: Vec<_> = item.list()?.iter().map(|entry| self.0.read(entry)).collect();
        read.into_iter().collect::<Option<_>>().map(PerDimension::Each)
    }

    fn kind(&self) -> Kind {
        Kind::Either(vec![self.0.kind(), Kind::list(self.0.kind())])
    }
}

fn check(layer: Upsample, table: &Table<'_>) -> Option<Upsample> {
    let item = match (&layer.size, &layer.scale_factor) {
        (None, None) => {
            table.missing("scale_factor", "for example scale_factor = 2, or a size");
            return None;
        }
        (Some(_), Some(_)) => {
            table.item(&SIZE).map(|item| (item, "stands beside scale_factor", "leave one of them out"))
        }
        _ if layer.align_corners && layer.mode == Mode::Nearest => table
            .item(&ALIGN_CORNERS)
            .map(|item| (item, "does not go with mode = \"nearest\"", "leave it out")),
        _ => return Some(layer),
    };
    if let Some((item, problem, hint)) = item {
        item.wrong(problem, hint);
    }
    None
}

impl Upsample {
    /// The sizes of the output along the last dimensions.
    fn sizes(&self, input: &[i64]) -> Vec<i64> {
        let size = |(dim, size): (usize, &i64)| match (&self.size, &self.scale_factor) {
            (Some(sizes), _) => sizes.of(dim),
            (None, Some(factors)) => (*size as f64 * factors.of(dim)).floor() as i64,
            (None, None) => *size,
        };
        input.iter().enumerate().map(size).collect()
    }

    fn factor(&self, dim: usize) -> Option<f64> {
        self.scale_factor.as_ref().map(|factors| factors.of(dim))
    }
}

impl Op for Upsample {
    fn parameters(&self) -> Vec<ParameterSpec> {
        vec![]
    }

    fn buffers(&self) -> Vec<Buffer> {
        vec![]
    }

    fn draw(&self, _parameters: &mut [Tensor]) -> Result<(), TchError> {
        Ok(())
    }

    fn output(&self, input: &Signal) -> Output {
        let shape = input.expect_floats()?;
        let fits = self.mode.dimensions();
        let Some(dims) = shape.len().checked_sub(1).filter(|dims| fits.contains(dims)) else {
            let expects = match (fits.start(), fits.end()) {
                (1, 1) => "[channels, length]",
                (2, 2) => "[channels, height, width]",
                (3, 3) => "[channels, depth, height, width]",
                _ => "[channels, length], [channels, height, width] or [channels, depth, height, width]",
            };
            let hint = "use the mode for its dimensions: linear, bilinear or trilinear, or nearest for any";
            return Err(Refusal::new(expects, hint));
        };
        let given = self.size.as_ref().map(|size| size.fits(dims));
        if !given.or(self.scale_factor.as_ref().map(|factor| factor.fits(dims))).unwrap_or(true) {
            let expects = format!("{dims} numbers for the {dims} dimensions behind the channels");
            return Err(Refusal::new(expects, "write one number for all, or one for each"));
        }
        let sizes = self.sizes(&shape[1..]);
        if sizes.contains(&0) {
            return Err(Refusal::new("a factor that leaves something of it", "use a larger scale_factor"));
        }
        Ok(Signal::floats([&shape[..1], &sizes].concat()))
    }

    fn macs(&self, _input: &Signal, _output: &Signal) -> u64 {
        0
    }

    fn has_sparse_gradient(&self) -> bool {
        false
    }

    fn rows(&self) -> Option<RowTable> {
        None
    }

    fn joins(&self) -> Option<&dyn Join> {
        None
    }

    fn inner(&self) -> &[Layer] {
        &[]
    }

    fn memory(&self) -> Memory {
        Memory::KEEPS_OUTPUT
    }

    fn python(&self) -> Python {
        let corners = (self.mode != Mode::Nearest).then_some(self.align_corners);
        Python::torch("nn.Upsample")
            .named("size", self.size.clone(), None)
            .named("scale_factor", self.scale_factor.clone(), None)
            .named("mode", self.mode.name(), "nearest")
            .named("align_corners", corners, None)
    }

    fn forward(&self, args: &mut ForwardArgs<'_>) -> Result<Tensor, TchError> {
        let (x, shape) = (args.x, args.x.size());
        let sizes = self.sizes(&shape[2..]);
        let corners = self.align_corners;
        match (self.mode, sizes.len()) {
            (Mode::Nearest, 1) => x.f_upsample_nearest1d(sizes, self.factor(0)),
            (Mode::Nearest, 2) => x.f_upsample_nearest2d(sizes, self.factor(0), self.factor(1)),
            (Mode::Nearest, _) => {
                x.f_upsample_nearest3d(sizes, self.factor(0), self.factor(1), self.factor(2))
            }
            (Mode::Linear, _) => x.f_upsample_linear1d(sizes, corners, self.factor(0)),
            (Mode::Bilinear, _) => x.f_upsample_bilinear2d(sizes, corners, self.factor(0), self.factor(1)),
            (Mode::Bicubic, _) => x.f_upsample_bicubic2d(sizes, corners, self.factor(0), self.factor(1)),
            (Mode::Trilinear, _) => {
                x.f_upsample_trilinear3d(sizes, corners, self.factor(0), self.factor(1), self.factor(2))
            }
        }
    }
}
