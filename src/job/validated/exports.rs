//! Where a run is told beside its folder.

use std::fmt;
use std::path::PathBuf;

use serde::{Serialize, Serializer};

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Exports {
    /// The folder of TensorBoard's event files, from the run folder if it is not absolute.
    pub tensorboard: Option<PathBuf>,
    /// An OpenTelemetry collector, which takes protobuf over HTTP.
    pub otlp: Option<Address>,
    pub mlflow: Option<Mlflow>,
}

impl Exports {
    /// Is the run told to anybody?
    pub fn any(&self) -> bool {
        let Exports { tensorboard, otlp, mlflow } = self;
        tensorboard.is_some() || otlp.is_some() || mlflow.is_some()
    }
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mlflow {
    pub server: Address,
    /// None: the job's name.
    pub experiment: Option<String>,
}

/// The address of a server that speaks HTTP, without a `/` at its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address(String);

/// Why a text is no such address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoAddress {
    pub problem: &'static str,
    pub hint: &'static str,
}

/// Bytes of an address.
const LONGEST: usize = 1000;

impl Address {
    /// # Errors
    /// It is not `http://HOST:PORT` or `https://HOST`, with or without a path.
    pub fn parse(text: &str) -> Result<Address, NoAddress> {
        let no = |problem, hint| Err(NoAddress { problem, hint });
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let Some(rest) = rest else {
            return no("is not the address of a server", "write http://HOST:PORT, or https://HOST");
        };
        if text.len() > LONGEST {
            return no("is longer than an address may be", "use one of at most 1000 characters");
        }
        let host = rest.split('/').next().unwrap_or_default();
        if host.contains('@') {
            return no(
                "has a user or a password in it, which would stand in the run folder",
                "leave them out, and set them in the environment: docs/watching.md has the names",
            );
        }
        let is_host = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || host.starts_with(':') || !host.bytes().all(is_host) {
            return no("names no host", "write http://HOST:PORT, for example http://localhost:4318");
        }
        // An IPv6 address has colons, too, and stands in brackets.
        let port = host.rsplit_once(']').map_or(host, |(_, behind)| behind).split_once(':');
        if port.is_some_and(|(_, port)| port.parse::<u16>().map_or(true, |port| port == 0)) {
            return no(
                "has no port from 1 to 65535",
                "write http://HOST:PORT, for example http://localhost:4318",
            );
        }
        if !rest.bytes().all(|byte| byte.is_ascii_graphic()) || rest.contains(['?', '#']) {
            return no("has more than a host, a port and a path", "write http://HOST:PORT");
        }
        Ok(Address(text.trim_end_matches('/').into()))
    }

    /// What lies below it.
    pub fn join(&self, path: &str) -> String {
        format!("{self}/{path}")
    }

    /// Is the host this machine, by its name?
    pub fn is_here(&self) -> bool {
        let host = self.0.split("//").nth(1).and_then(|rest| rest.split('/').next()).unwrap_or_default();
        ["localhost", "127.0.0.1", "[::1]"]
            .iter()
            .any(|here| host.strip_prefix(here).is_some_and(|port| port.is_empty() || port.starts_with(':')))
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_of_servers_that_speak_http() {
        let shown = |text: &str| Address::parse(text).unwrap().to_string();
        for text in
            ["http://localhost:4318", "https://otlp.example.com/otlp", "http://[::1]:5000", "http://10.0.0.1"]
        {
            assert_eq!(shown(text), text);
        }
        assert_eq!(shown("http://host:5000//"), "http://host:5000");
        assert_eq!(Address::parse("http://host/a/").unwrap().join("v1/metrics"), "http://host/a/v1/metrics");
    }

    #[test]
    fn what_is_no_such_address_is_refused() {
        let problem = |text: &str| Address::parse(text).unwrap_err().problem;
        for text in ["", "localhost:4318", "grpc://host:4317", "sqlite:///mlflow.db", "databricks"] {
            assert_eq!(problem(text), "is not the address of a server", "{text}");
        }
        for text in ["http://", "http://:80", "http:///path", "http://ho st", "http://hö:1"] {
            assert_eq!(problem(text), "names no host", "{text}");
        }
        for text in
            ["http://host:", "http://host:0", "http://host:65536", "http://host:4318x", "http://[::1]:a"]
        {
            assert_eq!(problem(text), "has no port from 1 to 65535", "{text}");
        }
        for text in ["http://host/a b", "http://host/?a=1", "http://host/#a", "http://host/\n"] {
            assert_eq!(problem(text), "has more than a host, a port and a path", "{text}");
        }
        assert!(problem("https://me:secret@host").starts_with("has a user or a password"));
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        let is_here = |text: &str| Address::parse(text).unwrap().is_here();
        assert!(
            is_here("http://localhost:4318") && is_here("http://127.0.0.1") && is_here("https://[::1]:1/a")
        );
        assert!(!is_here("http://localhost.example.com") && !is_here("http://10.0.0.1:4318"));
    }
}
