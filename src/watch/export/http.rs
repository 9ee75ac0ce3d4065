//! Requests to a server that a run is told to: each with a deadline, and with what became of it.

use std::time::Duration;
use std::{env, fs};

use anyhow::{Context as _, Result, anyhow, ensure};
use ureq::tls::{Certificate, PemItem, RootCerts, TlsConfig};

use crate::human;
use crate::job::Address;

/// Of a whole request.
const DEADLINE: Duration = Duration::from_secs(10);
const CONNECTING: Duration = Duration::from_secs(3);

/// Bytes of an answer that are read.
const MOST_OF_ANSWER: u64 = 1 << 20;

/// Characters of what a server says that are passed on.
const MOST_TOLD: usize = 300;

pub struct Server {
    agent: ureq::Agent,
    address: Address,
    /// Sent with each request.
    headers: Vec<(String, String)>,
    /// As messages call it.
    what: &'static str,
}

/// Why a request has not done what it was to do.
#[derive(Debug)]
pub enum Failure {
    /// The server cannot be reached, or asks for time: the same request may succeed later.
    Away(anyhow::Error),
    /// It has refused it.
    Refused { status: u16, why: anyhow::Error },
}

impl From<Failure> for anyhow::Error {
    fn from(failure: Failure) -> anyhow::Error {
        match failure {
            Failure::Away(why) | Failure::Refused { why, .. } => why,
        }
    }
}

impl Server {
    /// `certificates`: the variable of the environment that may name a file with those whom servers are believed by.
    ///
    /// # Errors
    /// There is one, and the file has no certificates.
    pub fn new(
        what: &'static str,
        address: &Address,
        headers: Vec<(String, String)>,
        certificates: &str,
    ) -> Result<Server> {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECTING))
            .timeout_global(Some(DEADLINE))
            .http_status_as_error(false)
            // One that answers by another address would be told what is meant for the first.
            .max_redirects(0)
            .user_agent(concat!("pstrain/", env!("CARGO_PKG_VERSION")));
        // No proxy leads back to this machine.
        let config = if address.is_here() { config.proxy(None) } else { config };
        let config = match env::var(certificates).ok().filter(|file| !file.is_empty()) {
            Some(file) => {
                let roots = roots(&file).with_context(|| format!("{certificates} names `{file}`"))?;
                config.tls_config(TlsConfig::builder().root_certs(roots).build())
            }
            None => config,
        };
        Ok(Server { agent: config.build().new_agent(), address: address.clone(), headers, what })
    }

    pub fn get(&self, path: &str, query: &[(&str, &str)]) -> Result<Vec<u8>, Failure> {
        let mut request = self.agent.get(self.address.join(path)).query_pairs(query.iter().copied());
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        self.answered(path, request.call())
    }

    pub fn post(&self, path: &str, content_type: &str, body: &[u8]) -> Result<Vec<u8>, Failure> {
        let mut request = self.agent.post(self.address.join(path)).header("content-type", content_type);
        for (name, value) in &self.headers {
            request = request.header(name, value);
        }
        self.answered(path, request.send(body))
    }

    fn answered(
        &self,
        path: &str,
        answer: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Vec<u8>, Failure> {
        let failed = || format!("{} does not take `{}`", self.what, self.address.join(path));
        let mut answer = answer.map_err(|error| Failure::Away(anyhow!(error).context(failed())))?;
        let status = answer.status().as_u16();
        let body = answer.body_mut().with_config().limit(MOST_OF_ANSWER).read_to_vec();
        if (200..300).contains(&status) {
            return body.with_context(failed).map_err(Failure::Away);
        }
        let said = body.unwrap_or_default();
        let said = human::cut(&human::one_line(&String::from_utf8_lossy(&said)), MOST_TOLD);
        let why = anyhow!("it answers {status}: {said}{}", hint(status)).context(failed());
        match status {
            408 | 429 | 500 | 502..=504 => Err(Failure::Away(why)),
            _ => Err(Failure::Refused { status, why }),
        }
    }
}

fn roots(file: &str) -> Result<RootCerts> {
    let pem = fs::read(file).context("it cannot be read")?;
    let items = ureq::tls::parse_pem(&pem).map(|item| match item? {
        PemItem::Certificate(certificate) => Ok(Some(certificate)),
        _ => Ok(None),
    });
    let items = items.collect::<Result<Vec<Option<Certificate<'static>>>, ureq::Error>>();
    let certificates: Vec<_> =
        items.context("it is no file of certificates")?.into_iter().flatten().collect();
    ensure!(!certificates.is_empty(), "it has no certificate\n  hint: name a file in the form of PEM");
    Ok(RootCerts::new_with_certs(&certificates))
}

fn hint(status: u16) -> &'static str {
    match status {
        401 | 403 => {
            "\n  hint: docs/watching.md says by which variables of the environment a token or a password is given"
        }
        301..=308 => "\n  hint: name the address that it leads to",
        404 | 405 => "\n  hint: is it the address of such a server?",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ca.pem");
        let told = |text: &str| {
            fs::write(&file, text).unwrap();
            roots(file.to_str().unwrap()).unwrap_err().to_string()
        };
        assert!(told("").starts_with("it has no certificate"));
        assert!(
            told("-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n").starts_with("it is no file")
        );
    }
}
