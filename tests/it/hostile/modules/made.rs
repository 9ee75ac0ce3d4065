//! Plug-ins that do one thing.

use wasm_encoder::{BlockType, CodeSection, Function, FunctionSection, Module, TypeSection, ValType};

use super::world::{Import, imports_of};
use super::{FIELD, Form, RESULT, SCRATCH, at, module};

/// A loss that does one thing again and again.
pub enum Repeats {
    /// `narrow(0, 0, 1)` of the first output.
    Narrow,
    /// A warning of 1,000 letters in the log.
    Log,
}

/// A loss of the mean of the first output, after so many repetitions.
pub fn repeating(what: Repeats, times: i32) -> Vec<u8> {
    let imports: Vec<Import> = imports_of("tensors").into_iter().chain(imports_of("log")).collect();
    let call = |name: &str| imports.iter().position(|import| import.name == name).expect("a function") as u32;
    let (narrow, mean, log, drop) = (
        call("[method]tensor.narrow"),
        call("[method]tensor.mean"),
        call("log"),
        call("[resource-drop]tensor"),
    );
    let mut compute = Function::new([(1, ValType::I32)]);
    let mut sink = compute.instructions();
    let counter = 5;
    sink.i32_const(times).local_set(counter).loop_(BlockType::Empty);
    match what {
        Repeats::Narrow => {
            sink.local_get(0).i32_load(at(0)).i64_const(0).i64_const(0).i64_const(1).call(narrow).call(drop)
        }
        Repeats::Log => sink.i32_const(2).i32_const(SCRATCH as i32).i32_const(1000).call(log),
    };
    sink.local_get(counter).i32_const(1).i32_sub().local_tee(counter).br_if(0).end();
    sink.i32_const(RESULT as i32 + 4).local_get(0).i32_load(at(0));
    sink.i32_const(0).i32_const(0).i32_const(0).call(mean).i32_store(at(0));
    sink.i32_const(RESULT as i32).end();
    let scratch = (SCRATCH, vec![b'x'; 1000]);
    module(Form::Loss, &imports, (1, 1), vec![opens(), compute], vec![scratch])
}

/// A raw loss that says `loss`, gives the outputs back as their gradient, and reports one metric.
pub fn raw_loss(loss: f64, metric: (&str, f64)) -> Vec<u8> {
    let mut compute = Function::new([]);
    let mut sink = compute.instructions();
    // The list of bytes of the first output.
    sink.i32_const(FIELD as i32).local_get(0).i64_load(at(12)).i64_store(at(0));
    sink.i32_const(RESULT as i32).end();
    with_result(loss, metric, compute, Vec::new())
}

/// A raw loss that says 1, with a gradient that begins with 4 KiB of NaN.
pub fn raw_loss_without_numbers() -> Vec<u8> {
    let nan_at = FIELD as i64 + 256;
    let mut compute = Function::new([]);
    let mut sink = compute.instructions();
    // As many bytes as the first output has, from there on.
    sink.i32_const(FIELD as i32).local_get(0).i64_load(at(12)).i64_const(-1 << 32).i64_and();
    sink.i64_const(nan_at).i64_or().i64_store(at(0));
    sink.i32_const(RESULT as i32).end();
    with_result(1.0, ("mine", 1.0), compute, vec![(nan_at as u32, vec![0xff; 4096])])
}

fn with_result(loss: f64, metric: (&str, f64), compute: Function, more: Vec<(u32, Vec<u8>)>) -> Vec<u8> {
    let (name, value) = metric;
    let list = |at: u32, length: u32| [at.to_le_bytes(), length.to_le_bytes()].concat();
    let result = [vec![0; 8], loss.to_le_bytes().into(), list(FIELD, 1), list(FIELD + 8, 1)].concat();
    let metric = [list(SCRATCH, name.len() as u32), value.to_le_bytes().into()].concat();
    let data = [vec![(RESULT, result), (FIELD + 8, metric), (SCRATCH, name.into())], more].concat();
    module(Form::RawLoss, &[], (1, 1), vec![opens(), compute], data)
}

/// `open` of a loss: all is well.
fn opens() -> Function {
    let mut open = Function::new([]);
    open.instructions().i32_const(RESULT as i32).end();
    open
}

/// A module of one function whose compiling takes long: so many locals that live through so many blocks.
pub fn hard_to_compile(locals: u32, blocks: u32) -> Vec<u8> {
    let mut module = Module::new();
    let mut types = TypeSection::new();
    types.ty().function([], []);
    let mut functions = FunctionSection::new();
    functions.function(0);
    let mut function = Function::new([(locals, ValType::I64)]);
    let mut sink = function.instructions();
    sink.loop_(BlockType::Empty);
    for nth in 0..blocks {
        sink.local_get(nth % locals).i64_eqz().if_(BlockType::Empty);
        sink.local_get((nth * 7) % locals).local_set((nth * 13) % locals).end();
    }
    sink.local_get(0).i64_eqz().br_if(0).end().end();
    let mut code = CodeSection::new();
    code.function(&function);
    module.section(&types).section(&functions).section(&code);
    module.finish()
}
