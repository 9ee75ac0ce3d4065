//! Names in Python: of variables and classes, each once.

use std::collections::BTreeSet;

const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// What every `nn.Module` keeps in itself: a part of it that is called so would take the place.
const KEPT: [&str; 17] = [
    "training",
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_backward_pre_hooks",
    "_backward_hooks",
    "_is_full_backward_hook",
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
];

/// What every `nn.Module` can do: a part that is called so is not read by its name.
const METHODS: [&str; 53] = [
    "add_module",
    "apply",
    "bfloat16",
    "buffers",
    "call_super_init",
    "children",
    "compile",
    "cpu",
    "cuda",
    "double",
    "dump_patches",
    "eval",
    "extra_repr",
    "float",
    "forward",
    "get_buffer",
    "get_extra_state",
    "get_parameter",
    "get_submodule",
    "half",
    "ipu",
    "load_state_dict",
    "modules",
    "mtia",
    "named_buffers",
    "named_children",
    "named_modules",
    "named_parameters",
    "parameters",
    "register_backward_hook",
    "register_buffer",
    "register_forward_hook",
    "register_forward_pre_hook",
    "register_full_backward_hook",
    "register_full_backward_pre_hook",
    "register_load_state_dict_post_hook",
    "register_load_state_dict_pre_hook",
    "register_module",
    "register_parameter",
    "register_state_dict_post_hook",
    "register_state_dict_pre_hook",
    "requires_grad_",
    "set_extra_state",
    "set_submodule",
    "share_memory",
    "state_dict",
    "to",
    "to_empty",
    "train",
    "type",
    "xpu",
    "zero_grad",
    "T_destination",
];

/// Can a part of an `nn.Module` not be called so?
pub fn is_kept(name: &str) -> bool {
    KEPT.contains(&name)
}

/// Can `self.NAME = ...` stand in a class? With two underscores in front Python would change it.
pub fn is_attribute(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let begins = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins && name.chars().all(fits) && !name.starts_with("__") && !KEYWORDS.contains(&name)
}

/// A part of a module as it is made: what stands on the left of `=`, and its end behind the right.
pub fn assigned(name: &str) -> (String, &'static str) {
    match is_attribute(name) {
        true => (format!("self.{name} = "), ""),
        // Whatever is there already `add_module` refuses, as Python's own `__init__`.
        false if name.starts_with("__") => (format!("setattr(self, \"{name}\", "), ")"),
        false => (format!("self.add_module(\"{name}\", "), ")"),
    }
}

/// A part of a module as it is read.
pub fn read(name: &str) -> String {
    match is_attribute(name) && !METHODS.contains(&name) {
        true => format!("self.{name}"),
        false => format!("self._modules[\"{name}\"]"),
    }
}

/// Names that are in use.
pub struct Names(BTreeSet<String>);

impl Names {
    pub fn with<'a>(taken: impl IntoIterator<Item = &'a str>) -> Names {
        Names(taken.into_iter().map(Into::into).collect())
    }

    /// A variable that is called as `wanted`, as far as that is possible.
    pub fn variable(&mut self, wanted: &str) -> String {
        let mut name: String =
            wanted.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        self.free(name, "_")
    }

    /// A class for a module that is called `module`.
    pub fn class(&mut self, module: &str) -> String {
        let words = module.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
        let name: String = words.map(|word| word[..1].to_ascii_uppercase() + &word[1..]).collect();
        let begins = name.starts_with(|c: char| c.is_ascii_alphabetic());
        self.free(if begins { name } else { format!("Module{name}") }, "")
    }

    fn free(&mut self, name: String, between: &str) -> String {
        let numbered = (2..).map(|number| format!("{name}{between}{number}"));
        let is_free = |name: &String| !KEYWORDS.contains(&name.as_str()) && !self.0.contains(name);
        let free = std::iter::once(name.clone()).chain(numbered).find(is_free).expect("numbers do not end");
        self.0.insert(free.clone());
        free
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_job_become_names_of_python_that_are_there_once() {
        let mut names = Names::with(["torch", "Model"]);
        let variables = ["user-rows", "user_rows", "2nd", "torch", "class"].map(|name| names.variable(name));
        assert_eq!(variables, ["user_rows", "user_rows_2", "_2nd", "torch_2", "class_2"]);
        let classes = ["user_rows", "user-rows", "model", "0", "_"].map(|name| names.class(name));
        assert_eq!(classes, ["UserRows", "UserRows2", "Model2", "Module0", "Module"]);
    }

    #[test]
    fn what_is_no_attribute_is_set_and_read_by_its_name() {
        assert_eq!(assigned("conv1"), ("self.conv1 = ".into(), ""));
        assert_eq!(assigned("0"), ("self.add_module(\"0\", ".into(), ")"));
        assert_eq!(
            ["user", "user-rows", "train", "__x"].map(read),
            [
                "self.user",
                "self._modules[\"user-rows\"]",
                "self._modules[\"train\"]",
                "self._modules[\"__x\"]"
            ]
        );
    }
}
