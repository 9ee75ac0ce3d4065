//! What a job is made of, later ones winning: defaults, file, environment, options.

use figment::value::Value;

use super::keys;
use super::launchers::{self, PYTORCH, RANK};
use crate::config::{JobError, Merged, Origin, Setting, text};

/// What a job is made of.
#[derive(Clone, Debug)]
pub struct Sources<'a> {
    pub file: JobText<'a>,
    /// Name and value. Names that are none of ours are passed over. See [`environment`].
    pub env: Vec<(String, String)>,
    pub overrides: &'a [Override],
}

#[derive(Clone, Copy, Debug)]
pub struct JobText<'a> {
    /// As the user named it; stands in messages.
    pub name: &'a str,
    pub text: &'a str,
}

/// A value given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Override {
    /// Dotted; entries of a list by number, as in `modules.net.layers[1].p`.
    pub key: String,
    /// TOML, or a bare word.
    pub value: String,
    /// What the user typed, for messages.
    pub typed: String,
}

impl Override {
    /// From what stands after `--set`: `KEY=VALUE`.
    ///
    /// # Errors
    /// Where there is no `=` or no key.
    pub fn set(setting: &str) -> Result<Override, JobError> {
        let typed = format!("--set {setting}");
        match setting.split_once('=') {
            Some((key, value)) if !key.trim().is_empty() => {
                Ok(Override { key: key.trim().into(), value: value.into(), typed })
            }
            _ => Err(JobError::new(format!("`{setting}` is not a valid setting"))
                .from(Origin::Option { typed })
                .hint("write it as KEY=VALUE, for example train.epochs=3")),
        }
    }

    /// From an option with a name of its own whose value is a number or TOML: `--world-size 4`.
    pub fn option(option: &str, key: &str, value: impl ToString) -> Override {
        let value = value.to_string();
        Override { key: key.into(), typed: format!("{option} {value}"), value }
    }

    /// From an option that stands for `true`: `--profile`.
    pub fn flag(option: &str, key: &str) -> Override {
        Override { key: key.into(), typed: option.into(), value: "true".into() }
    }

    /// From an option whose value is text, whatever it looks like: `--master-addr 10.0.0.1`.
    pub fn text(option: &str, key: &str, value: &str) -> Override {
        Override { key: key.into(), typed: format!("{option} {value}"), value: text::string_text(value) }
    }
}

/// The variables of this process that a job may take values from.
pub fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())))
        .filter(|(name, _)| {
            name.starts_with(PREFIX) || is_of_pytorch(name) || launchers::is_of_launcher(name)
        })
        .collect()
}

/// The same for a command that is not a rank itself but starts or judges all of them. Which rank of which world a launcher
/// takes this process for does not count then; WORLD_SIZE, which no launcher but PyTorch's sets, does.
pub fn environment_of_all_ranks() -> Vec<(String, String)> {
    environment().into_iter().filter(|(name, _)| !is_of_one_rank(name)).collect()
}

fn is_of_one_rank(name: &str) -> bool {
    launchers::is_of_launcher(name) || ["RANK", "LOCAL_RANK"].contains(&name)
}

fn is_of_pytorch(name: &str) -> bool {
    PYTORCH.iter().any(|(known, _)| *known == name)
}

/// Before the key in the name of a variable: `PSTRAIN_TRAIN__BATCH_SIZE` is `train.batch_size`.
pub const PREFIX: &str = "PSTRAIN_";

/// Variables that begin so and are no keys of a job.
pub const NOT_KEYS: [&str; 9] = [
    "PSTRAIN_TOKEN",
    "PSTRAIN_LOG",
    "PSTRAIN_LIBTORCH",
    "PSTRAIN_RESTARTED",
    "PSTRAIN_TRUSTED",
    "PSTRAIN_WASM_TOOLCHAIN",
    "PSTRAIN_BACKENDS",
    "PSTRAIN_MPI",
    "PSTRAIN_S3_TIMEOUT_MS",
];

/// All sources merged. Also returns what is wrong with single values from outside the file; the rest is merged without
/// them.
///
/// # Errors
/// When the file is not TOML.
pub(super) fn merge(sources: &Sources<'_>) -> Result<(Merged, Vec<JobError>), JobError> {
    let settings = from_environment(&sources.env, sources.overrides).into_iter().chain(from_options(sources));
    Merged::new(keys::defaults(), sources.file.name, sources.file.text, settings)
}

fn from_options<'a>(sources: &'a Sources<'_>) -> impl Iterator<Item = Setting> + use<'a> {
    sources.overrides.iter().map(|option| Setting {
        key: option.key.clone(),
        value: text::parse_value(&option.value)
            .map_err(|error| format!("the value is not valid TOML: {error}")),
        origin: Origin::Option { typed: option.typed.clone() },
    })
}

fn from_environment(env: &[(String, String)], overrides: &[Override]) -> Vec<Setting> {
    let value_of = |name: &str| env.iter().find(|(n, v)| n == name && !v.is_empty()).map(|(_, v)| v.as_str());
    // A launcher's values hold together: its world is not ours when the rank is given by somebody else,
    // as in four terminals inside one interactive Slurm job of a single task.
    let rank_is_given = value_of("RANK").is_some() || overrides.iter().any(|option| option.key == RANK);
    let launcher = if rank_is_given { Vec::new() } else { launchers::told(value_of) };
    let pytorch = PYTORCH.iter().filter_map(|&(variable, key)| {
        let value = Ok(value_of(variable)?.to_owned());
        Some(launchers::FromLauncher { key, value, variable })
    });

    let mut settings = Vec::new();
    for launchers::FromLauncher { key, value, variable } in launcher.into_iter().chain(pytorch) {
        settings.push(Setting {
            key: key.into(),
            value: value.map(|text| {
                let number = text.trim().parse::<i64>().ok().filter(|_| key != "cluster.master_addr");
                number.map_or_else(|| Value::from(text), Value::from)
            }),
            origin: Origin::Environment { variable: variable.into() },
        });
    }

    // Sorted, because the order of variables in a process means nothing and must decide nothing.
    let mut ours: Vec<_> = env.iter().filter(|(name, _)| name.starts_with(PREFIX)).collect();
    ours.sort();
    for (variable, value) in ours.into_iter().filter(|(name, _)| !NOT_KEYS.contains(&name.as_str())) {
        settings.push(Setting {
            key: variable[PREFIX.len()..].to_lowercase().replace("__", "."),
            value: text::parse_value(value).map_err(|error| format!("the value is not valid TOML: {error}")),
            origin: Origin::Environment { variable: variable.clone() },
        });
    }
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merged(env: &[(&str, &str)], overrides: &[Override]) -> Merged {
        let file = JobText {
            name: "x.toml",
            text: "[cluster]\nworld_size = 3\n[modules.net]\nlayers = [\"relu\", { type = \"dropout\", p = 0.5 }]",
        };
        let env = env.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect();
        let (merged, errors) = merge(&Sources { file, env, overrides }).expect("the file is TOML");
        assert_eq!(errors, [], "all layers are readable");
        merged
    }

    fn world_size(merged: &Merged) -> (Value, Origin) {
        let value = Value::from(merged.dict.clone()).find("cluster.world_size").expect("there");
        let origin = merged.origin(value.tag(), "cluster.world_size");
        (value, origin)
    }

    fn variable(name: &str) -> Origin {
        Origin::Environment { variable: name.into() }
    }

    #[test]
    fn later_layers_win_and_each_value_knows_its_layer() {
        assert_eq!(
            world_size(&merged(&[], &[])),
            (Value::from(3), Origin::File { name: "x.toml".into(), line: Some(2) })
        );
        let env = [("WORLD_SIZE", "5")];
        assert_eq!(world_size(&merged(&env, &[])), (Value::from(5), variable("WORLD_SIZE")));
        let env = [("WORLD_SIZE", "5"), ("PSTRAIN_CLUSTER__WORLD_SIZE", "6")];
        assert_eq!(world_size(&merged(&env, &[])), (Value::from(6), variable("PSTRAIN_CLUSTER__WORLD_SIZE")));
        let typed = "--world-size 7".into();
        let options = [Override::option("--world-size", "cluster.world_size", 7)];
        assert_eq!(world_size(&merged(&env, &options)), (Value::from(7), Origin::Option { typed }));
    }

    #[test]
    fn a_launchers_world_counts_only_with_its_rank() {
        let slurm = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1")];
        assert_eq!(world_size(&merged(&slurm, &[])), (Value::from(1), variable("SLURM_NTASKS")));
        let terminal = [Override::option("--rank", RANK, 2)];
        assert_eq!(world_size(&merged(&slurm, &terminal)).0, Value::from(3));
        let explicit = [("SLURM_PROCID", "0"), ("SLURM_NTASKS", "1"), ("RANK", "2")];
        assert_eq!(world_size(&merged(&explicit, &[])).0, Value::from(3));
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "1"),
        ];
        assert_eq!(world_size(&merged(&mpi, &[])), (Value::from(4), variable("OMPI_COMM_WORLD_SIZE")));
    }

    #[test]
    fn what_a_launcher_says_of_one_rank_does_not_count_for_all() {
        for name in ["RANK", "LOCAL_RANK", "SLURM_PROCID", "SLURM_STEP_NODELIST", "PET_NNODES"] {
            assert!(is_of_one_rank(name), "{name}");
        }
        for name in ["WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PSTRAIN_CLUSTER__WORLD_SIZE"] {
            assert!(!is_of_one_rank(name), "{name}");
        }
    }

    #[test]
    fn one_entry_of_a_list_can_be_set_and_the_others_stay() {
        let merged = merged(&[], &[Override::set("modules.net.layers[1].p=0.1").expect("a setting")]);
        let layers = Value::from(merged.dict.clone()).find("modules.net.layers").expect("there");
        let layers = layers.as_array().expect("a list");
        assert_eq!(layers[0], Value::from("relu"));
        assert_eq!(layers[1].find_ref("p"), Some(&Value::from(0.1)));
        assert_eq!(layers[1].find_ref("type"), Some(&Value::from("dropout")));
        let origin = merged.origin(layers[0].tag(), "modules.net.layers[0]");
        assert_eq!(origin, Origin::File { name: "x.toml".into(), line: Some(4) });
    }

    #[test]
    fn the_token_is_no_key_and_an_empty_variable_is_none() {
        let merged = merged(&[("PSTRAIN_TOKEN", "secret"), ("WORLD_SIZE", "")], &[]);
        assert!(!merged.dict.contains_key("token"));
        assert_eq!(world_size(&merged).0, Value::from(3));
    }
}
