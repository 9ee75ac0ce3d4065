//! The plug-ins that are inside the binary.

// `BUILTIN: &[(&str, &[u8])]`, written by build/plugins.rs from plugins/dist.
include!(concat!(env!("OUT_DIR"), "/builtin_plugins.rs"));

/// In alphabetical order.
pub fn builtin_names() -> impl Iterator<Item = &'static str> {
    BUILTIN.iter().map(|(name, _)| *name)
}

pub(super) fn find(name: &str) -> Option<&'static [u8]> {
    BUILTIN.iter().find(|(known, _)| *known == name).map(|(_, bytes)| *bytes)
}
