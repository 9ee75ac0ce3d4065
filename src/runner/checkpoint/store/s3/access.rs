//! What the environment says of a store: where it is, and by which keys.
//!
//! Keys are taken from the environment alone, and are in no message. A machine's own role is asked for where AWS_METADATA_ENDPOINT
//! says where: elsewhere nobody answers at that address, which would be found out after a minute.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use object_store::aws::{AmazonS3, AmazonS3Builder, AmazonS3ConfigKey};
use object_store::{BackoffConfig, ClientOptions, RetryConfig};

use crate::job::{InBucket, Place};

const KEY_ID: &str = "AWS_ACCESS_KEY_ID";
const SECRET: &str = "AWS_SECRET_ACCESS_KEY";
const ENDPOINTS: [&str; 2] = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"];
const ALLOW_HTTP: &str = "AWS_ALLOW_HTTP";
/// How long a request may take, with all that it takes to try it again.
const TIMEOUT: &str = "PSTRAIN_S3_TIMEOUT_MS";
const PATIENCE: Duration = Duration::from_secs(30);

/// Who may ask, if there are no keys: each of these together.
const OTHER_WAYS: [&[&str]; 5] = [
    &["AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_ROLE_ARN"],
    &["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"],
    &["AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"],
    &["AWS_METADATA_ENDPOINT"],
    // For buckets that anybody may write to.
    &["AWS_SKIP_SIGNATURE"],
];

/// Whatever else has a say.
const OTHERS: [&str; 12] = [
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    ALLOW_HTTP,
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_ROLE_SESSION_NAME",
    "AWS_ENDPOINT_URL_STS",
    "AWS_IMDSV1_FALLBACK",
    "AWS_SERVER_SIDE_ENCRYPTION",
    "AWS_SSE_KMS_KEY_ID",
    "AWS_SSE_BUCKET_KEY_ENABLED",
    "AWS_UNSIGNED_PAYLOAD",
];

pub struct Access {
    values: Vec<(&'static str, String)>,
    pub patience: Duration,
}

impl Access {
    /// To `place`, as messages call it.
    ///
    /// # Errors
    /// No keys, or values that cannot be.
    pub fn from_environment(place: &Place, variable: impl Fn(&str) -> Option<String>) -> Result<Access> {
        let given = |name: &str| variable(name).filter(|value| !value.is_empty());
        let names = OTHER_WAYS.iter().copied().flatten().chain(&ENDPOINTS).chain(&OTHERS);
        let names = [KEY_ID, SECRET].into_iter().chain(names.copied());
        let values: Vec<_> = names.filter_map(|name| Some((name, given(name)?))).collect();
        let access = Access { values, patience: patience(given(TIMEOUT))? };
        access.check().with_context(|| format!("`{place}`"))?;
        Ok(access)
    }

    fn value(&self, name: &str) -> Option<&str> {
        self.values.iter().find(|(other, _)| *other == name).map(|(_, value)| value.as_str())
    }

    fn check(&self) -> Result<()> {
        let has = |name: &str| self.value(name).is_some();
        for (name, value) in &self.values {
            // A line's end that was copied with a key would stand in a header.
            ensure!(
                !value.chars().any(|c| c.is_control() || c.is_whitespace()),
                "{name} has white space in it\n  hint: set it without"
            );
        }
        if has(KEY_ID) != has(SECRET) {
            let [there, missing] = if has(KEY_ID) { [KEY_ID, SECRET] } else { [SECRET, KEY_ID] };
            bail!("{there} is set, and {missing} is not\n  hint: set both, for every rank");
        }
        let other = OTHER_WAYS.iter().any(|names| names.iter().all(|name| has(name)));
        ensure!(
            has(KEY_ID) || other,
            "the environment has no keys for it: {KEY_ID} and {SECRET} are not set\n  \
             hint: set them for every rank, on each machine; docs/checkpoints.md has the other ways"
        );
        for name in ENDPOINTS {
            let Some(endpoint) = self.value(name) else { continue };
            let by_http = endpoint.starts_with("http://");
            ensure!(
                by_http || endpoint.starts_with("https://"),
                "{name} is not the address of a store\n  hint: it begins with https://"
            );
            let allowed = self
                .value(ALLOW_HTTP)
                .is_some_and(|value| value.eq_ignore_ascii_case("true") || value == "1");
            ensure!(
                !by_http || allowed,
                "{name} begins with http://, and others on the way could read the checkpoints\n  \
                 hint: use https://, or set {ALLOW_HTTP}=true where nobody is on the way"
            );
        }
        Ok(())
    }

    pub fn store(self, part: &InBucket) -> Result<AmazonS3> {
        let patience = self.patience;
        let cannot = || format!("`{}`: what the environment says of the store", Place::Bucket(part.clone()));
        // Each try has a share, so that one that hangs is not the only one, and the last one ends before all of it is over.
        let retry = RetryConfig {
            backoff: BackoffConfig {
                init_backoff: Duration::from_millis(100).min(patience / 20),
                max_backoff: patience / 6,
                base: 2.0,
            },
            max_retries: usize::MAX,
            retry_timeout: patience.mul_f64(0.6),
        };
        let client = ClientOptions::new()
            .with_timeout(patience.mul_f64(0.4))
            .with_connect_timeout(Duration::from_secs(5).min(patience / 5))
            .with_pool_idle_timeout(Duration::from_secs(4));
        let mut builder = AmazonS3Builder::new()
            .with_client_options(client)
            .with_retry(retry)
            .with_bucket_name(&part.bucket);
        for (name, value) in self.values {
            let key: AmazonS3ConfigKey = name.to_ascii_lowercase().parse().with_context(cannot)?;
            builder = builder.with_config(key, value);
        }
        builder.build().with_context(cannot)
    }
}

fn patience(given: Option<String>) -> Result<Duration> {
    let Some(given) = given else { return Ok(PATIENCE) };
    let ms = given.parse::<u64>().ok().filter(|ms| (100..=600_000).contains(ms));
    let ms = ms.with_context(|| {
        format!("{TIMEOUT} = {given} is not a time that a request may take\n  hint: use 100 to 600000; it is 30000 unless set")
    })?;
    Ok(Duration::from_millis(ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(variables: &[(&str, &str)]) -> Result<Access> {
        let place = Place::parse("s3://bucket/prefix").unwrap();
        let find = |name: &str| variables.iter().find(|(other, _)| *other == name);
        Access::from_environment(&place, |name| find(name).map(|(_, value)| (*value).to_owned()))
    }

    fn refused(variables: &[(&str, &str)]) -> String {
        format!("{:#}", access(variables).err().expect("refused"))
    }

    const KEYS: [(&str, &str); 2] = [(KEY_ID, "id"), (SECRET, "hidden")];

    #[test]
    fn keys_are_both_there_or_another_way() {
        insta::assert_snapshot!(refused(&[]), @r"
        `s3://bucket/prefix`: the environment has no keys for it: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set
          hint: set them for every rank, on each machine; docs/checkpoints.md has the other ways
        ");
        insta::assert_snapshot!(refused(&[(SECRET, "hidden"), (KEY_ID, "")]), @r"
        `s3://bucket/prefix`: AWS_SECRET_ACCESS_KEY is set, and AWS_ACCESS_KEY_ID is not
          hint: set both, for every rank
        ");
        let part = InBucket { bucket: "bucket".into(), prefix: "prefix".into() };
        for way in OTHER_WAYS {
            let set: Vec<_> = way.iter().map(|name| (*name, "true")).collect();
            access(&set).unwrap().store(&part).unwrap();
            if way.len() > 1 {
                refused(&set[1..]);
            }
        }
        access(&KEYS).unwrap().store(&part).unwrap();
    }

    #[test]
    fn values_that_cannot_be_are_refused_and_keys_are_in_no_message() {
        let with = |name, value| refused(&[&KEYS[..], &[(name, value)]].concat());
        insta::assert_snapshot!(with("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"), @r"
        `s3://bucket/prefix`: AWS_ENDPOINT_URL begins with http://, and others on the way could read the checkpoints
          hint: use https://, or set AWS_ALLOW_HTTP=true where nobody is on the way
        ");
        insta::assert_snapshot!(with("AWS_ENDPOINT_URL_S3", "127.0.0.1:9000"), @r"
        `s3://bucket/prefix`: AWS_ENDPOINT_URL_S3 is not the address of a store
          hint: it begins with https://
        ");
        insta::assert_snapshot!(with(TIMEOUT, "0"), @r"
        PSTRAIN_S3_TIMEOUT_MS = 0 is not a time that a request may take
          hint: use 100 to 600000; it is 30000 unless set
        ");
        let copied = refused(&[(KEY_ID, "id"), (SECRET, "hidden\n")]);
        insta::assert_snapshot!(copied, @r"
        `s3://bucket/prefix`: AWS_SECRET_ACCESS_KEY has white space in it
          hint: set it without
        ");
        let local = [("AWS_ENDPOINT_URL", "http://127.0.0.1:9000"), (ALLOW_HTTP, "true")];
        assert_eq!(access(&[&KEYS[..], &local].concat()).unwrap().patience, PATIENCE);
    }
}
