//! Layers of values, later ones winning, merged into one table in which each value knows its layer.

use figment::value::{Dict, Map, Tag, Value};
use figment::{Figment, Metadata, Profile, Provider, Source};

use super::error::{JobError, Origin};
use super::text::{self, Places};

/// All layers as one table.
pub struct Merged {
    pub dict: Dict,
    pub places: Places,
    /// The file's name, as messages say it.
    pub file: String,
    figment: Figment,
}

/// A value for one key, from outside the file.
pub struct Setting {
    /// Dotted; entries of a list by number, as in `modules.net.layers[1].p`.
    pub key: String,
    /// The value, or why there is none.
    pub value: Result<Value, String>,
    pub origin: Origin,
}

struct Layer {
    origin: Origin,
    dict: Dict,
}

impl Provider for Layer {
    fn metadata(&self) -> Metadata {
        match &self.origin {
            Origin::Default => Metadata::named(DEFAULT),
            Origin::File { name, .. } => Metadata::from(FILE, name.clone()),
            Origin::Environment { variable } => Metadata::from(ENVIRONMENT, variable.clone()),
            Origin::Option { typed } => Metadata::from(OPTION, typed.clone()),
        }
    }

    fn data(&self) -> figment::Result<Map<Profile, Dict>> {
        Ok(Profile::Default.collect(self.dict.clone()))
    }
}

const DEFAULT: &str = "default";
const FILE: &str = "file";
const ENVIRONMENT: &str = "environment";
const OPTION: &str = "option";

impl Merged {
    /// The defaults, a file's text and single settings, in this order. Also returns what is wrong with single
    /// settings: text that is not TOML, keys that cannot be. The rest is merged without them.
    ///
    /// # Errors
    /// When the text is not TOML.
    pub fn new(
        defaults: Dict,
        file: &str,
        text: &str,
        settings: impl IntoIterator<Item = Setting>,
    ) -> Result<(Merged, Vec<JobError>), JobError> {
        let parsed = text::parse(text).map_err(|error| syntax_error(&error))?;
        let mut figment = Figment::new()
            .merge(Layer { origin: Origin::Default, dict: defaults })
            .merge(Layer { origin: Origin::File { name: file.into(), line: None }, dict: parsed.dict });
        let mut errors = Vec::new();
        for setting in settings {
            match setting.value.and_then(|value| place(&figment, &setting.key, value)) {
                Ok(dict) => figment = figment.merge(Layer { origin: setting.origin, dict }),
                Err(problem) => {
                    errors.push(JobError::new(format!("`{}`: {problem}", setting.key)).from(setting.origin))
                }
            }
        }
        let merged = Merged { dict: root(&figment), places: parsed.places, file: file.into(), figment };
        Ok((merged, errors))
    }

    /// Does any layer but the defaults say something of the value at `path`?
    pub fn is_given(&self, path: &str) -> bool {
        let value = Value::from(self.dict.clone()).find(path);
        value.is_some_and(|value| self.origin(value.tag(), path) != Origin::Default)
    }

    /// Where the value at `path` is from.
    pub fn origin(&self, tag: Tag, path: &str) -> Origin {
        let Some(metadata) = self.figment.get_metadata(tag) else { return Origin::Default };
        let source = metadata.source.as_ref().and_then(Source::custom).unwrap_or_default().to_owned();
        match metadata.name.as_ref() {
            FILE => Origin::File { name: source, line: self.places.line(path) },
            ENVIRONMENT => Origin::Environment { variable: source },
            OPTION => Origin::Option { typed: source },
            _ => Origin::Default,
        }
    }
}

/// A table that holds nothing but `value` at `key`, for merging into what is there.
fn place(figment: &Figment, key: &str, value: Value) -> Result<Dict, String> {
    let steps =
        steps(key).ok_or("not a valid key: write it like train.batch_size or modules.net.layers[1].p")?;
    let current = Value::Dict(Tag::Default, root(figment));
    match nest(Some(&current), &steps, value, false)? {
        Value::Dict(_, dict) => Ok(dict),
        _ => Err("a key begins with a name".into()),
    }
}

enum Step<'a> {
    Key(&'a str),
    Index(usize),
}

fn steps(key: &str) -> Option<Vec<Step<'_>>> {
    let mut steps = Vec::new();
    for part in key.split('.') {
        let (name, indices) = part.split_at(part.find('[').unwrap_or(part.len()));
        if name.is_empty() {
            return None;
        }
        steps.push(Step::Key(name));
        for index in indices.split_inclusive(']') {
            steps.push(Step::Index(index.strip_prefix('[')?.strip_suffix(']')?.parse().ok()?));
        }
    }
    Some(steps)
}

/// `whole`: figment replaces lists as a whole, so inside one the neighbours have to come along.
fn nest(current: Option<&Value>, steps: &[Step<'_>], value: Value, whole: bool) -> Result<Value, String> {
    match steps {
        [] => Ok(value),
        [Step::Key(key), rest @ ..] => {
            let here = current.and_then(Value::as_dict);
            if whole && here.is_none() {
                return Err(format!("there is no table here that could have a key `{key}`"));
            }
            let inner = nest(here.and_then(|dict| dict.get(*key)), rest, value, whole)?;
            let mut dict = here.filter(|_| whole).cloned().unwrap_or_default();
            dict.insert((*key).into(), inner);
            Ok(Value::Dict(Tag::Default, dict))
        }
        [Step::Index(index), rest @ ..] => {
            let mut list = current.and_then(Value::as_array).ok_or("there is no list here")?.to_vec();
            let entries = list.len();
            let entry = list.get_mut(*index).ok_or_else(|| {
                format!("the list has {entries} entries, counted from 0, and {index} is not one of them")
            })?;
            *entry = nest(Some(&entry.clone()), rest, value, true)?;
            Ok(Value::Array(Tag::Default, list))
        }
    }
}

fn root(figment: &Figment) -> Dict {
    let mut profiles = figment.data().expect("no layer fails");
    profiles.remove(&Profile::Default).unwrap_or_default()
}

fn syntax_error(error: &text::SyntaxError) -> JobError {
    let text::SyntaxError { line, column, message, excerpt } = error;
    let message = message.trim_end_matches(", expected nothing");
    JobError::new(format!("line {line}, column {column} is not valid TOML: {message}"))
        .hint(format!("look at: {}", excerpt.trim()))
}
