//! A run as a dashboard tells of it (`watch::serve`): `/run.json`, and what is newer by `/events`.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::Path;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;
use std::time::Duration;

use serde::Deserialize;

use crate::job::Address;
use crate::profile::Activity;
use crate::runner::metrics::Summary;
use crate::runner::records::{EvalRecord, MessageRecord, RankRecord, StepRecord};
use crate::topology::Rank;
use crate::watch::run::{RankUse, Trainer, Watched};
use crate::watch::series::Series;

/// Bytes of what a dashboard tells of a run.
const MOST_BYTES: u64 = 64 << 20;

const CONNECTING: Duration = Duration::from_secs(3);
/// For an answer. A run that stands still has no events.
const ANSWER: Duration = Duration::from_secs(10);

/// Where a dashboard is.
pub struct Dashboard {
    address: Address,
    token: Option<String>,
}

/// What a dashboard tells of a run.
pub struct Told {
    pub watched: Watched,
    /// The text of its job.
    pub job: String,
    pub under_way: bool,
}

/// The newer ones of what it told.
pub struct Events(Receiver<io::Result<Told>>);

impl Dashboard {
    /// `127.0.0.1:8080`, `http://host:8080/?token=...`. None: it is none of these. `token`: for an address that has none in it.
    pub fn parse(text: &str, token: Option<String>) -> Option<Dashboard> {
        let (place, query) = text.split_once('?').unwrap_or((text, ""));
        let is_port = |port: &str| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit());
        let is_bare = place.rsplit_once(':').is_some_and(|(host, port)| !host.contains('/') && is_port(port));
        let address = match () {
            () if place.contains("://") => Address::parse(place),
            () if is_bare => Address::parse(&format!("http://{place}")),
            () => return None,
        };
        let given = query.split('&').find_map(|part| part.strip_prefix("token="));
        Some(Dashboard { address: address.ok()?, token: given.map(str::to_owned).or(token) })
    }

    /// Without the token.
    pub fn name(&self) -> String {
        self.address.to_string()
    }

    /// The run as it is now.
    ///
    /// # Errors
    /// Nobody answers there, or something else.
    pub fn run(&self) -> io::Result<Told> {
        let body = self.get("run.json", Some(ANSWER))?;
        let mut text = Vec::new();
        body.into_reader().take(MOST_BYTES).read_to_end(&mut text)?;
        Told::read(&text)
    }

    /// What is newer, as it comes, until the run ends.
    ///
    /// # Errors
    /// Nobody answers there; there is no thread for it.
    pub fn events(&self) -> io::Result<Events> {
        let from = BufReader::new(self.get("events", None)?.into_reader());
        let (send, told) = mpsc::sync_channel(1);
        let read = move || {
            let ended = pass_on(from, |event| send.send(Ok(event)).is_ok());
            if let Err(error) = ended {
                // Nobody may look any more.
                let _ = send.send(Err(error));
            }
        };
        thread::Builder::new().name("events".into()).spawn(read)?;
        Ok(Events(told))
    }

    fn get(&self, path: &str, within: Option<Duration>) -> io::Result<ureq::Body> {
        let config = ureq::Agent::config_builder()
            .timeout_connect(Some(CONNECTING))
            .timeout_recv_response(Some(ANSWER))
            .timeout_recv_body(within)
            .http_status_as_error(false)
            // The token is for this address alone.
            .max_redirects(0);
        let config = if self.address.is_here() { config.proxy(None) } else { config };
        let mut request = config.build().new_agent().get(self.address.join(path));
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.call().map_err(io::Error::other)?;
        match answer.status().as_u16() {
            200 => Ok(answer.into_body()),
            403 => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it wants its token")),
            status => Err(io::Error::other(format!("it answers {status}: is it the dashboard of a run?"))),
        }
    }
}

impl Events {
    /// The newest one that has come since the last call.
    ///
    /// # Errors
    /// The dashboard does not answer any more.
    pub fn newest(&self) -> io::Result<Option<Told>> {
        let mut newest = None;
        loop {
            match self.0.try_recv() {
                Ok(told) => newest = Some(told?),
                // Behind the end of a run comes nothing.
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Ok(newest),
            }
        }
    }
}

/// Gives what each server-sent event tells of a run, as long as it is taken and until the event `end`.
fn pass_on(mut from: impl BufRead, mut take: impl FnMut(Told) -> bool) -> io::Result<()> {
    let mut line = Vec::new();
    loop {
        line.clear();
        if from.by_ref().take(MOST_BYTES).read_until(b'\n', &mut line)? == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has ended"));
        }
        let text = line.trim_ascii();
        if text == b"event: end" {
            return Ok(());
        }
        let Some(told) = text.strip_prefix(b"data: ").filter(|told| !told.is_empty()) else { continue };
        if !take(Told::read(told)?) {
            return Ok(());
        }
    }
}

/// As `watch::view` writes it: what of that is drawn here.
#[derive(Deserialize)]
struct PageTold {
    runs: Vec<RunTold>,
}

#[derive(Deserialize)]
struct RunTold {
    folder: String,
    job: String,
    under_way: bool,
    trainers: Vec<TrainerTold>,
    ranks: Vec<RankTold>,
    evals: Vec<EvalRecord>,
    messages: Vec<MessageRecord>,
    summary: Option<Summary>,
}

#[derive(Deserialize)]
struct TrainerTold {
    rank: Rank,
    last: Option<StepRecord>,
    figures: BTreeMap<String, ColumnsTold>,
}

#[derive(Deserialize)]
struct RankTold {
    rank: Rank,
    last: RankRecord,
    seconds: BTreeMap<Activity, Option<f64>>,
    figures: BTreeMap<String, ColumnsTold>,
}

#[derive(Deserialize)]
struct ColumnsTold {
    x: Vec<Option<f64>>,
    mean: Vec<Option<f64>>,
}

impl Told {
    fn read(text: &[u8]) -> io::Result<Told> {
        let page: PageTold = serde_json::from_slice(text)
            .map_err(|error| io::Error::other(format!("it does not tell of a run: {error}")))?;
        let run = page.runs.into_iter().next();
        let run = run.ok_or_else(|| io::Error::other("it tells of no run"))?;
        let mut watched = Watched::new(Path::new(&run.folder), 1);
        watched.trainers = run.trainers.into_iter().map(|told| (told.rank, told.trainer())).collect();
        watched.ranks = run.ranks.into_iter().map(|told| (told.rank, told.used())).collect();
        watched.evals = run.evals.into();
        watched.messages = run.messages.into();
        watched.summary = run.summary;
        Ok(Told { watched, job: run.job, under_way: run.under_way })
    }
}

impl TrainerTold {
    fn trainer(self) -> Trainer {
        let series = |ColumnsTold { x, mean }: ColumnsTold| {
            let mut series = Series::new(x.len());
            let points = x.into_iter().zip(mean).filter_map(|(x, mean)| Some((x?, mean?)));
            points.for_each(|(x, mean)| series.push(x, 0.0, mean));
            series
        };
        let figures = self.figures.into_iter().map(|(name, columns)| (name, series(columns)));
        Trainer::told(self.last, figures.collect())
    }
}

impl RankTold {
    fn used(self) -> RankUse {
        let time_s = self.figures.get("memory").and_then(|memory| *memory.x.last()?);
        let mut used = RankUse::new(&self.last);
        used.goes_on_until(time_s.unwrap_or(self.last.time_s));
        used.seconds = self.seconds.into_iter().filter_map(|(of, seconds)| Some((of, seconds?))).collect();
        used
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_from_a_folder_that_is_not_there() {
        let name = |text| Dashboard::parse(text, None).map(|dashboard| dashboard.name());
        for address in ["127.0.0.1:8080", "[::1]:80", "http://host:1/", "https://host"] {
            assert!(name(address).is_some(), "{address}");
        }
        for folder in ["runs/digits", "runs/a:1", "C:", "digits"] {
            assert_eq!(name(folder), None, "{folder}");
        }
    }

    #[test]
    fn the_token_of_an_address_goes_before_that_of_the_environment_and_is_not_shown() {
        let dashboard = Dashboard::parse("http://host:1/?token=secret", Some("other".into())).unwrap();
        assert_eq!(
            (dashboard.name().as_str(), dashboard.token.as_deref()),
            ("http://host:1", Some("secret"))
        );
        let dashboard = Dashboard::parse("host:1", Some("other".into())).unwrap();
        assert_eq!(dashboard.token.as_deref(), Some("other"));
    }

    #[test]
    fn events_are_read_until_the_end_and_one_that_breaks_off_is_no_end() {
        let run = r#"{"runs":[{"folder":"f","job":"","under_way":true,"trainers":[],"ranks":[],"evals":[],"messages":[],"summary":null}]}"#;
        let text = format!(": hello\n\ndata: {run}\n\ndata: {run}\n\nevent: end\ndata\n\ndata: nothing\n");
        let mut count = 0;
        let mut take = |_| {
            count += 1;
            true
        };
        pass_on(text.as_bytes(), &mut take).unwrap();
        let broken = pass_on(format!("data: {run}\n").as_bytes(), &mut take).unwrap_err();
        assert_eq!((count, broken.kind()), (3, io::ErrorKind::UnexpectedEof));
        assert!(pass_on(&b"data: <html>\n"[..], |_| true).is_err());
    }
}
