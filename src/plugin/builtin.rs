//! The plug-ins that are inside the binary.

// `BUILTIN: &[(&str, &[u8])]`, written by build/plugins.rs from plugins/dist.
include!(concat!(env!("OUT_DIR"), "/builtin_plugins.rs"));

/// The shipped plug-ins, in alphabetical order.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

pub(super) fn find(name: &str) -> Option<&'static [u8]> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::PluginLimits;
    use crate::job::shipped::{DATASETS, LOSSES, Shipped};
    use crate::plugin::{Component, Dataset, Host, Loss, PluginError};

    type Open = fn(&Component, &serde_json::Value) -> Result<(), PluginError>;

    fn open_dataset(component: &Component, config: &serde_json::Value) -> Result<(), PluginError> {
        Dataset::open(component, config, std::path::Path::new("."), PluginLimits::default(), None).map(drop)
    }

    fn open_loss(component: &Component, config: &serde_json::Value) -> Result<(), PluginError> {
        Loss::open(component, config, PluginLimits::default()).map(drop)
    }

    /// What stands between backquotes.
    fn quoted(text: &str) -> Vec<&str> {
        text.split('`').skip(1).step_by(2).collect()
    }

    #[test]
    fn the_parameters_that_jobs_may_have_are_those_that_the_plug_ins_know() {
        let host = Host::new(None).unwrap();
        let groups: [(&[Shipped], Open); 2] = [(DATASETS, open_dataset), (LOSSES, open_loss)];
        let mut names = Vec::new();
        for (all, open) in groups {
            for shipped in all {
                names.push(shipped.name);
                let component = host.load(shipped.name, find(shipped.name).unwrap()).unwrap();
                let error = open(&component, &serde_json::json!({ "zzz": 1 })).unwrap_err().to_string();
                let (_, expected) = error.split_once("expected").unwrap();
                let mut known = quoted(expected);
                let declared = shipped.keys.iter().filter(|key| key.kind().is_ok()).map(|key| key.name());
                let mut declared: Vec<_> = declared.collect();
                known.sort_unstable();
                declared.sort_unstable();
                assert_eq!(declared, known, "{}", shipped.name);
            }
        }
        names.sort_unstable();
        assert_eq!(names, builtin_names().collect::<Vec<_>>());
    }
}
