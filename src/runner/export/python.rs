//! A job's model as a file of Python: a class for each module, and one whose forward goes through their graph. Pure.

use std::fmt::Write as _;

use super::names::{Names, assigned, is_kept, read};
use super::{ExportedModule, WEIGHTS, script_file};
use crate::job::{Field, FieldName, Job, Normalize, PluginRef, Source, Training};
use crate::layers::python::{Class, Python, indented};
use crate::layers::{InputDtype, Layer, Signal};

/// The layers of a module that has several inputs.
const JOINING: Class = Class(
    r#"
class Joining(nn.Sequential):
    """Layers of which the first takes several inputs."""

    def forward(self, *inputs):
        first, *others = self
        x = first(*inputs)
        for layer in others:
            x = layer(x)
        return x
"#,
);

const MODEL: &str = "Model";

/// Its names, which no other may have.
const OWN: [&str; 8] = ["torch", "nn", "self", "super", "load", "normalize", "folder", MODEL];

/// The text of the file.
///
/// # Errors
/// A name that no part of an `nn.Module` can have.
pub(super) fn source(job: &Job, training: &Training, parts: &[ExportedModule<'_>]) -> Result<String, String> {
    let file = File::new(training, parts)?;
    let mut classes: Vec<String> = file.helpers.iter().map(|class| class.source().to_owned()).collect();
    if parts.len() > 1 {
        let of_layers = parts.iter().zip(&file.classes).filter(|(part, _)| part.script.is_none());
        classes.extend(of_layers.map(|(part, class)| file.module(part, class)));
    }
    classes.push(file.model());
    classes.extend(training.data.normalize.as_ref().map(normalize));
    classes.push(file.load());
    let body = classes.join("\n\n\n");
    let torch = if body.replace("safetensors.torch", "").contains("torch.") { "import torch\n" } else { "" };
    Ok(format!("{}\n\n{torch}from torch import nn\n\n\n{body}\n", file.head(job)))
}

struct File<'a> {
    training: &'a Training,
    parts: &'a [ExportedModule<'a>],
    /// Those that torch has not, each behind those that it builds on.
    helpers: Vec<Class>,
    /// The classes of the parts.
    classes: Vec<String>,
    /// Fields that forward takes, by their name in Python and where it is among the training's: there more than once, if it is
    /// taken in several ways.
    arguments: Vec<(String, Vec<usize>)>,
    /// The variables of each part's outputs.
    outputs: Vec<Vec<String>>,
}

impl<'a> File<'a> {
    fn new(training: &'a Training, parts: &'a [ExportedModule<'a>]) -> Result<File<'a>, String> {
        let mut helpers: Vec<Class> = Vec::new();
        let mut add = |class: Class| {
            if !helpers.contains(&class) {
                helpers.push(class);
            }
        };
        for part in parts {
            if part.joins() {
                add(JOINING);
            }
            names_fit(parts.len() > 1, part)?;
            let layers = part.layers();
            layers.iter().flat_map(|(_, python)| python.classes()).for_each(|class| add(*class));
        }
        let mut classes = Names::with(helpers.iter().map(Class::name).chain(OWN));
        let classes = parts.iter().map(|part| classes.class(part.spec.written_name())).collect();
        let mut variables = Names::with(OWN);
        let arguments = arguments(training, &mut variables);
        let outputs = parts.iter().map(|part| {
            let count = part.last.outputs().len();
            (0..count).map(|nth| variables.variable(&part.output_name(nth))).collect()
        });
        let outputs = outputs.collect();
        Ok(File { training, parts, helpers, classes, arguments, outputs })
    }

    fn head(&self, job: &Job) -> String {
        let mut head = format!("\"\"\"The model of the job `{}`, which pstrain has trained.\n\n", job.name);
        let called: Vec<&str> = self.arguments.iter().map(|(name, _)| name.as_str()).collect();
        let called = called.join(", ");
        let lines = [
            "from model import load\n",
            &format!("model = load()  # with the weights of {WEIGHTS}, in eval mode"),
            &format!("model({called})\n"),
        ];
        lines.iter().for_each(|line| writeln!(head, "    {line}").expect("memory"));
        head.push_str("`Model.forward` takes, each with the dimension of the batch in front:\n\n");
        for (name, fields) in &self.arguments {
            writeln!(head, "    {name}: {}", self.field(fields[0])).expect("memory");
        }
        let loss = match &self.training.loss.plugin {
            PluginRef::Builtin(name) => name.clone(),
            PluginRef::File(path) => path.display().to_string(),
        };
        writeln!(head, "\nand gives what the loss `{}` took:\n", quoted(&loss)).expect("memory");
        for source in &self.training.loss.from {
            let what = match *source {
                Source::Field(field) => self.field(field),
                Source::Output { module, output } => {
                    self.training.modules[module].outputs().get(output).map(signal).unwrap_or_default()
                }
            };
            writeln!(head, "    {}: {what}", self.value(source)).expect("memory");
        }
        head + "\"\"\""
    }

    /// What a field is, of one sample.
    fn field(&self, at: usize) -> String {
        let Field { name, taken, .. } = &self.training.fields[at];
        let shape = taken.as_ref().map_or("as the data have it".into(), |taken| signal(&taken.signal));
        let normalized = self.training.data.normalize.as_ref();
        let normalized = normalized.is_some_and(|by| taken.is_some() && by.fields.contains(name));
        format!("{shape}{}", if normalized { ", through normalize()" } else { "" })
    }

    /// The class of one of several modules.
    fn module(&self, part: &ExportedModule<'_>, class: &str) -> String {
        let base = if part.joins() { JOINING.name() } else { "nn.Sequential" };
        let inputs: Vec<String> = part.spec.inputs.iter().map(signal).collect();
        let outputs: Vec<String> = part.last.outputs().iter().map(signal).collect();
        let doc = format!("{} to {}.", inputs.join(" and "), outputs.join(" and "));
        format!("class {class}({base}):\n    \"\"\"{doc}\"\"\"\n\n{}", made(&part.layers()))
    }

    fn model(&self) -> String {
        let mut text = match self.parts {
            [part] if part.script.is_none() => {
                let base = if part.joins() { JOINING.name() } else { "nn.Sequential" };
                format!("class {MODEL}({base}):\n{}", made(&part.layers()))
            }
            parts => {
                let folder = if self.has_scripts() { ", folder=\".\"" } else { "" };
                let mut text = format!(
                    "class {MODEL}(nn.Module):\n    def __init__(self{folder}):\n        super().__init__()\n"
                );
                for (part, class) in parts.iter().zip(&self.classes) {
                    let name = part.spec.written_name();
                    let (before, behind) = assigned(name);
                    let made = match part.script {
                        None => format!("{class}()"),
                        Some(_) => format!(
                            "torch.jit.load(f\"{{folder}}/{}\", map_location=\"cpu\")",
                            script_file(name)
                        ),
                    };
                    writeln!(text, "        {before}{made}{behind}").expect("memory");
                }
                text.trim_end().to_owned()
            }
        };
        let arguments: Vec<&str> = self.arguments.iter().map(|(name, _)| name.as_str()).collect();
        write!(text, "\n\n    def forward(self, {}):\n", arguments.join(", ")).expect("memory");
        text + &self.walk()
    }

    /// The body of the forward.
    fn walk(&self) -> String {
        let mut lines = Vec::new();
        for (part, outputs) in self.parts.iter().zip(&self.outputs) {
            let inputs: Vec<String> = part.spec.sources.iter().map(|source| self.value(source)).collect();
            let name = part.spec.written_name();
            let callee = match (self.parts.len(), part.script) {
                (1, None) => "super().forward".into(),
                _ => read(name),
            };
            lines.push((outputs.join(", "), format!("{callee}({})", inputs.join(", "))));
        }
        let given: Vec<String> = self.training.loss.from.iter().map(|source| self.value(source)).collect();
        let given = given.join(", ");
        let last = lines.pop_if(|(outputs, _)| *outputs == given).map_or(given, |(_, call)| call);
        let mut body: String =
            lines.into_iter().map(|(outputs, call)| format!("        {outputs} = {call}\n")).collect();
        write!(body, "        return {last}").expect("memory");
        body
    }

    /// What a module or the loss takes.
    fn value(&self, source: &Source) -> String {
        match *source {
            Source::Output { module, output } => {
                let part = self.parts.iter().position(|part| part.end == module).unwrap_or_default();
                self.outputs[part].get(output).cloned().unwrap_or_default()
            }
            Source::Field(at) => {
                let argument = self.arguments.iter().find(|(_, fields)| fields.contains(&at));
                let (name, fields) = argument.expect("all fields that are taken are arguments");
                let taken = |at: usize| self.training.fields[at].taken.as_ref().map(|taken| &taken.signal);
                match (taken(at), taken(fields[0])) {
                    (Some(here), Some(first)) => reshaped(name, here, first),
                    _ => name.clone(),
                }
            }
        }
    }

    fn has_scripts(&self) -> bool {
        self.parts.iter().any(|part| part.script.is_some())
    }

    fn load(&self) -> String {
        let folder = if self.has_scripts() { "folder" } else { "" };
        // The names in the file are those of the only module, and so of its TorchScript.
        let target = match self.parts {
            [part] if part.script.is_some() => read(part.spec.written_name()).replacen("self", "model", 1),
            _ => "model".into(),
        };
        let mut left_out = Vec::new();
        for part in self.parts {
            let prefix =
                if self.parts.len() > 1 { format!("{}.", part.spec.written_name()) } else { String::new() };
            let buffers = part.script.map_or(&[][..], |script| script.non_persistent.as_slice());
            left_out
                .extend(buffers.iter().map(|buffer| format!("\"{}\"", quoted(&(prefix.clone() + buffer)))));
        }
        let kept = match left_out.is_empty() {
            true => String::new(),
            false => format!(
                "    for name in [{}]:  # the run has not saved these: they stay as they are\n        \
                 weights[name] = {target}.state_dict()[name]\n",
                left_out.join(", ")
            ),
        };
        format!(
            "def load(folder=\".\"):\n    \"\"\"The model with the weights that are in `folder`, in eval mode.\"\"\"\n    \
             from safetensors.torch import load_file\n\n    \
             model = {MODEL}({folder})\n    \
             weights = load_file(f\"{{folder}}/{WEIGHTS}\")\n{kept}    \
             {target}.load_state_dict(weights, strict=True)\n    \
             return model.eval()"
        )
    }
}

/// What the field is called that a job does not name.
const INPUT: &str = "input";
const TARGET: &str = "target";

fn arguments(training: &Training, names: &mut Names) -> Vec<(String, Vec<usize>)> {
    let of_modules = training.modules.iter().flat_map(|module| &module.sources);
    let mut taken: Vec<(&FieldName, Vec<usize>)> = Vec::new();
    for source in of_modules.chain(&training.loss.from) {
        let &Source::Field(at) = source else { continue };
        let name = &training.fields[at].name;
        match taken.iter_mut().find(|(other, _)| *other == name) {
            Some((_, fields)) if fields.contains(&at) => {}
            Some((_, fields)) => fields.push(at),
            None => taken.push((name, vec![at])),
        }
    }
    let called = |(name, fields): (&FieldName, Vec<usize>)| {
        let wanted = match name {
            FieldName::Named(name) => name,
            FieldName::Nth(0) => INPUT,
            FieldName::Nth(_) => TARGET,
        };
        (names.variable(wanted), fields)
    };
    taken.into_iter().map(called).collect()
}

/// A field that came as `first`.
fn reshaped(name: &str, wanted: &Signal, first: &Signal) -> String {
    let mut value = name.to_owned();
    if wanted.shape != first.shape {
        let sizes: String = wanted.shape.iter().map(|size| format!(", {size}")).collect();
        write!(value, ".reshape({name}.size(0){sizes})").expect("memory");
    }
    match (wanted.dtype == first.dtype, wanted.dtype) {
        (true, _) => {}
        (false, InputDtype::Float32) => value.push_str(".float()"),
        (false, InputDtype::Int64) => value.push_str(".long()"),
    }
    value
}

/// The constructor that makes layers.
fn made(layers: &[(&str, Python)]) -> String {
    let in_order = layers.iter().enumerate().all(|(at, (name, _))| at.to_string() == *name);
    let mut text = "    def __init__(self):\n        super().__init__(".to_owned();
    if in_order {
        let each = layers.iter().map(|(_, python)| python.expression().replace('\n', "\n            "));
        each.for_each(|layer| write!(text, "\n            {layer},").expect("memory"));
        return text + "\n        )";
    }
    text.push(')');
    for (name, python) in layers {
        let (before, behind) = assigned(name);
        let layer = indented(&indented(&python.expression()));
        write!(text, "\n        {before}{layer}{behind}").expect("memory");
    }
    text
}

fn names_fit(several: bool, part: &ExportedModule<'_>) -> Result<(), String> {
    fn of_layers(layers: &[Layer]) -> Option<&str> {
        let own = layers.iter().map(|layer| layer.name.as_str()).find(|name| is_kept(name));
        own.or_else(|| layers.iter().find_map(|layer| of_layers(layer.op.inner())))
    }
    let module = part.spec.written_name();
    let wrong = Some(module).filter(|name| several && is_kept(name)).or_else(|| of_layers(&part.layers));
    match wrong {
        None => Ok(()),
        Some(name) => Err(format!(
            "module `{module}`: `{name}` is the name of a part of it, and every torch.nn.Module keeps something else under that name\n  \
             hint: give it another name, in the job and in the names of the saved tensors"
        )),
    }
}

fn normalize(by: &Normalize) -> String {
    let Normalize { scale, mean, std, .. } = by;
    let x = if *scale == 1.0 { "x".into() } else { format!("x / {scale:?}") };
    let doc = "    \"\"\"What a batch went through in training: as the data have it, in the shape that `Model.forward` takes.\"\"\"\n";
    let body = match (mean.as_slice(), std.as_slice()) {
        ([mean], [std]) => format!("    return ({x} - {mean:?}) / {std:?}"),
        (mean, std) => format!(
            "    of_channels = (-1, *[1] * (x.dim() - 2))\n    \
             mean = torch.tensor({mean:?}, device=x.device).view(of_channels)\n    \
             std = torch.tensor({std:?}, device=x.device).view(of_channels)\n    \
             return ({x} - mean) / std"
        ),
    };
    format!("def normalize(x):\n{doc}{body}")
}

fn signal(signal: &Signal) -> String {
    let dtype = match signal.dtype {
        InputDtype::Float32 => "float32",
        InputDtype::Int64 => "int64",
    };
    format!("{dtype} {:?}", signal.shape)
}

/// Text of others, inside quotes.
fn quoted(text: &str) -> String {
    let safe = |c: char| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.into(),
    };
    text.chars().map(safe).collect()
}

impl ExportedModule<'_> {
    /// Takes its first layer several inputs?
    fn joins(&self) -> bool {
        self.script.is_none() && self.spec.sources.len() > 1
    }

    fn output_name(&self, nth: usize) -> String {
        let several = self.script.filter(|script| script.outputs.len() > 1);
        match several.and_then(|script| script.outputs.get(nth)?.name.as_ref()) {
            Some(output) => format!("{}_{output}", self.spec.written_name()),
            None => self.spec.written_name().into(),
        }
    }

    /// Its layers by their names.
    fn layers(&self) -> Vec<(&str, Python)> {
        let of = |layer: &'_ Layer| match (&self.seen, layer.op.rows()) {
            (Some(rows), Some(table)) => table.python(rows),
            _ => layer.op.python(),
        };
        self.layers.iter().map(|layer| (layer.name.as_str(), of(layer))).collect()
    }
}
