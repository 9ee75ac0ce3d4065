//! The page of a run while it goes on, over HTTP: the page, what it is drawn from, and newer ones of that as they come.
//!
//! - `/` the page, `/run.json` what it shows, `/events` newer ones of that as server-sent events, `/metrics` for Prometheus.
//! - Beyond this machine whoever asks has to show the token, as `?token=` or as `Authorization: Bearer`. On it requests have
//!   to name this machine, so that no page of elsewhere reads them through a browser.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::middleware::{self, Next};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{Html, IntoResponse, Response};
use axum::routing::get;
use axum::serve::Listener;
use futures::{Stream, stream};
use subtle::ConstantTimeEq as _;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{Instant, Sleep, sleep};

use super::export::prometheus;
use super::page;
use crate::rpc::Token;

/// Connections at a time.
const MOST_CONNECTIONS: usize = 64;
/// A connection over which nothing was sent for so long is closed: whoever says nothing has no room for long.
const SILENCE: Duration = Duration::from_secs(25);
/// How often something is sent to who waits for news.
const SIGN_OF_LIFE: Duration = Duration::from_secs(5);

/// What is shown now.
pub struct Shown {
    /// JSON of a [`page::Page`].
    pub page: String,
    /// Text for Prometheus.
    pub metrics: String,
    /// Nothing comes behind it.
    pub is_last: bool,
}

/// Who may look.
#[derive(Clone)]
pub enum Access {
    /// Whoever is on this machine.
    Here,
    /// Whoever has the token.
    Token(String),
}

impl Access {
    /// By where the server listens.
    ///
    /// # Errors
    /// Others than this machine can reach it, and there is no token; the token would be guessed.
    pub fn at(address: IpAddr, token: Option<String>) -> Result<Access, String> {
        match token {
            Some(token) => match Token::new(&token) {
                Ok(_) => Ok(Access::Token(token)),
                Err(weak) => Err(format!("PSTRAIN_TOKEN: {weak}")),
            },
            None if address.is_loopback() => Ok(Access::Here),
            None => Err(format!(
                "a dashboard at {address} can be reached by others, and there is no token to let in only those who know it\n  \
                 hint: set PSTRAIN_TOKEN (`pstrain token` makes one), or listen at 127.0.0.1 and forward the port with ssh"
            )),
        }
    }

    fn lets_in(&self, uri: &Uri, headers: &HeaderMap) -> bool {
        match self {
            Access::Here => names_this_machine(headers),
            Access::Token(token) => {
                let bearer = headers
                    .get(header::AUTHORIZATION)
                    .and_then(|value| value.to_str().ok()?.strip_prefix("Bearer "));
                let query = uri
                    .query()
                    .and_then(|query| query.split('&').find_map(|part| part.strip_prefix("token=")));
                bearer.or(query).is_some_and(|given| bool::from(given.as_bytes().ct_eq(token.as_bytes())))
            }
        }
    }
}

fn names_this_machine(headers: &HeaderMap) -> bool {
    let Some(host) = headers.get(header::HOST).and_then(|host| host.to_str().ok()) else { return false };
    let name = host
        .rsplit_once(':')
        .filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()))
        .map_or(host, |(name, _)| name);
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Serves what `shown` has, in a thread of its own, for as long as the process lives. Returns where.
///
/// # Errors
/// It cannot listen there.
pub fn start(at: SocketAddr, access: Access, shown: watch::Receiver<Arc<Shown>>) -> Result<SocketAddr> {
    let listening =
        std::net::TcpListener::bind(at).with_context(|| format!("the dashboard cannot listen at {at}"))?;
    listening.set_nonblocking(true)?;
    let address = listening.local_addr()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let routes = Router::new()
        .route("/", get(|State(shown): Shows| async move { Html(page::html(&shown.borrow().page)) }))
        .route(
            "/run.json",
            get(|State(shown): Shows| async move { typed("application/json", &shown.borrow().page) }),
        )
        .route(
            "/metrics",
            get(
                |State(shown): Shows| async move { typed(prometheus::CONTENT_TYPE, &shown.borrow().metrics) },
            ),
        )
        .route(
            "/events",
            get(|State(shown): Shows| async move {
                Sse::new(events(shown)).keep_alive(KeepAlive::new().interval(SIGN_OF_LIFE))
            }),
        )
        .layer(middleware::from_fn_with_state(access, let_in))
        .with_state(shown);
    let serve = move || {
        runtime.block_on(async {
            let listener = TcpListener::from_std(listening)?;
            axum::serve(Few::new(listener, SILENCE), routes).await
        })
    };
    thread::Builder::new().name("dashboard".into()).spawn(serve).context("cannot start a thread")?;
    Ok(address)
}

type Shows = State<watch::Receiver<Arc<Shown>>>;

async fn let_in(State(access): State<Access>, request: Request, next: Next) -> Response {
    match access.lets_in(request.uri(), request.headers()) {
        true => next.run(request).await,
        false => (
            StatusCode::FORBIDDEN,
            "this dashboard wants its token: ?token=..., or Authorization: Bearer ...\n",
        )
            .into_response(),
    }
}

fn typed(kind: &'static str, text: &str) -> Response {
    ([(header::CONTENT_TYPE, kind)], text.to_owned()).into_response()
}

/// What is shown from now on, each time it changes; then `end`.
fn events(shown: watch::Receiver<Arc<Shown>>) -> impl Stream<Item = Result<Event, Infallible>> {
    let next = |(mut shown, ended): (watch::Receiver<Arc<Shown>>, bool)| async move {
        if ended {
            return None;
        }
        if shown.borrow().is_last || shown.changed().await.is_err() {
            return Some((Ok(Event::default().event("end").data("")), (shown, true)));
        }
        let page = shown.borrow_and_update().page.clone();
        Some((Ok(Event::default().data(page)), (shown, false)))
    };
    stream::unfold((shown, false), next)
}

/// Takes no more connections than there is room for: further ones wait.
struct Few {
    listener: TcpListener,
    free: Arc<Semaphore>,
    silence: Duration,
}

impl Few {
    fn new(listener: TcpListener, silence: Duration) -> Few {
        Few { listener, free: Arc::new(Semaphore::new(MOST_CONNECTIONS)), silence }
    }
}

impl Listener for Few {
    type Io = Held;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Held, SocketAddr) {
        let permit = self.free.clone().acquire_owned().await.expect("nobody closes it");
        let (stream, address) = Listener::accept(&mut self.listener).await;
        let (silence, silent) = (self.silence, Box::pin(sleep(self.silence)));
        (Held { stream, silence, silent, _permit: permit }, address)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection, with its room.
struct Held {
    stream: TcpStream,
    silence: Duration,
    /// Since something was sent.
    silent: Pin<Box<Sleep>>,
    _permit: OwnedSemaphorePermit,
}

impl AsyncRead for Held {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let held = self.get_mut();
        let read = Pin::new(&mut held.stream).poll_read(context, buffer);
        match read.is_pending() && held.silent.as_mut().poll(context).is_ready() {
            true => Poll::Ready(Err(io::ErrorKind::TimedOut.into())),
            false => read,
        }
    }
}

impl AsyncWrite for Held {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let held = self.get_mut();
        held.silent.as_mut().reset(Instant::now() + held.silence);
        Pin::new(&mut held.stream).poll_write(context, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(context)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        pairs
            .iter()
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .collect::<HeaderMap>()
    }

    #[test]
    fn pages_of_elsewhere_do_not_reach_this_machine_through_a_browser() {
        let here = |host| Access::Here.lets_in(&Uri::from_static("/"), &headers(&[("host", host)]));
        assert!(["localhost:80", "127.0.0.1:4000", "[::1]:4000", "127.0.0.1"].into_iter().all(here));
        assert!(!["evil.example:4000", "127.0.0.1.evil.example", ""].into_iter().any(here));
        assert!(!Access::Here.lets_in(&Uri::from_static("/"), &headers(&[])));
    }

    #[test]
    fn from_elsewhere_the_token_is_wanted() {
        let access = Access::Token("secret".into());
        let lets_in =
            |uri: &'static str, given: &[_]| access.lets_in(&Uri::from_static(uri), &headers(given));
        assert!(lets_in("/events?token=secret", &[]) && lets_in("/", &[("authorization", "Bearer secret")]));
        assert!(
            !lets_in("/", &[])
                && !lets_in("/?token=secre", &[])
                && !lets_in("/", &[("authorization", "Bearer other")])
        );
        let problem = |token| Access::at("10.0.0.1".parse().unwrap(), token).err().unwrap();
        assert!(problem(None).contains("there is no token"), "{}", problem(None));
        assert!(problem(None).contains("PSTRAIN_TOKEN"), "{}", problem(None));
        let guessed = problem(Some("letmein".into()));
        assert!(guessed.starts_with("PSTRAIN_TOKEN: the join token has 7 characters"), "{guessed}");
    }

    #[test]
    fn who_says_nothing_has_no_room_for_long_and_who_hears_news_stays() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (shown, page) =
            watch::channel(Arc::new(Shown { page: "{}".into(), metrics: String::new(), is_last: false }));
        runtime.block_on(async {
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let at = listener.local_addr().unwrap();
            let silence = Duration::from_secs(2);
            let news = KeepAlive::new().interval(silence / 20);
            let hear = move || async move { Sse::new(events(page)).keep_alive(news) };
            let routes = Router::new().route("/", get(hear));
            tokio::spawn(async move { axum::serve(Few::new(listener, silence), routes).await });
            let mut silent = TcpStream::connect(at).await.unwrap();
            let mut hears = TcpStream::connect(at).await.unwrap();
            hears.write_all(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
            assert_eq!(silent.read(&mut [0; 9]).await.unwrap(), 0, "closed");
            let begun = Instant::now();
            while begun.elapsed() < silence {
                assert!(hears.read(&mut [0; 999]).await.unwrap() > 0);
            }
        });
        drop(shown);
    }
}
