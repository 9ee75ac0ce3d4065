use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::runner::progress::{Look, Mode};
use crate::runner::testing::names;

/// An HTTP server that gives fixed answers, one to a connection.
struct Mirror {
    url: String,
    asked: Arc<Mutex<Vec<String>>>,
}

#[derive(Clone)]
enum Answer {
    File(Vec<u8>),
    /// Says that it is longer than what comes.
    Cut(Vec<u8>),
    /// Does not say how long it is, and ends early.
    CutSilently(Vec<u8>),
    Endless,
    Silence,
}

fn mirror(answers: BTreeMap<&'static str, Answer>) -> Mirror {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/mnist/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    // Ends with the test program.
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            // A client that hangs up early is a case that is tested.
            let _ = serve(stream.unwrap(), &answers, &log);
        }
    });
    Mirror { url, asked }
}

fn serve(
    mut stream: TcpStream,
    answers: &BTreeMap<&str, Answer>,
    asked: &Mutex<Vec<String>>,
) -> io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let request = lines.next().unwrap()?;
    while !lines.next().unwrap()?.is_empty() {}
    let name = request.split(' ').nth(1).unwrap().strip_prefix("/mnist/").unwrap().to_owned();
    let answer = answers.get(name.as_str()).cloned();
    asked.lock().unwrap().push(name);
    let ok = |length: Option<usize>| {
        let length = length.map(|length| format!("Content-Length: {length}\r\n")).unwrap_or_default();
        format!("HTTP/1.1 200 OK\r\nConnection: close\r\n{length}\r\n").into_bytes()
    };
    match answer {
        None => stream.write_all(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
        Some(Answer::File(bytes)) => stream.write_all(&[ok(Some(bytes.len())), bytes].concat()),
        Some(Answer::Cut(bytes)) => stream.write_all(&[ok(Some(bytes.len() + 10)), bytes].concat()),
        Some(Answer::CutSilently(bytes)) => stream.write_all(&[ok(None), bytes].concat()),
        Some(Answer::Endless) => {
            stream.write_all(&ok(None))?;
            loop {
                stream.write_all(&[0; 4096])?;
            }
        }
        // Until the client gives up.
        Some(Answer::Silence) => stream.read(&mut [0]).map(drop),
    }
}

const A: RemoteFile = RemoteFile {
    name: "a.gz",
    unpacked_bytes: 6,
    // printf 'hello\n' | sha256sum
    sha256: "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03",
};
const B: RemoteFile = RemoteFile {
    name: "b.gz",
    unpacked_bytes: 6,
    // printf 'world\n' | sha256sum
    sha256: "e258d248fda94c63753607f7c4494ee0fcbe92f1a76bfdac795c9d84101eb317",
};

fn gz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn good() -> BTreeMap<&'static str, Answer> {
    BTreeMap::from([("a.gz", Answer::File(gz(b"hello\n"))), ("b.gz", Answer::File(gz(b"world\n")))])
}

fn fetcher(mirrors: &[&Mirror]) -> Fetcher {
    let patience = Some(Duration::from_millis(500));
    let config =
        ureq::Agent::config_builder().proxy(None).timeout_recv_response(patience).timeout_per_read(patience);
    Fetcher {
        agent: config.build().new_agent(),
        mirrors: mirrors.iter().map(|mirror| mirror.url.clone()).collect(),
        files: vec![A, B],
    }
}

fn fetch(fetcher: &Fetcher, folder: &Path) -> Result<Fetched, FetchError> {
    let look = Look { mode: Mode::Plain, color: false, unicode: false };
    fetcher.fetch(folder, &Board::new(fetcher.names(), look))
}

/// What fetching says when its only mirror answers so for the first file. D-1: nothing is left behind.
fn failure(answer: Answer) -> String {
    let folder = tempfile::tempdir().unwrap();
    let bad = mirror(BTreeMap::from([("a.gz", answer)]));
    let error = fetch(&fetcher(&[&bad]), folder.path()).unwrap_err();
    assert_eq!(names(folder.path()), [""; 0]);
    let FetchError::NoMirror(none) = error else { panic!("{error}") };
    assert_eq!(none.tries.len(), 1);
    none.tries[0].1.to_string()
}

#[test]
fn files_are_fetched_once_and_kept_when_right() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("data/mnist");
    let good = mirror(good());
    assert_eq!(fetch(&fetcher(&[&good]), &to).unwrap(), Fetched { fetched: 2, kept: 0 });
    assert_eq!(names(&to), ["a.gz", "b.gz"]);
    assert_eq!(fs::read(to.join("a.gz")).unwrap(), gz(b"hello\n"));

    fs::write(to.join("b.gz"), gz(b"wrong\n")).unwrap();
    assert_eq!(fetch(&fetcher(&[&good]), &to).unwrap(), Fetched { fetched: 1, kept: 1 });
    assert_eq!(fs::read(to.join("b.gz")).unwrap(), gz(b"world\n"));
    assert_eq!(*good.asked.lock().unwrap(), ["a.gz", "b.gz", "b.gz"]);
}

/// D-2
#[test]
fn another_mirror_is_asked_when_one_fails_and_asked_first_from_then_on() {
    let folder = tempfile::tempdir().unwrap();
    let (empty, good) = (mirror(BTreeMap::new()), mirror(good()));
    assert_eq!(fetch(&fetcher(&[&empty, &good]), folder.path()).unwrap(), Fetched { fetched: 2, kept: 0 });
    assert_eq!(*empty.asked.lock().unwrap(), ["a.gz"]);
    assert_eq!(*good.asked.lock().unwrap(), ["a.gz", "b.gz"]);
}

/// D-1
#[test]
fn corrupt_answers_are_refused() {
    let other = failure(Answer::File(gz(b"jello\n")));
    assert!(other.starts_with("unpacks to other data: SHA-256 "), "{other}");
    let page = failure(Answer::File(b"<html>please log in</html>".into()));
    assert_eq!(page, "cannot be unpacked: invalid gzip header");
    let mut damaged = gz(b"hello\n");
    let crc = damaged.len() - 6;
    damaged[crc] ^= 1;
    let damaged = failure(Answer::File(damaged));
    assert_eq!(damaged, "cannot be unpacked: corrupt gzip stream does not have a matching checksum");
}

/// D-2
#[test]
fn cut_answers_are_refused() {
    let half = || gz(b"hello\n")[..12].to_vec();
    let said = failure(Answer::Cut(half()));
    assert!(said.starts_with("broke off after 12 bytes: "), "{said}");
    let unsaid = failure(Answer::CutSilently(half()));
    assert!(unsaid.starts_with("cannot be unpacked: "), "{unsaid}");
}

/// D-2
#[test]
fn endless_answers_end_at_a_limit() {
    assert_eq!(failure(Answer::Endless), "more than 4102 bytes, which the file does not have");
    // 3 MB in 3 kB: unpacking stops where the file should end.
    let bomb = failure(Answer::File(gz(&vec![0; 3_000_000])[..].into()));
    assert!(bomb.starts_with("unpacks to other data"), "{bomb}");
}

/// D-2
#[test]
fn a_mirror_that_says_nothing_is_given_up() {
    let silence = failure(Answer::Silence);
    assert!(silence.contains("timeout"), "{silence}");
}

#[test]
fn without_a_mirror_it_says_how_to_go_on() {
    let folder = tempfile::tempdir().unwrap();
    let empty = mirror(BTreeMap::new());
    let error = fetch(&fetcher(&[&empty]), folder.path()).unwrap_err().to_string();
    let error = error.replace(&empty.url, "MIRROR/").replace(&folder.path().display().to_string(), "FOLDER");
    insta::assert_snapshot!(error, @r"
    no mirror gave a.gz
      MIRROR/a.gz: http status: 404
      hint: behind a proxy, set https_proxy
      hint: without a network, put a.gz, b.gz into `FOLDER` and run this again to check them,
            or train on the built-in digits: `pstrain spawn --world-size 4`
    ");
}

#[test]
fn a_folder_that_cannot_be_made_is_no_mirrors_fault() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("file"), b"").unwrap();
    let error = fetch(&fetcher(&[]), &folder.path().join("file/mnist")).unwrap_err();
    assert!(matches!(error, FetchError::Folder { .. }), "{error}");
}
