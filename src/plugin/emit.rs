//! `output.emit`: a batch's bytes, from guest memory into tensors with one copy.

use tch::{Kind, Tensor};
use wasmtime::StoreContextMut;
use wasmtime::component::{Linker, WasmList};

use super::bindings::types::Dtype;
use super::bindings::{PACKAGE, VERSION};
use super::dataset::Field;
use super::dtype::{describe, kind_of};
use super::error::Refusal;
use super::state::State;
use crate::human;

/// What one call of `batch` is to hand over, and what came so far.
#[derive(Default)]
pub struct Batch {
    samples: i64,
    fields: Vec<Field>,
    tensors: Vec<Option<Tensor>>,
    bytes_left: u64,
    limit_bytes: u64,
    /// Only between [`Batch::expect`] and [`Batch::finish`] may a guest emit.
    open: bool,
}

impl Batch {
    pub fn set_fields(&mut self, fields: Vec<Field>, limit_bytes: u64) {
        self.fields = fields;
        self.limit_bytes = limit_bytes;
    }

    pub fn expect(&mut self, samples: i64) {
        self.samples = samples;
        self.tensors.clear();
        self.tensors.resize_with(self.fields.len(), || None);
        self.bytes_left = self.limit_bytes;
        self.open = true;
    }

    /// The tensors in the order of the fields.
    ///
    /// # Errors
    /// Names a field that did not come.
    pub fn finish(&mut self) -> Result<Vec<Tensor>, String> {
        self.open = false;
        match self.tensors.iter().position(Option::is_none) {
            Some(missing) => Err(format!("field `{}` was not emitted", self.fields[missing].name)),
            None => Ok(self.tensors.drain(..).flatten().collect()),
        }
    }

    /// The shape that `field` has in this batch, if what the guest says of it is true.
    fn admit(&mut self, field: u32, kind: Kind, shape: &[u64], len: usize) -> Result<Vec<i64>, String> {
        if !self.open {
            return Err("`emit` was called outside of `batch`".into());
        }
        let index = field as usize;
        let Some(Field { name, dtype, shape: sample }) = self.fields.get(index) else {
            let last = self.fields.len().saturating_sub(1);
            return Err(format!("field {field} was emitted; the fields are 0 to {last}"));
        };
        if self.tensors[index].is_some() {
            return Err(format!("field `{name}` was emitted twice"));
        }
        let mut expected = Vec::with_capacity(sample.len() + 1);
        expected.push(self.samples);
        expected.extend_from_slice(sample);
        let same = shape.len() == expected.len() && shape.iter().zip(&expected).all(|(&a, &b)| a == b as u64);
        if kind != *dtype || !same {
            let came = format!("{}{shape:?}", super::dtype::kind_name(kind));
            return Err(format!(
                "field `{name}` came as {came} and should be {}",
                describe(*dtype, &expected)
            ));
        }
        // Cannot overflow: a sample is at most `batch_bytes` and the samples of a batch are too (`Dataset::batch`).
        let bytes = expected.iter().product::<i64>() as u64 * kind.elt_size_in_bytes() as u64;
        if len as u64 != bytes {
            let what = describe(kind, &expected);
            return Err(format!("field `{name}` came with {len} bytes; {what} has {bytes}"));
        }
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            let limit = human::bytes(self.limit_bytes);
            format!(
                "field `{name}` with its {} makes the batch larger than its limit, {limit} (`plugins.batch_mb`)",
                human::bytes(bytes)
            )
        })?;
        Ok(expected)
    }
}

pub fn add_to_linker(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(&format!("{PACKAGE}/output@{VERSION}"))?.func_wrap("emit", emit)
}

type Emitted = (u32, Dtype, WasmList<u64>, WasmList<u8>);

fn emit(
    mut store: StoreContextMut<'_, State>,
    (field, dtype, shape, bytes): Emitted,
) -> wasmtime::Result<()> {
    let kind = kind_of(dtype);
    // Longer than any tensor's: refused below, after a look at its beginning.
    let dims = shape.as_le_slice(&store);
    let dims: Vec<u64> = dims[..dims.len().min(16)].to_vec();
    let len = bytes.as_le_slice(&store).len();
    let shape = store.data_mut().batch.admit(field, kind, &dims, len).map_err(Refusal::data)?;
    let bytes = bytes.as_le_slice(&store);
    if kind == Kind::Bool && bytes.iter().any(|&byte| byte > 1) {
        // libtorch's kernels may take any other byte for a bool as they like.
        return Err(Refusal::data("a boolean is neither 0 nor 1"));
    }
    let tensor = Tensor::f_from_data_size(bytes, &shape, kind)
        .map_err(|error| Refusal::data(format!("a batch of {} bytes: {error}", bytes.len())))?;
    store.data_mut().batch.tensors[field as usize] = Some(tensor);
    Ok(())
}
