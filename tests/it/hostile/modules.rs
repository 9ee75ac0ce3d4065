//! Core modules that implement a world of `plugins/wit/plugin.wit`.

use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, GlobalSection, GlobalType, ImportSection, MemArg, MemorySection, MemoryType, Module,
    RefType, TableSection, TableType, TypeSection, ValType,
};
use wit_component::StringEncoding;

/// Bodies of one purpose.
mod made;
/// Bodies of random calls.
mod random;
/// What a module may import.
mod world;

pub use made::{Repeats, hard_to_compile, raw_loss, raw_loss_without_numbers, repeating};
pub use random::{random, tables};

use world::{Import, PACKAGE, numbers};

/// What a plug-in is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    Loss,
    /// One that says by what its mean is weighed.
    WeighedLoss,
    RawLoss,
    Dataset,
    Metric,
}

impl Form {
    pub const ALL: [Form; 5] = [Form::Loss, Form::WeighedLoss, Form::RawLoss, Form::Dataset, Form::Metric];

    fn world(self) -> &'static str {
        match self {
            Form::Loss => "loss-plugin",
            Form::WeighedLoss => "weighed-loss-plugin",
            Form::RawLoss => "raw-loss-plugin",
            Form::Dataset => "dataset-plugin",
            Form::Metric => "metric-plugin",
        }
    }

    /// Its functions, each with its interface and what it is given: `i` is an i32, `I` an i64. All return an i32, which is a
    /// pointer, but for `weighs`, whose is the result.
    fn exports(self) -> &'static [(&'static str, &'static str, &'static str)] {
        match self {
            Form::Loss => &[("loss", "open", "ii"), ("loss", "compute", "iiiii")],
            Form::WeighedLoss => &[
                ("loss", "open", "ii"),
                ("loss", "compute", "iiiii"),
                ("loss-weight", "weighs", ""),
                ("loss-weight", "weigh", "ii"),
            ],
            Form::RawLoss => &[("raw-loss", "open", "ii"), ("raw-loss", "compute", "iiiiii")],
            Form::Dataset => &[("dataset", "open", "iiiii"), ("dataset", "batch", "iiiiI")],
            Form::Metric => &[
                ("metric", "open", "ii"),
                ("metric", "update", "iiii"),
                ("metric", "state", ""),
                ("metric", "merge", "ii"),
                ("metric", "value", ""),
            ],
        }
    }

    /// Whether it composes operations on tensors.
    fn has_tensors(self) -> bool {
        matches!(self, Form::Loss | Form::WeighedLoss)
    }
}

/// Handles that the module has, at any time.
const POOL: u32 = 1024;
const HANDLES: u32 = 16;
/// Bytes that calls read lists and texts from, and that they write results to.
const SCRATCH: u32 = 2048;
const SCRATCH_BYTES: u32 = 2048;
/// What an export returns a pointer to, and what `weigh` does.
const RESULT: u32 = 8192;
const WEIGHT: u32 = RESULT + 64;
/// A field's record, its name and its shape.
const FIELD: u32 = 8448;
/// From here on `cabi_realloc` hands out memory.
const HEAP: i32 = 16384;

/// A plug-in of these bodies, in the order of the form's exports, with its memory as `data` has it.
fn module(
    form: Form,
    imported: &[Import],
    (tables_count, elements): (u32, u64),
    bodies: Vec<Function>,
    contents: Vec<(u32, Vec<u8>)>,
) -> Vec<u8> {
    let mut module = Module::new();
    let (mut types, mut imports) = (TypeSection::new(), ImportSection::new());
    for (nth, import) in imported.iter().enumerate() {
        types.ty().function(import.params.iter().copied(), import.result);
        imports.import(&import.module, &import.name, EntityType::Function(nth as u32));
    }
    let calls = form.exports();
    let (mut functions, mut exports, mut code) =
        (FunctionSection::new(), ExportSection::new(), CodeSection::new());
    for (((interface, name, params), body), own) in calls.iter().zip(&bodies).zip(imported.len() as u32..) {
        types.ty().function(numbers(params), Some(ValType::I32));
        functions.function(own);
        exports.export(&format!("pstrain:plugin/{interface}@0.2.0#{name}"), ExportKind::Func, own);
        code.function(body);
    }
    let realloc = (imported.len() + calls.len()) as u32;
    types.ty().function(numbers("iiii"), Some(ValType::I32));
    functions.function(realloc);
    exports.export("cabi_realloc", ExportKind::Func, realloc).export("memory", ExportKind::Memory, 0);
    code.function(&realloc_body());

    let mut tables = TableSection::new();
    for _ in 0..tables_count {
        let element_type = RefType::FUNCREF;
        tables.table(TableType {
            element_type,
            table64: false,
            minimum: elements,
            maximum: None,
            shared: false,
        });
    }
    let mut memories = MemorySection::new();
    memories.memory(MemoryType {
        minimum: 2,
        maximum: None,
        memory64: false,
        shared: false,
        page_size_log2: None,
    });
    let mut globals = GlobalSection::new();
    let heap = GlobalType { val_type: ValType::I32, mutable: true, shared: false };
    globals.global(heap, &ConstExpr::i32_const(HEAP));
    let mut data = DataSection::new();
    for (offset, bytes) in contents {
        data.active(0, &ConstExpr::i32_const(offset as i32), bytes);
    }
    module.section(&types).section(&imports).section(&functions).section(&tables).section(&memories);
    module.section(&globals).section(&exports).section(&code).section(&data);
    let mut bytes = module.finish();
    let (_, world) =
        PACKAGE.worlds.iter().find(|(name, _)| *name == form.world()).expect("each form has one");
    wit_component::embed_component_metadata(&mut bytes, &PACKAGE.resolve, *world, StringEncoding::UTF8)
        .expect("the world is encoded");
    bytes
}

/// Indices of what a module defines itself, behind its imports.
const OWN_GLOBAL_HEAP: u32 = 0;

fn at(offset: u32) -> MemArg {
    MemArg { offset: offset.into(), align: 0, memory_index: 0 }
}

/// Hands out memory and takes none back.
fn realloc_body() -> Function {
    let mut function = Function::new([]);
    let mut sink = function.instructions();
    // The old size is what stands on the stack until the end.
    sink.global_get(OWN_GLOBAL_HEAP);
    sink.global_get(OWN_GLOBAL_HEAP).local_get(3).i32_add().i32_const(15).i32_add().i32_const(-16).i32_and();
    sink.global_set(OWN_GLOBAL_HEAP);
    sink.block(BlockType::Empty);
    sink.global_get(OWN_GLOBAL_HEAP).memory_size(0).i32_const(16).i32_shl().i32_lt_u().br_if(0);
    sink.local_get(3).i32_const(16).i32_shr_u().i32_const(1).i32_add().memory_grow(0);
    sink.i32_const(-1).i32_ne().br_if(0).unreachable().end();
    sink.end();
    function
}
