//! Plug-ins whose bodies are random calls.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng as _};
use wasm_encoder::{BlockType, Function, InstructionSink, ValType};

use super::world::{Import, Role, imports_of, wasi};
use super::{FIELD, Form, HANDLES, POOL, RESULT, SCRATCH, SCRATCH_BYTES, WEIGHT, at, module};

/// A random plug-in of one form: the same for the same seed. With or without calls of WASI.
pub fn random(seed: u64, form: Form, with_wasi: bool) -> Vec<u8> {
    build(seed, form, with_wasi, (1, 1))
}

fn build(seed: u64, form: Form, with_wasi: bool, tables: (u32, u64)) -> Vec<u8> {
    let mut dice = Dice(ChaCha8Rng::seed_from_u64(seed));
    let own = match form {
        Form::Loss | Form::WeighedLoss => imports_of("tensors"),
        Form::RawLoss | Form::Metric => Vec::new(),
        Form::Dataset => imports_of("output"),
    };
    let imports: Vec<Import> =
        own.into_iter().chain(imports_of("log")).chain(with_wasi.then(wasi).into_iter().flatten()).collect();
    Writer { form, imports: &imports, dice: &mut dice, tables }.module()
}

/// A raw loss with so many tables of so many elements, made when it is started.
pub fn tables(count: u32, elements: u64) -> Vec<u8> {
    // One that opens.
    build(2, Form::RawLoss, false, (count, elements))
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

struct Writer<'a> {
    form: Form,
    imports: &'a [Import],
    dice: &'a mut Dice,
    /// How many, and of how many elements each.
    tables: (u32, u64),
}

impl Writer<'_> {
    fn module(&mut self) -> Vec<u8> {
        let first = self.imports.len() as u32;
        let exports = self.form.exports().iter().zip(first..);
        let bodies =
            exports.map(|((_, name, params), own)| self.body(name, params.len() as u32, own)).collect();
        let data = self.data();
        module(self.form, self.imports, self.tables, bodies, data)
    }

    /// What an export does: some statements, then a result.
    fn body(&mut self, name: &str, params: u32, own: u32) -> Function {
        let mut function = Function::new([(1, ValType::I32)]);
        let count = params;
        let mut sink = function.instructions();
        if self.form.has_tensors() && matches!(name, "compute" | "weigh") {
            for nth in 0..HANDLES {
                // The first output, or the first target, which is all that `weigh` is given.
                let list = if nth % 3 == 2 && name == "compute" { 2 } else { 0 };
                sink.i32_const((POOL + 4 * nth) as i32).local_get(list).i32_load(at(0)).i32_store(at(0));
            }
        }
        let statements = match name {
            // A loss has no tensors yet.
            "open" | "weighs" if self.form.has_tensors() => u32::from(self.dice.one_in(12)),
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
        if name == "weighs" {
            sink.i32_const(self.dice.below(3) as i32);
            return;
        }
        if name == "weigh" {
            sink.i32_const(WEIGHT as i32);
            return;
        }
        if self.form.has_tensors() && name == "compute" {
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
            Form::Loss | Form::WeighedLoss => {
                [wrong.to_le_bytes().into(), vec![0; 4], list(SCRATCH, self.metrics())].concat()
            }
            Form::RawLoss => [
                [wrong.to_le_bytes(), [0; 4]].concat(),
                self.dice.number().to_le_bytes().into(),
                // One gradient, of 24 bytes where all is well.
                list(FIELD, 1),
                list(SCRATCH, self.metrics()),
            ]
            .concat(),
            // A state, whose length says of a figure whether it is several; and that figure.
            Form::Metric => [
                wrong.to_le_bytes().into(),
                list(SCRATCH, self.dice.below(3)),
                vec![0; 4],
                if self.dice.one_in(2) { self.number() } else { list(FIELD, self.dice.below(3)) },
            ]
            .concat(),
            Form::Dataset => [
                [wrong.to_le_bytes(), [0; 4]].concat(),
                self.samples().to_le_bytes().into(),
                list(FIELD, if self.dice.one_in(8) { self.dice.integer() as u32 } else { 1 }),
                // Whether there is a state, and which.
                self.dice.below(3).to_le_bytes().into(),
                list(SCRATCH, self.dice.integer() as u32),
            ]
            .concat(),
        };
        // In the places of a weight.
        let weight = [[wrong.to_le_bytes(), [0; 4]].concat(), self.number(), self.number()].concat();
        let field = match self.form {
            Form::Metric => [list(FIELD + 64, 1), self.dice.number().to_le_bytes().into()].concat(),
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
            (WEIGHT, weight),
            (FIELD, field),
            (FIELD + 64, b"x".into()),
            (FIELD + 72, sizes),
        ]
    }

    fn number(&mut self) -> Vec<u8> {
        self.dice.number().to_le_bytes().into()
    }

    fn metrics(&mut self) -> u32 {
        if self.dice.one_in(8) { self.dice.integer() as u32 } else { 0 }
    }

    fn samples(&mut self) -> u64 {
        if self.dice.one_in(4) { self.dice.integer() as u64 } else { 10 }
    }
}
