//! For tests: an HTTP server that answers as it is told to, and remembers what it was asked; and what else they share.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::exporter::Exporter;
use crate::job::{self, Address, Job};
use crate::runner::records::MetricsLine;
use crate::runner::run_folder;
use crate::watch::run::Watched;

pub struct FakeServer {
    pub address: Address,
    asked: Arc<Mutex<Vec<Asked>>>,
}

#[derive(Clone, Debug)]
pub struct Asked {
    pub path: String,
    pub headers: BTreeMap<String, String>,
    pub body: Vec<u8>,
}

impl FakeServer {
    /// `answer`: status and body. Ends with the test program.
    pub fn start(mut answer: impl FnMut(&Asked) -> (u16, Vec<u8>) + Send + 'static) -> FakeServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let request = Asked::read(&stream);
                let (status, body) = answer(&request);
                log.lock().unwrap().push(request);
                let head = format!(
                    "HTTP/1.1 {status} said\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
                    body.len()
                );
                stream.write_all(&[head.into_bytes(), body].concat()).unwrap();
            }
        });
        FakeServer { address: Address::parse(&address).unwrap(), asked }
    }

    /// What it was asked since the last time.
    pub fn asked(&self) -> Vec<Asked> {
        std::mem::take(&mut self.asked.lock().unwrap())
    }
}

impl Asked {
    fn read(stream: &TcpStream) -> Asked {
        let mut reader = BufReader::new(stream);
        let mut line = || {
            let mut line = String::new();
            reader.read_line(&mut line).unwrap();
            line.trim_end().to_owned()
        };
        let first = line();
        let mut words = first.split(' ').map(str::to_owned);
        let path = words.nth(1).unwrap();
        let mut headers = BTreeMap::new();
        loop {
            let line = line();
            let Some((name, value)) = line.split_once(": ") else { break };
            headers.insert(name.to_ascii_lowercase(), value.to_owned());
        }
        let length = headers.get("content-length").map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        Asked { path, headers, body }
    }

    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap()
    }
}

/// The built-in job on two ranks, in `folder`.
pub fn job_in(folder: &Path) -> Job {
    let text = include_str!("../../../jobs/digits_ps.toml");
    std::fs::write(folder.join(run_folder::JOB), text).unwrap();
    let file = job::JobText { name: "digits_ps.toml", text };
    let world_size = vec![("WORLD_SIZE".to_owned(), "2".to_owned())];
    job::load(&job::Sources { file, env: world_size, overrides: &[] }).unwrap().job
}

/// Two logged steps of a trainer, its epoch, a validation that takes its time, and what both ranks use.
pub fn lines() -> Vec<MetricsLine> {
    [
        r#"{"kind":"step","step":5,"epoch":1,"rank":1,"loss":0.5,"lr":0.25,"samples_per_s":64.0,"data_wait_pct":2.0,"staleness":null,"time_s":1.0}"#,
        r#"{"kind":"rank","rank":0,"role":"ps","time_s":2.0,"passed_s":2.0,"resident_bytes":1048576,"cpu_pct":50.0,"seconds":{"forward":0.5}}"#,
        r#"{"kind":"step","step":10,"epoch":1,"rank":1,"loss":null,"lr":0.25,"samples_per_s":64.0,"data_wait_pct":2.0,"staleness":null,"time_s":3.0}"#,
        r#"{"kind":"epoch","step":10,"epoch":1,"rank":1,"loss":0.75,"samples":320,"time_s":3.0}"#,
        r#"{"kind":"rank","rank":0,"role":"ps","time_s":6.0,"passed_s":4.0,"resident_bytes":2097152,"cpu_pct":100.0,"seconds":{"forward":0.25}}"#,
        r#"{"kind":"eval","step":10,"epoch":1,"rank":1,"samples":10,"targets":10,"loss":0.625,"accuracy":0.5,"time_s":3.0}"#,
        r#"{"kind":"message","rank":0,"level":"warn","text":"hot","time_s":6.0}"#,
    ]
    .map(|text| serde_json::from_str(text).unwrap())
    .into()
}

/// Tells all lines, and that the run has ended.
pub fn tell(mut exporter: impl Exporter, lines: &[MetricsLine], folder: &Path) -> anyhow::Result<()> {
    for line in lines {
        exporter.line(line)?;
    }
    let mut run = Watched::new(folder, 2);
    run.read_on(|_| ())?;
    exporter.finish(&run)
}
