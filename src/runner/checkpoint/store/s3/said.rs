//! What a store said, as a user is told.

use std::time::Duration;

use crate::human::{cut, one_line, seconds};
use crate::job::Place;

/// Characters of the longest message of a store that is shown.
const LONGEST: usize = 300;

/// A request that came to nothing.
#[derive(Debug)]
pub enum Failed {
    Request(object_store::Error),
    /// Not answered in time.
    Late,
}

/// The parts of an answer that is an error, as far as there are any.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    status: Option<u16>,
    code: String,
    message: String,
}

impl Failed {
    /// Is there no such object, in a bucket that is there?
    pub fn is_missing(&self) -> bool {
        match self {
            Failed::Request(error @ object_store::Error::NotFound { .. }) => {
                Answer::of(&error.to_string()).code != "NoSuchBucket"
            }
            _ => false,
        }
    }

    /// In a line.
    pub fn said(&self) -> String {
        match self {
            Failed::Late => "the store does not answer".into(),
            Failed::Request(error) => {
                let answer = Answer::of(&error.to_string());
                match answer.status {
                    Some(_) => format!("the store said {answer}"),
                    None => format!("the store does not answer as it should: {}", last_cause(error)),
                }
            }
        }
    }

    fn hint(&self) -> Option<&'static str> {
        let Failed::Request(error) = self else { return Some(ADDRESS) };
        let Answer { status, code, .. } = Answer::of(&error.to_string());
        let of_region =
            ["AuthorizationHeaderMalformed", "PermanentRedirect", "IllegalLocationConstraintException"];
        match (status, code.as_str()) {
            (_, code) if of_region.contains(&code) => Some(REGION),
            (Some(301 | 307), _) => Some(REGION),
            (Some(401 | 403), "AccessDenied" | "") => Some(RIGHTS),
            (Some(401 | 403), _) => Some(KEYS),
            (Some(404), "NoSuchBucket") => Some(BUCKET),
            (None, _) => Some(ADDRESS),
            _ => None,
        }
    }

    /// Was it tried more than once?
    fn is_transient(&self) -> bool {
        let Failed::Request(error) = self else { return true };
        Answer::of(&error.to_string()).status.is_none_or(|status| status >= 500 || status == 429)
    }
}

const ADDRESS: &str =
    "look at AWS_ENDPOINT_URL, at AWS_REGION, and at whether this machine reaches the store";
const REGION: &str = "set AWS_REGION to the region of the bucket";
const RIGHTS: &str = "the keys in the environment have to be allowed s3:ListBucket, s3:GetObject, s3:PutObject and s3:DeleteObject there";
const KEYS: &str =
    "look at AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN and this machine's clock";
const BUCKET: &str = "make the bucket, or look at its name, at AWS_REGION and at AWS_ENDPOINT_URL";

/// What to tell of a request about `place`, for which there was so much time.
pub fn told(what: &str, place: &Place, failed: &Failed, patience: Duration) -> anyhow::Error {
    let said = failed.said();
    let tried = match failed.is_transient() {
        true => format!(", tried for up to {}", seconds(patience.as_secs_f64())),
        false => String::new(),
    };
    let hint = failed.hint().map(|hint| format!("\n  hint: {hint}")).unwrap_or_default();
    anyhow::anyhow!("cannot {what} `{place}`: {said}{tried}{hint}")
}

impl Answer {
    /// Out of the library's text, which has the answer's body in it.
    fn of(text: &str) -> Answer {
        let behind = |before: &str| text.split_once(before).map(|(_, behind)| behind);
        let element = |name: &str| {
            let inside = behind(&format!("<{name}>"))?.split_once(&format!("</{name}>"))?.0;
            Some(shown(inside.trim()))
        };
        let number = |text: &str| text.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok();
        let status = behind("status code: ").and_then(number);
        // Some answers of 200 are errors.
        let status = status.or_else(|| behind("Server returned error response").map(|_| 500));
        let redirect = text.contains("redirect without LOCATION").then_some(301);
        Answer {
            status: status.or(redirect),
            code: element("Code").unwrap_or_default(),
            message: element("Message").unwrap_or_default(),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Answer { status, code, message } = self;
        write!(f, "{}", status.unwrap_or_default())?;
        if !code.is_empty() {
            write!(f, " {code}")?;
        }
        if !message.is_empty() {
            write!(f, ": {}", message.trim_end_matches('.'))?;
        }
        Ok(())
    }
}

fn shown(text: &str) -> String {
    cut(&one_line(text), LONGEST)
}

/// What a failure began with: all that stands around it repeats the request.
fn last_cause(error: &object_store::Error) -> String {
    let mut last: &dyn std::error::Error = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    shown(&last.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_in_what_the_library_says() {
        let text = "Error performing GET http://host/b?list in 2ms, after 3 retries - Server returned non-2xx status code: 503 \
                    Service Unavailable: <?xml version=\"1.0\"?><Error><Code>SlowDown</Code><Message>Please reduce your request \
                    rate.</Message></Error>";
        assert_eq!(Answer::of(text).to_string(), "503 SlowDown: Please reduce your request rate");
        assert_eq!(Answer::of("status code: 403 Forbidden: ").to_string(), "403");
        assert_eq!(Answer::of("Received redirect without LOCATION").status, Some(301));
        assert_eq!(Answer::of("error sending request").status, None);
    }

    #[test]
    fn hints_go_by_what_was_said() {
        let failed = |status: u16, code: &str| {
            let source = format!("status code: {status} X: <Error><Code>{code}</Code></Error>").into();
            Failed::Request(object_store::Error::Generic { store: "S3", source })
        };
        let hint = |status, code| failed(status, code).hint();
        assert_eq!(hint(403, "AccessDenied"), Some(RIGHTS));
        assert_eq!(hint(403, "SignatureDoesNotMatch"), Some(KEYS));
        assert_eq!(hint(404, "NoSuchBucket"), Some(BUCKET));
        assert_eq!(hint(404, "NoSuchKey"), None);
        assert_eq!(hint(400, "AuthorizationHeaderMalformed"), Some(REGION));
        assert_eq!(hint(503, "SlowDown"), None);
        assert!(failed(503, "SlowDown").is_transient() && !failed(403, "AccessDenied").is_transient());
    }
}
