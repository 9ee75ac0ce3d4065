//! Layers as expressions of Python: what makes each in a module of PyTorch, with the same names of parameters and buffers.

/// A layer as it stands in a file of Python.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Python {
    /// The class that it is made of, such as `nn.Linear`.
    class: String,
    arguments: Vec<String>,
    /// What it needs beside torch, each behind those that it builds on.
    classes: Vec<Class>,
}

/// The source of a class that torch has not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Class(pub &'static str);

impl Class {
    pub fn name(&self) -> &'static str {
        let behind = self.0.trim_start().strip_prefix("class ").expect("it begins with its name");
        behind.split(['(', ':']).next().unwrap_or_default()
    }

    pub fn source(&self) -> &'static str {
        self.0.trim()
    }
}

impl Python {
    /// One that torch has, such as `nn.Linear`.
    pub(super) fn torch(class: impl Into<String>) -> Python {
        Python { class: class.into(), arguments: Vec::new(), classes: Vec::new() }
    }

    /// One of a class of its own.
    pub(super) fn own(class: Class) -> Python {
        Python { classes: vec![class], ..Python::torch(class.name()) }
    }

    /// With a class that its own builds on.
    pub(super) fn above(mut self, class: Class) -> Python {
        self.classes.insert(0, class);
        self
    }

    pub(super) fn with(mut self, argument: impl Value) -> Python {
        self.arguments.push(argument.written());
        self
    }

    /// With an argument before all others.
    pub(super) fn first(mut self, argument: impl Value) -> Python {
        self.arguments.insert(0, argument.written());
        self
    }

    /// An argument by its name, which is left out where it has PyTorch's `default`.
    pub(super) fn named<V: Value>(mut self, name: &str, value: V, default: V) -> Python {
        let value = value.written();
        if value != default.written() {
            self.arguments.push(format!("{name}={value}"));
        }
        self
    }

    /// A class over other layers, as arguments or, where their names are not their positions, by their names.
    pub(super) fn over(mut self, inner: Vec<(&str, Python)>) -> Python {
        let in_order = inner.iter().enumerate().all(|(at, (name, _))| at.to_string() == *name);
        let entry = |(name, python): &(&str, Python)| format!("\"{name}\": {}", python.expression());
        self.arguments = match in_order {
            true => inner.iter().map(|(_, python)| python.expression()).collect(),
            false => {
                let entries: Vec<String> = inner.iter().map(entry).collect();
                vec![format!("**{}", call("{", &entries, "}"))]
            }
        };
        for class in inner.into_iter().rev().flat_map(|(_, python)| python.classes.into_iter().rev()) {
            self = self.above(class);
        }
        self
    }

    /// `of` with one such layer for each of `counts`, which are its first argument.
    pub(super) fn for_each_of(self, of: Class, counts: &[i64]) -> Python {
        let Python { class, mut arguments, mut classes } = self;
        arguments.insert(0, COUNT.into());
        let each = call(&format!("{class}("), &arguments, ")");
        let lines: Vec<String> = counts.chunks(COUNTS_IN_A_LINE).map(numbers).collect();
        let counts = call("[", &lines, "]");
        let all = match counts.contains('\n') {
            true => format!("\n    {each}\n    for {COUNT} in {}\n", indented(&counts)),
            false => format!("{each} for {COUNT} in {counts}"),
        };
        classes.push(of);
        Python { class: of.name().into(), arguments: vec![all], classes }
    }

    /// The expression, over several lines if it is long. Those behind the first are indented as if it stood at the margin.
    pub fn expression(&self) -> String {
        match self.arguments.as_slice() {
            [one] if one.starts_with(['\n', '*']) => format!("{}({one})", self.class),
            arguments => call(&format!("{}(", self.class), arguments, ")"),
        }
    }

    /// The classes that it needs beside torch's.
    pub fn classes(&self) -> &[Class] {
        &self.classes
    }
}

/// The longest line that is not broken up.
const LONGEST: usize = 88;
const COUNTS_IN_A_LINE: usize = 12;
/// What each of several counts is called.
const COUNT: &str = "rows";

/// `items` between two ends, on one line or on one each.
fn call(open: &str, items: &[String], close: &str) -> String {
    let line = format!("{open}{}{close}", items.join(", "));
    if line.len() <= LONGEST && !line.contains('\n') {
        return line;
    }
    let items: String = items.iter().map(|item| format!("    {},\n", indented(item))).collect();
    format!("{open}\n{items}{close}")
}

/// All lines but the first one step further in.
pub fn indented(text: &str) -> String {
    text.replace('\n', "\n    ")
}

fn numbers(numbers: &[i64]) -> String {
    numbers.iter().map(i64::to_string).collect::<Vec<_>>().join(", ")
}

/// What can be an argument.
pub(super) trait Value {
    fn written(&self) -> String;
}

impl Value for i64 {
    fn written(&self) -> String {
        self.to_string()
    }
}

impl Value for f64 {
    fn written(&self) -> String {
        match self.is_finite() {
            true => format!("{self:?}"),
            false => format!("float(\"{self}\")"),
        }
    }
}

impl Value for bool {
    fn written(&self) -> String {
        if *self { "True".into() } else { "False".into() }
    }
}

impl Value for &str {
    fn written(&self) -> String {
        format!("\"{self}\"")
    }
}

impl<V: Value> Value for Option<V> {
    fn written(&self) -> String {
        self.as_ref().map_or_else(|| "None".into(), Value::written)
    }
}

/// One number where all are the same, as PyTorch takes it for each dimension.
impl<const N: usize> Value for [i64; N] {
    fn written(&self) -> String {
        match self.iter().all(|number| *number == self[0]) {
            true => self[0].to_string(),
            false => self.as_slice().written(),
        }
    }
}

/// PyTorch takes one number for a list of one.
impl<V: Value> Value for &[V] {
    fn written(&self) -> String {
        let each: Vec<String> = self.iter().map(Value::written).collect();
        match each.as_slice() {
            [one] => one.clone(),
            several => format!("({})", several.join(", ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_torch_would_take_for_granted_is_not_written() {
        let layer = |bias: bool, eps: f64| {
            Python::torch("nn.Norm")
                .with(8_i64)
                .named("bias", bias, true)
                .named("eps", eps, 1e-5)
                .expression()
        };
        assert_eq!(layer(true, 1e-5), "nn.Norm(8)");
        assert_eq!(layer(false, 0.1), "nn.Norm(8, bias=False, eps=0.1)");
        let window = Python::torch("nn.Pool").with([3_i64; 2]).named("stride", Some([1_i64, 2]), None);
        assert_eq!(window.expression(), "nn.Pool(3, stride=(1, 2))");
        let odd = Python::torch("nn.Odd").with(f64::INFINITY).with([5_i64].as_slice()).with(None::<i64>);
        assert_eq!(odd.expression(), "nn.Odd(float(\"inf\"), 5, None)");
    }

    #[test]
    fn a_long_list_of_tables_is_broken_into_lines() {
        const TABLES: Class = Class("class Tables(nn.ModuleList):\n    pass");
        let tables = |counts: &[i64]| {
            Python::torch("nn.Embedding").with(4_i64).for_each_of(TABLES, counts).expression()
        };
        assert_eq!(tables(&[7, 3]), "Tables(nn.Embedding(rows, 4) for rows in [7, 3])");
        insta::assert_snapshot!(tables(&[100_000; 15]), @r"
        Tables(
            nn.Embedding(rows, 4)
            for rows in [
                100000, 100000, 100000, 100000, 100000, 100000, 100000, 100000, 100000, 100000, 100000, 100000,
                100000, 100000, 100000,
            ]
        )
        ");
    }
}
