//! Whether a module can start from a file's tensors, and every reason why not.

use super::{Dtype, Header};
use crate::config::did_you_mean;
use crate::human::cut;
use crate::layers::{Layer, each_tensor};

/// A parameter or buffer that a module has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// As in the module's `state_dict`.
    pub name: String,
    pub shape: Vec<i64>,
    pub dtype: Dtype,
    /// A parameter; a buffer that the file has not stays as the module makes it.
    pub required: bool,
}

/// Something that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub message: String,
    pub hint: String,
}

/// Characters of a shape in a message.
const LONGEST_SHAPE: usize = 100;

/// How many problems are told of one file; of another model's file hundreds are of the same kind.
const MOST: usize = 20;

/// What layers have: float32, but for the count of batches.
pub fn wanted_by_layers(layers: &[Layer]) -> Vec<Wanted> {
    let mut wanted = Vec::new();
    each_tensor(layers, &mut |name, shape, required| {
        let counts = !required && shape.is_empty();
        let dtype = if counts { Dtype::int64() } else { Dtype::float32() };
        wanted.push(Wanted { name, shape, dtype, required });
    });
    wanted
}

/// The name in a file of each tensor that module `module` wants; none of a buffer that is not there. `aliases` are names
/// that the module has as well, for tensors that are among the wanted ones.
///
/// A file may be of this module alone, with names as in its `state_dict`, or of a job with several modules, with
/// `MODULE.` before each name; what belongs to the others is left alone.
///
/// # Errors
/// Everything that is missing, too much, or of another shape or dtype.
pub fn fit(
    module: &str,
    wanted: &[Wanted],
    aliases: &[String],
    header: &Header,
) -> Result<Vec<Option<String>>, Vec<Problem>> {
    let own = format!("{module}.");
    let prefixed = is_prefixed(&own, wanted, header);
    let prefix = if prefixed { own.as_str() } else { "" };
    let mut problems = Vec::new();
    let mut names = Vec::new();
    let known = |rest: &str| {
        wanted.iter().any(|tensor| tensor.name == rest) || aliases.iter().any(|alias| alias == rest)
    };
    let additional: Vec<&str> =
        header.names().filter(|name| name.strip_prefix(prefix).is_some_and(|rest| !known(rest))).collect();
    for tensor in wanted {
        let name = format!("{prefix}{}", tensor.name);
        let found = header.get(&name);
        match found {
            Some(stored) => problems.extend(unlike(&name, tensor, &stored.shape, &stored.dtype)),
            None if tensor.required => {
                problems.push(missing(&name, tensor, worth_a_look(&problems, &additional)))
            }
            None => {}
        }
        names.push(found.map(|_| name));
    }
    let lacking: Vec<&str> = wanted
        .iter()
        .zip(&names)
        .filter(|(_, name)| name.is_none())
        .map(|(tensor, _)| tensor.name.as_str())
        .collect();
    for name in &additional {
        let rest = name.strip_prefix(prefix).unwrap_or(name);
        problems.push(match rows_of(rest, wanted) {
            Some(table) => cut_table(module, &format!("{prefix}{table}"), name),
            None => self::additional(module, name, worth_a_look(&problems, &lacking)),
        });
    }
    if problems.is_empty() { Ok(names) } else { Err(shortened(problems)) }
}

/// What a problem's hint is looked for among: of nothing where the problem will not be told.
fn worth_a_look<'a, 'b>(problems: &[Problem], names: &'a [&'b str]) -> &'a [&'b str] {
    if problems.len() < MOST { names } else { &[] }
}

fn is_prefixed(own: &str, wanted: &[Wanted], header: &Header) -> bool {
    // Of what wants nothing no name tells: other modules' tensors are taken for theirs.
    if wanted.is_empty() {
        return true;
    }
    let here =
        |prefix: &str| wanted.iter().any(|tensor| header.get(&format!("{prefix}{}", tensor.name)).is_some());
    !here("") && here(own)
}

/// `others` are what the file has and the module has not.
fn missing(name: &str, tensor: &Wanted, others: &[&str]) -> Problem {
    let message = format!("`{name}` is missing, {} is wanted", shown(&tensor.shape, &tensor.dtype));
    Problem { message, hint: likely(name, others) }
}

/// `lacking` is what the module has and the file has not.
fn additional(module: &str, name: &str, lacking: &[&str]) -> Problem {
    Problem {
        message: format!("`{name}` belongs to nothing in module `{module}`"),
        hint: likely(name, lacking),
    }
}

/// The table whose rows are listed under this name in a file, where the module has that table.
fn rows_of<'a>(name: &str, wanted: &'a [Wanted]) -> Option<&'a str> {
    let table = name.strip_suffix("ids")?;
    wanted.iter().map(|tensor| &*tensor.name).find(|name| name.strip_suffix("weight") == Some(table))
}

fn cut_table(module: &str, table: &str, ids: &str) -> Problem {
    Problem {
        message: format!(
            "`{table}` is a table that was cut over ranks, with the rows that `{ids}` lists, and module `{module}` has it whole"
        ),
        hint: format!("modules.{module}.shards = \"hash\" or \"rows\" cuts it again"),
    }
}

fn likely(name: &str, others: &[&str]) -> String {
    match did_you_mean(name, others.iter().copied()) {
        Some(other) => format!("did you mean `{other}`?"),
        None => "the file is to have the state_dict of this very module".into(),
    }
}

fn unlike(name: &str, tensor: &Wanted, shape: &[i64], dtype: &Dtype) -> Option<Problem> {
    let problem = |hint: String| Problem {
        message: format!(
            "`{name}` is {}, where {} is wanted",
            shown(shape, dtype),
            shown(&tensor.shape, &tensor.dtype)
        ),
        hint,
    };
    if shape != tensor.shape {
        return Some(problem("the model was another when it was saved".into()));
    }
    let wanted = tensor.dtype.name();
    (*dtype != tensor.dtype).then(|| problem(format!("save it with .to(torch.{wanted})")))
}

fn shown(shape: &[i64], dtype: &Dtype) -> String {
    format!("{} of {}", cut(&format!("{shape:?}"), LONGEST_SHAPE), dtype.name())
}

fn shortened(mut problems: Vec<Problem>) -> Vec<Problem> {
    let more = problems.len().saturating_sub(MOST);
    problems.truncate(MOST);
    if let (true, Some(last)) = (more > 0, problems.last_mut()) {
        last.message.push_str(&format!(" (and {more} more tensors do not fit)"));
    }
    problems
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn header(tensors: &[(&str, &str, &[i64])]) -> Header {
        let tensors = tensors.iter().map(|(name, dtype, shape)| {
            let stored = super::super::Stored {
                dtype: Dtype::named(dtype).unwrap(),
                shape: shape.to_vec(),
                start: 0,
                len: 0,
            };
            ((*name).to_owned(), stored)
        });
        Header { tensors: Arc::new(tensors.collect()) }
    }

    fn net() -> Vec<Wanted> {
        let wanted = |name: &str, shape: &[i64], dtype: Dtype, required| Wanted {
            name: name.into(),
            shape: shape.to_vec(),
            dtype,
            required,
        };
        vec![
            wanted("fc.weight", &[2, 3], Dtype::float32(), true),
            wanted("fc.bias", &[2], Dtype::float32(), true),
            wanted("bn.num_batches_tracked", &[], Dtype::int64(), false),
        ]
    }

    fn problems(tensors: &[(&str, &str, &[i64])]) -> String {
        let problems = fit("net", &net(), &["tied.weight".into()], &header(tensors)).unwrap_err();
        problems.iter().map(|p| format!("{}\n  hint: {}", p.message, p.hint)).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn names_are_the_modules_own_or_prefixed_by_it() {
        let alone = header(&[
            ("fc.weight", "float32", &[2, 3]),
            ("fc.bias", "float32", &[2]),
            ("tied.weight", "float32", &[2, 3]),
        ]);
        let names = fit("net", &net(), &["tied.weight".into()], &alone).unwrap();
        assert_eq!(names, [Some("fc.weight".to_owned()), Some("fc.bias".to_owned()), None]);
        let several = header(&[
            ("emb.weight", "float32", &[9]),
            ("net.bn.num_batches_tracked", "int64", &[]),
            ("net.fc.bias", "float32", &[2]),
            ("net.fc.weight", "float32", &[2, 3]),
        ]);
        let names = fit("net", &net(), &[], &several).unwrap();
        assert_eq!(names[0].as_deref(), Some("net.fc.weight"));
        assert_eq!(names[2].as_deref(), Some("net.bn.num_batches_tracked"));
    }

    #[test]
    fn a_module_without_tensors_leaves_those_of_others_alone() {
        let saved = header(&[("emb.weight", "float32", &[9])]);
        assert_eq!(fit("double", &[], &[], &saved).unwrap(), []);
        let own = header(&[("double.weight", "float32", &[9])]);
        assert_eq!(fit("double", &[], &[], &own).unwrap_err().len(), 1);
    }

    #[test]
    fn everything_that_does_not_fit_is_told_at_once() {
        insta::assert_snapshot!(
            problems(&[
                ("fc.weigth", "float32", &[2, 3]),
                ("fc.bias", "float64", &[2]),
                ("bn.num_batches_tracked", "int64", &[1]),
                ("decoder.weight", "float32", &[4]),
            ]),
            @r"
        `fc.weight` is missing, [2, 3] of float32 is wanted
          hint: did you mean `fc.weigth`?
        `fc.bias` is [2] of float64, where [2] of float32 is wanted
          hint: save it with .to(torch.float32)
        `bn.num_batches_tracked` is [1] of int64, where [] of int64 is wanted
          hint: the model was another when it was saved
        `decoder.weight` belongs to nothing in module `net`
          hint: the file is to have the state_dict of this very module
        `fc.weigth` belongs to nothing in module `net`
          hint: did you mean `fc.weight`?
        ");
    }

    #[test]
    fn a_table_that_was_cut_is_told_from_one_that_is_whole() {
        let listed = [("fc.weight", "float32", &[2, 3][..]), ("fc.ids", "int64", &[2])];
        insta::assert_snapshot!(problems(&[&listed[..], &[("fc.bias", "float32", &[2])]].concat()), @r#"
        `fc.weight` is a table that was cut over ranks, with the rows that `fc.ids` lists, and module `net` has it whole
          hint: modules.net.shards = "hash" or "rows" cuts it again
        "#);
    }

    #[test]
    fn of_another_models_file_the_first_problems_are_told() {
        let names: Vec<String> = (0..40).map(|number| format!("block{number}.weight")).collect();
        let tensors: Vec<(&str, &str, &[i64])> =
            names.iter().map(|name| (name.as_str(), "float32", &[1][..])).collect();
        let problems = fit("net", &net(), &[], &header(&tensors)).unwrap_err();
        assert_eq!(problems.len(), MOST);
        assert!(problems[MOST - 1].message.ends_with("(and 22 more tensors do not fit)"));
    }
}
