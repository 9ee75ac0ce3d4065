//! The worlds of plug-ins, and what a module imports, as the canonical ABI lowers it.

use std::sync::LazyLock;

use wasm_encoder::ValType;
use wit_parser::abi::{AbiVariant, WasmType};
use wit_parser::{InterfaceId, Resolve, Type, TypeDefKind, WorldId};

use super::Form;

pub struct Package {
    pub resolve: Resolve,
    pub worlds: Vec<(&'static str, WorldId)>,
}

pub static PACKAGE: LazyLock<Package> = LazyLock::new(|| {
    let mut resolve = Resolve::default();
    let text = include_str!("../../../../plugins/wit/plugin.wit");
    let package = resolve.push_str("plugin.wit", text).expect("the WIT is well-formed");
    let worlds = Form::ALL.map(|form| {
        let world = resolve.select_world(&[package], Some(form.world())).expect("a world of the WIT");
        (form.world(), world)
    });
    Package { resolve, worlds: worlds.into() }
});

/// A function that a module imports.
#[derive(Clone)]
pub struct Import {
    pub module: String,
    pub name: String,
    pub params: Vec<ValType>,
    /// What each parameter is for.
    pub roles: Vec<Role>,
    pub result: Option<ValType>,
}

#[derive(Clone, Copy)]
pub enum Role {
    Handle,
    Pointer,
    Length,
    /// One of so many.
    Case(u32),
    Any,
}

impl Import {
    /// Whether it gives a handle, or as good as one: those of the host's own interfaces do that give an i32 without a pointer
    /// to put it.
    pub fn gives_handle(&self) -> bool {
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
pub fn imports_of(interface: &str) -> Vec<Import> {
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

/// `i` is an i32, `I` an i64.
pub fn numbers(kinds: &str) -> Vec<ValType> {
    kinds.chars().map(|kind| if kind == 'i' { ValType::I32 } else { ValType::I64 }).collect()
}

pub fn wasi() -> impl Iterator<Item = Import> {
    WASI.iter().map(|(name, params)| Import {
        module: "wasi_snapshot_preview1".into(),
        name: (*name).into(),
        params: numbers(params),
        roles: vec![Role::Any; params.len()],
        result: (*name != "proc_exit").then_some(ValType::I32),
    })
}
