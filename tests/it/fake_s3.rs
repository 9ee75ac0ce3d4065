//! A store that speaks as much of S3 as checkpoints need, in this process, over a real socket, with faults on demand. Buckets are
//! in the path; it takes whoever names its key, and checks no signature.

use std::collections::BTreeMap;
use std::io::{BufReader, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;

pub const BUCKET: &str = "bucket";
pub const KEY_ID: &str = "test-key";
/// Objects in a page of a list: few, so that there are several pages.
const PAGE: usize = 5;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// An answer with this status and this code.
    Says(u16, &'static str),
    /// Nothing is answered, and nothing closed.
    Hangs,
    /// Half of the body comes, and the connection ends.
    BreaksOff,
    /// The answer waits until [`FakeS3::let_go`].
    Waits,
}

/// What comes over a connection.
#[derive(Debug)]
pub struct Request {
    pub method: String,
    /// Without the bucket.
    pub key: String,
    pub query: BTreeMap<String, String>,
    bucket: String,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

struct Rule {
    fault: Fault,
    /// So many times more.
    times: usize,
    of: fn(&Request) -> bool,
}

#[derive(Default)]
struct State {
    objects: BTreeMap<String, Vec<u8>>,
    /// By number: the key, and the parts.
    uploads: BTreeMap<String, (String, BTreeMap<u32, Vec<u8>>)>,
    begun: usize,
    rules: Vec<Rule>,
    /// What was asked, as `METHOD key`.
    asked: Vec<String>,
    waits: bool,
    stops: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

pub struct FakeS3 {
    address: SocketAddr,
    shared: Arc<Shared>,
}

impl FakeS3 {
    pub fn start() -> FakeS3 {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let shared = Arc::new(Shared::default());
        let serving = shared.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let shared = serving.clone();
                if shared.lock().stops {
                    return;
                }
                // Whoever is killed leaves a connection in the middle of something.
                thread::spawn(move || stream.map(|stream| shared.serve(stream)));
            }
        });
        FakeS3 { address, shared }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Has the next so many requests that `of` knows go wrong.
    pub fn fault(&self, fault: Fault, times: usize, of: fn(&Request) -> bool) {
        let mut state = self.shared.lock();
        state.waits |= matches!(fault, Fault::Waits);
        state.rules.push(Rule { fault, times, of });
    }

    pub fn let_go(&self) {
        let mut state = self.shared.lock();
        state.waits = false;
        state.rules.clear();
        self.shared.changed.notify_all();
    }

    /// By a name, which has to be looked up.
    pub fn named_endpoint(&self) -> String {
        format!("http://localhost:{}", self.address.port())
    }

    pub fn keys(&self) -> Vec<String> {
        self.shared.lock().objects.keys().cloned().collect()
    }

    /// The folders of keys that have a manifest.
    pub fn checkpoints(&self) -> Vec<String> {
        let keys = self.keys();
        keys.iter().filter_map(|key| Some(key.strip_suffix("/manifest.json")?.to_owned())).collect()
    }

    pub fn asked(&self, what: &str) -> usize {
        self.shared.lock().asked.iter().filter(|asked| asked.starts_with(what)).count()
    }

    pub fn change(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change(self.shared.lock().objects.get_mut(key).expect("an object"));
    }

    pub fn put(&self, key: &str, bytes: &[u8]) {
        self.shared.lock().objects.insert(key.into(), bytes.into());
    }

    /// Uploads that were begun, and neither completed nor given up.
    pub fn open_uploads(&self) -> usize {
        self.shared.lock().uploads.len()
    }

    /// Uploads in parts that were ever begun.
    pub fn uploads(&self) -> usize {
        self.shared.lock().begun
    }
}

impl Drop for FakeS3 {
    fn drop(&mut self) {
        self.shared.lock().stops = true;
        self.let_go();
        // Whoever accepts finds out.
        let _ = TcpStream::connect(self.address);
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("nobody panics over it")
    }

    fn serve(&self, mut stream: TcpStream) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream.try_clone()?);
        while let Some(request) = Request::read(&mut reader)? {
            let fault = self.meet(&request);
            let answer = match fault {
                Some(Fault::Says(status, code)) => error(status, code),
                Some(Fault::Hangs) => {
                    drop(self.changed.wait_while(self.lock(), |state| !state.stops));
                    return Ok(());
                }
                Some(Fault::Waits) => {
                    drop(self.changed.wait_while(self.lock(), |state| state.waits && !state.stops));
                    self.lock().answer(&request)
                }
                Some(Fault::BreaksOff) | None => self.lock().answer(&request),
            };
            let half = matches!(fault, Some(Fault::BreaksOff));
            answer.write(&mut stream, request.method == "HEAD", half)?;
            if half {
                return Ok(());
            }
        }
        Ok(())
    }

    fn meet(&self, request: &Request) -> Option<Fault> {
        let mut state = self.lock();
        state.asked.push(format!("{} {}", request.method, request.key));
        let rule = state.rules.iter_mut().find(|rule| rule.times > 0 && (rule.of)(request))?;
        rule.times -= 1;
        Some(rule.fault)
    }
}

impl Request {
    /// None: the connection is over.
    fn read(reader: &mut impl std::io::BufRead) -> std::io::Result<Option<Request>> {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(None);
        }
        let mut words = line.split_whitespace();
        let (method, target) =
            (words.next().unwrap_or_default().to_owned(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let path = decoded(path);
        let (bucket, key) =
            path.trim_start_matches('/').split_once('/').unwrap_or((path.trim_matches('/'), ""));
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let query = pairs.map(|(name, value)| (decoded(name), decoded(value))).collect();
        let (bucket, key) = (bucket.to_owned(), key.to_owned());
        let mut headers = BTreeMap::new();
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length: &String| length.parse().ok());
        let mut body = vec![0; length.unwrap_or(0)];
        reader.read_exact(&mut body)?;
        Ok(Some(Request { method, key, query, bucket, headers, body }))
    }

    /// Whether it puts an object, or parts of one.
    pub fn is_put(&self) -> bool {
        self.method == "PUT"
    }

    fn range(&self, bytes: usize) -> Option<(usize, usize)> {
        let (from, to) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        let to = to.parse().map_or(bytes, |last: usize| bytes.min(last + 1));
        Some((from.parse().ok()?, to))
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> Answer {
        let by = request.headers.get("authorization").map_or("", String::as_str);
        if !by.contains(&format!("Credential={KEY_ID}/")) {
            return error(403, "InvalidAccessKeyId");
        }
        if request.bucket != BUCKET {
            return error(404, "NoSuchBucket");
        }
        let Request { method, key, query, body, .. } = request;
        let upload = query.get("uploadId");
        match (method.as_str(), key.as_str(), upload) {
            ("GET", "", _) => self.list(query),
            ("GET" | "HEAD", ..) => self.get(request),
            ("PUT", _, Some(upload)) => {
                let number = query["partNumber"].parse().expect("a number");
                let Some((_, parts)) = self.uploads.get_mut(upload) else {
                    return error(404, "NoSuchUpload");
                };
                parts.insert(number, body.clone());
                tagged(format!("\"{number}\""))
            }
            ("PUT", ..) => {
                self.objects.insert(key.clone(), body.clone());
                tagged("\"whole\"".into())
            }
            ("POST", "", _) if query.contains_key("delete") => self.delete(&String::from_utf8_lossy(body)),
            ("POST", ..) if query.contains_key("uploads") => {
                self.begun += 1;
                let id = self.begun.to_string();
                self.uploads.insert(id.clone(), (key.clone(), BTreeMap::new()));
                xml(
                    200,
                    format!(
                        "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                    ),
                )
            }
            ("POST", _, Some(upload)) => {
                let Some((key, parts)) = self.uploads.remove(upload) else {
                    return error(404, "NoSuchUpload");
                };
                self.objects.insert(key, parts.into_values().flatten().collect());
                xml(
                    200,
                    "<CompleteMultipartUploadResult><ETag>\"parts\"</ETag></CompleteMultipartUploadResult>"
                        .into(),
                )
            }
            ("DELETE", _, Some(upload)) => {
                self.uploads.remove(upload);
                Answer { status: 204, headers: Vec::new(), body: Vec::new() }
            }
            _ => error(501, "NotImplemented"),
        }
    }

    fn get(&self, request: &Request) -> Answer {
        let Some(object) = self.objects.get(&request.key) else { return error(404, "NoSuchKey") };
        let mut headers =
            vec![("ETag", "\"whole\"".into()), ("Last-Modified", "Tue, 01 Sep 2026 12:00:00 GMT".into())];
        let Some((from, to)) = request.range(object.len()) else {
            return Answer { status: 200, headers, body: object.clone() };
        };
        if from >= object.len() {
            return error(416, "InvalidRange");
        }
        headers.push(("Content-Range", format!("bytes {from}-{}/{}", to - 1, object.len())));
        Answer { status: 206, headers, body: object[from..to].to_vec() }
    }

    fn list(&self, query: &BTreeMap<String, String>) -> Answer {
        let prefix = query.get("prefix").map_or("", String::as_str);
        let behind = query.get("continuation-token").map_or("", String::as_str);
        let mut found =
            self.objects.iter().filter(|(key, _)| key.starts_with(prefix) && key.as_str() > behind);
        let page: Vec<_> = found.by_ref().take(PAGE).collect();
        let mut text = String::from("<ListBucketResult>");
        for (key, object) in &page {
            text.push_str(&format!(
                "<Contents><Key>{key}</Key><Size>{}</Size><LastModified>2026-09-01T12:00:00.000Z</LastModified></Contents>",
                object.len()
            ));
        }
        if let (Some(_), Some((last, _))) = (found.next(), page.last()) {
            text.push_str(&format!("<NextContinuationToken>{last}</NextContinuationToken>"));
        }
        xml(200, text + "</ListBucketResult>")
    }

    fn delete(&mut self, body: &str) -> Answer {
        let keys = body.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>"));
        let mut text = String::from("<DeleteResult>");
        for (key, _) in keys {
            self.objects.remove(key);
            self.asked.push(format!("delete {key}"));
            text.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
        }
        xml(200, text + "</DeleteResult>")
    }
}

impl Answer {
    fn write(&self, stream: &mut TcpStream, is_head: bool, half: bool) -> std::io::Result<()> {
        let Answer { status, headers, body } = self;
        let mut text = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            text.push_str(&format!("{name}: {value}\r\n"));
        }
        stream.write_all((text + "\r\n").as_bytes())?;
        let length = match (is_head, half) {
            (true, _) => 0,
            (_, true) => body.len() / 2,
            _ => body.len(),
        };
        stream.write_all(&body[..length])
    }
}

fn tagged(tag: String) -> Answer {
    Answer { status: 200, headers: vec![("ETag", tag)], body: Vec::new() }
}

fn xml(status: u16, text: String) -> Answer {
    Answer { status, headers: vec![("Content-Type", "application/xml".into())], body: text.into_bytes() }
}

fn error(status: u16, code: &str) -> Answer {
    let message = match code {
        "AccessDenied" => "Access Denied",
        "NoSuchBucket" => "The specified bucket does not exist",
        "NoSuchKey" => "The specified key does not exist.",
        "SlowDown" => "Please reduce your request rate.",
        "InvalidAccessKeyId" => "The AWS Access Key Id you provided does not exist in our records.",
        _ => "",
    };
    xml(status, format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"))
}

/// The text that is encoded in a URL.
fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes().iter();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'%' => {
                let digits: String = rest.by_ref().take(2).map(|byte| char::from(*byte)).collect();
                u8::from_str_radix(&digits, 16).expect("two digits")
            }
            b'+' => b' ',
            byte => *byte,
        });
    }
    String::from_utf8(bytes).expect("UTF-8")
}
