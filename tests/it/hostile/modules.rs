//! Core modules that implement a world of `plugins/wit/plugin.wit`, with bodies of random calls.

use std::sync::LazyLock;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use wasm_encoder::{
    BlockType, CodeSection, ConstExpr, DataSection, EntityType, ExportKind, ExportSection, Function,
    FunctionSection, GlobalSection, GlobalType, ImportSection, InstructionSink, MemArg, MemorySection,
    MemoryType, Module, RefType, TableSection, TableType, TypeSection, ValType,
};
use wit_component::StringEncoding;
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{InterfaceId, Resolve, Type, TypeDefKind, WorldId};

/// What a plug-in is made for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Form {
    Loss,
    RawLoss,
    Dataset,
}

impl Form {
    fn world(self) -> &'static str {
        match self {
            Form::Loss => "loss-plugin",
            Form::RawLoss => "raw-loss-plugin",
            Form::Dataset => "dataset-plugin",
        }
    }

    /// The interface, and its functions with how many numbers each is given. All return a pointer.
    fn exports(self) -> (&'static str, &'static [(&'static str, usize)]) {
        match self {
            Form::Loss => ("loss", &[("open", 2), ("compute", 5)]),
            Form::RawLoss => ("raw-loss", &[("open", 2), ("compute", 6)]),
            Form::Dataset => ("dataset", &[("open", 2), ("batch", 2)]),
        }
    }
}

/// Handles that the module has, at any time.
const POOL: u32 = 1024;
const HANDLES: u32 = 16;
/// Bytes that calls read lists and texts from, and that they write results to.
const SCRATCH: u32 = 2048;
const SCRATCH_BYTES: u32 = 2048;
/// What an export returns a pointer to.
const RESULT: u32 = 8192;
/// A field's record, its name and its shape.
const FIELD: u32 = 8448;
/// From here on `cabi_realloc` hands out memory.
const HEAP: i32 = 16384;

struct Package {
    resolve: Resolve,
    worlds: Vec<(&'static str, WorldId)>,
}

static PACKAGE: LazyLock<Package> = LazyLock::new(|| {
    let mut resolve = Resolve::default();
    let text = include_str!("../../../plugins/wit/plugin.wit");
    let package = resolve.push_str("plugin.wit", text).expect("the WIT is well-formed");
    let worlds = [Form::Loss, Form::RawLoss, Form::Dataset].map(|form| {
        let world = resolve.select_world(&[package], Some(form.world())).expect("a world of the WIT");
        (form.world(), world)
    });
    Package { resolve, worlds: worlds.into() }
});

/// A function that a module imports.
#[derive(Clone)]
struct Import {
    module: String,
    name: String,
    params: Vec<ValType>,
    /// What each parameter is for.
    roles: Vec<Role>,
    result: Option<ValType>,
}

#[derive(Clone, Copy)]
enum Role {
    Handle,
    Pointer,
    Length,
    /// One of so many.
    Case(u32),
    Any,
}

impl Import {
    /// Of the host's own interfaces, those that give an i32 without a pointer to put it give a handle, or as good as one.
    fn gives_handle(&self) -> bool {
        self.module.contains("tensors") && self.result == Some(ValType::I32)
    }
}

fn core(kind: &WasmType) -> ValType {
    match kind {
        WasmType::I64 | WasmType::PointerOrI64 => ValType::I64,
        WasmType::F32 => ValType::F32,
        WasmType::F64 => ValType::F64,
        WasmType::I32 | WasmType::Pointer | WasmType::Length => ValType::I32,
    }
}

/// What the numbers are for that a parameter is lowered to.
fn roles_of(kind: &Type) -> Vec<Role> {
    let Type::Id(id) = kind else {
        return match kind {
            Type::String => vec![Role::Pointer, Role::Length],
            Type::Bool => vec![Role::Case(2)],
            _ => vec![Role::Any],
        };
    };
    match &PACKAGE.resolve.types[*id].kind {
        TypeDefKind::Handle(_) => vec![Role::Handle],
        TypeDefKind::List(_) => vec![Role::Pointer, Role::Length],
        TypeDefKind::Enum(cases) => vec![Role::Case(cases.cases.len() as u32)],
        TypeDefKind::Option(some) => [vec![Role::Case(2)], roles_of(some)].concat(),
        TypeDefKind::Type(other) => roles_of(other),
        _ => vec![Role::Any],
    }
}

/// The functions of an interface, as the canonical ABI lowers them.
fn imports_of(interface: &str) -> Vec<Import> {
    let resolve = &PACKAGE.resolve;
    let named = |id: &InterfaceId| resolve.interfaces[*id].name.as_deref() == Some(interface);
    let id = resolve.interfaces.iter().map(|(id, _)| id).find(named).expect("an interface of the WIT");
    let module = resolve.id_of(id).expect("it is in a package");
    let functions = resolve.interfaces[id].functions.values().map(|function| {
        let signature = resolve.wasm_signature(AbiVariant::GuestImport, function);
        let mut roles: Vec<Role> = function.params.iter().flat_map(|param| roles_of(&param.ty)).collect();
        // Where the result is to be put.
        roles.resize(signature.params.len(), Role::Pointer);
        Import {
            module: module.clone(),
            name: function.name.clone(),
            params: signature.params.iter().map(core).collect(),
            roles,
            result: signature.results.first().map(core),
        }
    });
    let drop = (interface == "tensors").then(|| Import {
        module: module.clone(),
        name: "[resource-drop]tensor".into(),
        params: vec![ValType::I32],
        roles: vec![Role::Handle],
        result: None,
    });
    functions.chain(drop).collect()
}

/// WASI's first preview: `i` is an i32, `I` an i64; all but `proc_exit` give an i32.
const WASI: [(&str, &str); 46] = [
    ("args_get", "ii"),
    ("args_sizes_get", "ii"),
    ("environ_get", "ii"),
    ("environ_sizes_get", "ii"),
    ("clock_res_get", "ii"),
    ("clock_time_get", "iIi"),
    ("fd_advise", "iIIi"),
    ("fd_allocate", "iII"),
    ("fd_close", "i"),
    ("fd_datasync", "i"),
    ("fd_fdstat_get", "ii"),
    ("fd_fdstat_set_flags", "ii"),
    ("fd_fdstat_set_rights", "iII"),
    ("fd_filestat_get", "ii"),
    ("fd_filestat_set_size", "iI"),
    ("fd_filestat_set_times", "iIIi"),
    ("fd_pread", "iiiIi"),
    ("fd_prestat_get", "ii"),
    ("fd_prestat_dir_name", "iii"),
    ("fd_pwrite", "iiiIi"),
    ("fd_read", "iiii"),
    ("fd_readdir", "iiiIi"),
    ("fd_renumber", "ii"),
    ("fd_seek", "iIii"),
    ("fd_sync", "i"),
    ("fd_tell", "ii"),
    ("fd_write", "iiii"),
    ("path_create_directory", "iii"),
    ("path_filestat_get", "iiiii"),
    ("path_filestat_set_times", "iiiiIIi"),
    ("path_link", "iiiiiii"),
    ("path_open", "iiiiiIIii"),
    ("path_readlink", "iiiiii"),
    ("path_remove_directory", "iii"),
    ("path_rename", "iiiiii"),
    ("path_symlink", "iiiii"),
    ("path_unlink_file", "iii"),
    ("poll_oneoff", "iiii"),
    ("proc_exit", "i"),
    ("proc_raise", "i"),
    ("sched_yield", ""),
    ("random_get", "ii"),
    ("sock_accept", "iii"),
    ("sock_recv", "iiiiii"),
    ("sock_send", "iiiii"),
    ("sock_shutdown", "ii"),
];

fn wasi() -> impl Iterator<Item = Import> {
    WASI.iter().map(|(name, params)| Import {
        module: "wasi_snapshot_preview1".into(),
        name: (*name).into(),
        params: params.chars().map(|kind| if kind == 'i' { ValType::I32 } else { ValType::I64 }).collect(),
        roles: vec![Role::Any; params.len()],
        result: (*name != "proc_exit").then_some(ValType::I32),
    })
}

/// A random plug-in of one form: the same for the same seed. With or without calls of WASI.
pub fn random(seed: u64, form: Form, with_wasi: bool) -> Vec<u8> {
    build(seed, form, with_wasi, (1, 1))
}

fn build(seed: u64, form: Form, with_wasi: bool, tables: (u32, u64)) -> Vec<u8> {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let own = match form {
        Form::Loss => imports_of("tensors"),
        Form::RawLoss => Vec::new(),
        Form::Dataset => imports_of("output"),
    };
    let imports: Vec<Import> =
        own.into_iter().chain(imports_of("log")).chain(with_wasi.then(wasi).into_iter().flatten()).collect();
    Writer { form, imports: &imports, dice: &mut dice, tables }.module()
}

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
    let (name, value) = metric;
    let list = |at: u32, length: u32| [at.to_le_bytes(), length.to_le_bytes()].concat();
    let result = [vec![0; 8], loss.to_le_bytes().into(), list(FIELD, 1), list(FIELD + 8, 1)].concat();
    let metric = [list(SCRATCH, name.len() as u32), value.to_le_bytes().into()].concat();
    let data = vec![(RESULT, result), (FIELD + 8, metric), (SCRATCH, name.into())];
    module(Form::RawLoss, &[], (1, 1), vec![opens(), compute], data)
}

/// `open` of a loss: all is well.
fn opens() -> Function {
    let mut open = Function::new([]);
    open.instructions().i32_const(RESULT as i32).end();
    open
}

struct Dice(ChaCha8Rng);

impl Dice {
    fn below(&mut self, bound: u32) -> u32 {
        (self.0.next_u64() % u64::from(bound)) as u32
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.below(n) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u32) as usize]
    }

    fn integer(&mut self) -> i64 {
        match self.below(8) {
            0..5 => i64::from(self.below(10)) - 4,
            5 => 1i64.rotate_left(self.below(64)),
            6 => self.of(&[i64::MIN, i64::MAX, -1, i64::from(u32::MAX), i64::from(i32::MIN), 1 << 40]),
            _ => self.0.next_u64() as i64,
        }
    }

    fn number(&mut self) -> f64 {
        match self.below(4) {
            0 => f64::from(self.below(100)) / 10.0 - 5.0,
            1 => f64::from_bits(self.0.next_u64()),
            _ => self.of(&[
                f64::NAN,
                f64::INFINITY,
                f64::NEG_INFINITY,
                1e300,
                -1e300,
                1e308,
                65505.0,
                0.0,
                -0.0,
                3.5e38,
            ]),
        }
    }
}

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
    let i32s = |n: usize| vec![ValType::I32; n];
    let (interface, calls) = form.exports();
    let (mut functions, mut exports, mut code) =
        (FunctionSection::new(), ExportSection::new(), CodeSection::new());
    for (((name, params), body), own) in calls.iter().zip(&bodies).zip(imported.len() as u32..) {
        types.ty().function(i32s(*params), Some(ValType::I32));
        functions.function(own);
        exports.export(&format!("pstrain:plugin/{interface}@0.1.0#{name}"), ExportKind::Func, own);
        code.function(body);
    }
    let realloc = (imported.len() + calls.len()) as u32;
    types.ty().function(i32s(4), Some(ValType::I32));
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

struct Writer<'a> {
    form: Form,
    imports: &'a [Import],
    dice: &'a mut Dice,
    /// How many, and of how many elements each.
    tables: (u32, u64),
}

/// Indices of what a module defines itself, behind its imports.
const OWN_GLOBAL_HEAP: u32 = 0;

fn at(offset: u32) -> MemArg {
    MemArg { offset: offset.into(), align: 0, memory_index: 0 }
}

impl Writer<'_> {
    fn module(&mut self) -> Vec<u8> {
        let first = self.imports.len() as u32;
        let exports = self.form.exports().1.iter().zip(first..);
        let bodies = exports.map(|((name, params), own)| self.body(name, *params as u32, own)).collect();
        let data = self.data();
        module(self.form, self.imports, self.tables, bodies, data)
    }

    /// What an export does: some statements, then a result.
    fn body(&mut self, name: &str, params: u32, own: u32) -> Function {
        let mut function = Function::new([(1, ValType::I32)]);
        let count = params;
        let mut sink = function.instructions();
        if self.form == Form::Loss && name == "compute" {
            for nth in 0..HANDLES {
                // The first output, or the first target.
                let list = if nth % 3 == 2 { 2 } else { 0 };
                sink.i32_const((POOL + 4 * nth) as i32).local_get(list).i32_load(at(0)).i32_store(at(0));
            }
        }
        let statements = match name {
            // A loss has no tensors yet.
            "open" if self.form == Form::Loss => u32::from(self.dice.one_in(12)),
            "open" => self.dice.below(3),
            _ => 1 + self.dice.below(12),
        };
        for _ in 0..statements {
            match self.dice.below(24) {
                0 => self.loops(&mut sink, count),
                1 => {
                    sink.i32_const(self.dice.integer() as i32).memory_grow(0).drop();
                }
                2 => {
                    sink.ref_null(wasm_encoder::HeapType::FUNC)
                        .i32_const(self.dice.integer() as i32)
                        .table_grow(0)
                        .drop();
                }
                3 if self.dice.one_in(4) => {
                    // Calls itself without end.
                    (0..params).for_each(|param| {
                        sink.local_get(param);
                    });
                    sink.call(own).drop();
                }
                4 if self.dice.one_in(4) => {
                    sink.i32_const(self.dice.integer() as i32).i32_load(at(0)).drop();
                }
                _ => self.call(&mut sink),
            }
        }
        self.result(&mut sink, name);
        sink.end();
        function
    }

    /// A call that is repeated a few times, many times or for ever.
    fn loops(&mut self, sink: &mut InstructionSink<'_>, count: u32) {
        let times = self.dice.of(&[10, 1000, 100_000, i32::MAX]);
        sink.i32_const(times).local_set(count).loop_(BlockType::Empty);
        self.call(sink);
        sink.local_get(count).i32_const(1).i32_sub().local_tee(count).br_if(0).end();
    }

    fn call(&mut self, sink: &mut InstructionSink<'_>) {
        let Some(nth) = (!self.imports.is_empty()).then(|| self.dice.below(self.imports.len() as u32)) else {
            return;
        };
        let import = self.imports[nth as usize].clone();
        if import.gives_handle() {
            sink.i32_const((POOL + 4 * self.dice.below(HANDLES)) as i32);
        }
        for (param, role) in import.params.iter().zip(&import.roles) {
            self.argument(sink, *param, *role);
        }
        sink.call(nth);
        match import.result {
            Some(_) if import.gives_handle() => {
                sink.i32_store(at(0));
            }
            Some(_) => {
                sink.drop();
            }
            None => {}
        }
    }

    fn argument(&mut self, sink: &mut InstructionSink<'_>, kind: ValType, role: Role) {
        match kind {
            ValType::I64 => sink.i64_const(self.dice.integer()),
            ValType::F64 => sink.f64_const(self.dice.number().into()),
            ValType::F32 => sink.f32_const((self.dice.number() as f32).into()),
            _ if self.dice.one_in(40) => sink.i32_const(self.dice.integer() as i32),
            _ => {
                let pointer = (SCRATCH + 8 * self.dice.below(SCRATCH_BYTES / 16)) as i32;
                let small = self.dice.below(4) as i32;
                match role {
                    Role::Handle => {
                        sink.i32_const((POOL + 4 * self.dice.below(HANDLES)) as i32).i32_load(at(0))
                    }
                    Role::Pointer => sink.i32_const(pointer),
                    Role::Length => sink.i32_const(small),
                    Role::Case(of) => sink.i32_const(self.dice.below(of) as i32),
                    Role::Any => sink.i32_const(if self.dice.one_in(2) { pointer } else { small }),
                }
            }
        };
    }

    /// Leaves the pointer to a result: mostly of the right form, with what the data have there.
    fn result(&mut self, sink: &mut InstructionSink<'_>, name: &str) {
        if self.dice.one_in(12) {
            sink.i32_const(self.dice.integer() as i32);
            return;
        }
        if self.form == Form::Loss && name == "compute" {
            let sum = self.imports.iter().position(|import| import.name == "[method]tensor.sum");
            let handle = (POOL + 4 * self.dice.below(HANDLES)) as i32;
            sink.i32_const(RESULT as i32 + 4).i32_const(handle).i32_load(at(0));
            sink.i32_const(0)
                .i32_const(0)
                .i32_const(0)
                .call(sum.expect("an operation") as u32)
                .i32_store(at(0));
        }
        // `open` of a loss and `batch` have another form of result, whose first byte is at the same place.
        sink.i32_const(RESULT as i32);
    }

    /// Where what lies in memory at the start.
    fn data(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut scratch = Vec::new();
        while scratch.len() < SCRATCH_BYTES as usize {
            scratch.extend(self.dice.integer().to_le_bytes());
        }
        let wrong = u32::from(self.dice.one_in(10));
        let list = |at: u32, length: u32| [at.to_le_bytes(), length.to_le_bytes()].concat();
        let result = match self.form {
            // A handle, and no metrics or wild ones.
            Form::Loss => [wrong.to_le_bytes().into(), vec![0; 4], list(SCRATCH, self.metrics())].concat(),
            Form::RawLoss => [
                [wrong.to_le_bytes(), [0; 4]].concat(),
                self.dice.number().to_le_bytes().into(),
                // One gradient, of 24 bytes where all is well.
                list(FIELD, 1),
                list(SCRATCH, self.metrics()),
            ]
            .concat(),
            Form::Dataset => [
                [wrong.to_le_bytes(), [0; 4]].concat(),
                self.samples().to_le_bytes().into(),
                list(FIELD, if self.dice.one_in(8) { self.dice.integer() as u32 } else { 1 }),
            ]
            .concat(),
        };
        let field = match self.form {
            Form::RawLoss => list(SCRATCH, if self.dice.one_in(4) { self.dice.integer() as u32 } else { 24 }),
            _ => {
                let dtype = self.dice.below(11);
                [list(FIELD + 64, 1), dtype.to_le_bytes().into(), list(FIELD + 72, self.dice.below(3))]
                    .concat()
            }
        };
        let size = if self.dice.one_in(4) { self.dice.integer() } else { 2 };
        let sizes = [2i64.to_le_bytes(), size.to_le_bytes()].concat();
        vec![
            (SCRATCH, scratch),
            (RESULT, result),
            (FIELD, field),
            (FIELD + 64, b"x".into()),
            (FIELD + 72, sizes),
        ]
    }

    fn metrics(&mut self) -> u32 {
        if self.dice.one_in(8) { self.dice.integer() as u32 } else { 0 }
    }

    fn samples(&mut self) -> u64 {
        if self.dice.one_in(4) { self.dice.integer() as u64 } else { 10 }
    }
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

/// A raw loss with so many tables of so many elements, made when it is started.
pub fn tables(count: u32, elements: u64) -> Vec<u8> {
    // One that opens.
    build(2, Form::RawLoss, false, (count, elements))
}
