//! From what wasmtime and the guest leave behind to a [`PluginError`] that a person can act on.

use std::time::Duration;

use wasmtime::component::ResourceTableError;
use wasmtime::{Trap, WasmBacktrace};
use wasmtime_wasi::I32Exit;

use super::error::{PluginError, PluginErrorKind, Refusal, tame};
use crate::human;

/// The call that failed, as far as its error needs it.
pub struct Call<'a> {
    pub name: &'a str,
    pub what: &'static str,
    pub limit: Duration,
    pub memory_limit_bytes: u64,
    pub max_files: usize,
    /// The size that the guest's memory would have had, if it was refused more.
    pub refused_bytes: Option<u64>,
    pub stderr: &'a str,
    pub root: Option<&'a str>,
}

/// Wasmtime's words for lists that are larger in the host than `set_hostcall_fuel` allows; it has no type for them.
const HOSTCALLS: &str = "fuel allocated for hostcalls";

/// The guest trapped, or the host's side of an import did.
pub fn trapped(call: &Call, error: &wasmtime::Error) -> PluginError {
    let (kind, message, hint) = reason(call, error);
    let panic = Panic::find(call.stderr);
    let place = match kind {
        PluginErrorKind::Panicked | PluginErrorKind::OutOfMemory { .. } => {
            panic.and_then(|panic| panic.place)
        }
        _ => None,
    };
    PluginError {
        name: call.name.into(),
        what: call.what,
        kind,
        message: tame(&message),
        place: place.or_else(|| place_of(error)).map(Into::into),
        hint: hint.map(Into::into),
    }
}

fn reason(call: &Call, error: &wasmtime::Error) -> (PluginErrorKind, String, Option<String>) {
    if let Some(refusal) = error.downcast_ref::<Refusal>() {
        return (refusal.kind, refusal.message.clone(), refusal.hint.clone());
    }
    if error.downcast_ref::<Trap>() == Some(&Trap::Interrupt) {
        let opening = matches!(call.what, "start" | "open");
        let key = if opening { "plugins.open_time_ms" } else { "plugins.time_ms" };
        let hint = format!("it may be in an endless loop; if it needs longer, raise `{key}`");
        return (PluginErrorKind::TimedOut { limit: call.limit }, String::new(), Some(hint));
    }
    if let Some(ResourceTableError::Full) = error.downcast_ref() {
        let message = format!("it holds {} files, tensors and other handles, its limit", call.max_files);
        let hint = "close what is read; if it needs more at one time, raise `plugins.max_files`".into();
        return (PluginErrorKind::BadOperation, message, Some(hint));
    }
    if error.root_cause().to_string().contains(HOSTCALLS) {
        let limit = human::bytes(call.memory_limit_bytes);
        let message = format!("it handed lists and texts over that take more than its memory, {limit}");
        let hint = "hand over less at one time; if it needs more, raise `plugins.memory_mb`".into();
        return (PluginErrorKind::BadOperation, message, Some(hint));
    }
    if let Some(wanted) = call.refused_bytes {
        let kind = PluginErrorKind::OutOfMemory { limit_bytes: call.memory_limit_bytes };
        let hint = "if it needs more, raise `plugins.memory_mb`".into();
        return (kind, format!("it asked for {}", human::bytes(wanted)), Some(hint));
    }
    if let Some(panic) = Panic::find(call.stderr) {
        let hint = panic.place.is_none().then(|| HANDED_OVER.to_owned());
        return (PluginErrorKind::Panicked, panic.message, hint);
    }
    let message = if error.is::<I32Exit>() {
        with_last_lines("it called `exit`".into(), call.stderr)
    } else if let Some(trap) = error.downcast_ref::<Trap>() {
        with_last_lines(trap.to_string(), call.stderr)
    } else {
        // The outermost message is wasmtime's backtrace; the cause is what happened.
        with_last_lines(error.root_cause().to_string(), call.stderr)
    };
    (PluginErrorKind::Panicked, message, None)
}

/// The guest returned an error, in its own words. A last line `hint: ...` is its hint.
pub fn failed(call: &Call, message: &str) -> PluginError {
    let message = tame(message);
    let (message, own_hint) = match message.rsplit_once('\n') {
        Some((rest, last)) => match last.trim_start().strip_prefix("hint:") {
            Some(hint) => (rest.trim_end(), Some(hint.trim().to_owned())),
            None => (&*message, None),
        },
        None => (&*message, None),
    };
    // Without a folder every file is out of reach, however the guest's library puts that.
    let denied = is_denial(message) || (call.root.is_none() && is_missing(message));
    let (kind, hint) = match call.root {
        _ if !denied => {
            let missing = call.root.filter(|_| is_missing(message));
            let looked = missing.map(|root| format!("files are looked for in `{root}` (`data.root`)"));
            (PluginErrorKind::Failed, own_hint.or(looked))
        }
        Some(root) => {
            let sees = format!("a plug-in sees `{root}` (`data.root`), read-only, and nothing else");
            (PluginErrorKind::Denied, Some(format!("{sees}; name files relative to it")))
        }
        None => {
            let hint = "only a dataset sees files; give it what it needs as parameters";
            (PluginErrorKind::Denied, Some(hint.to_owned()))
        }
    };
    let message = if message.is_empty() { "it gave no reason" } else { message };
    let error = PluginError::new(call.name, call.what, kind, message);
    PluginError { hint: hint.map(Into::into), ..error }
}

/// What WASI's refusals look like when Rust's, Python's or C's library has put them into words.
fn is_denial(message: &str) -> bool {
    const SIGNS: [&str; 9] = [
        "failed to find a pre-opened file descriptor",
        "(os error 2)",  // EACCES
        "(os error 63)", // EPERM: a path that leads outside, or writing
        "(os error 69)", // EROFS
        "(os error 76)", // ENOTCAPABLE
        "[Errno 2]",
        "[Errno 63]",
        "[Errno 69]",
        "[Errno 76]",
    ];
    SIGNS.iter().any(|sign| message.contains(sign)) || (is_missing(message) && names_absolute_path(message))
}

/// ENOENT is 44 in WASI; the third is how the SDK says it.
fn is_missing(message: &str) -> bool {
    ["(os error 44)", "[Errno 44]", "the data folder has no file"].iter().any(|sign| message.contains(sign))
}

/// The C library looks for `/etc/passwd` inside the data folder and then says that it is missing.
fn names_absolute_path(message: &str) -> bool {
    let mut words = message.split(|c: char| c.is_whitespace() || "`'\":()".contains(c));
    words.any(|word| word.starts_with('/') && !word.starts_with("/data"))
}

/// componentize-py knows no more of a value that it cannot pass on than which exception it was.
const HANDED_OVER: &str =
    "a value of a type that `wit/plugin.wit` does not have there was handed to the host, or given back to it";

/// A panic's or an exception's report on stderr.
#[derive(Debug, PartialEq)]
struct Panic {
    message: String,
    /// None of one in the runtime of Python, between the plug-in and the host.
    place: Option<String>,
}

impl Panic {
    fn find(stderr: &str) -> Option<Panic> {
        // Python's runtime panics after an exception, without saying which.
        Panic::python(stderr).or_else(|| Panic::rust(stderr))
    }

    /// `thread 'main' panicked at src/lib.rs:12:9:\nmessage`, or all on one line.
    fn rust(stderr: &str) -> Option<Panic> {
        let (_, report) = stderr.rsplit_once("panicked at ")?;
        let (place, message) = split_place(report)?;
        let message = message.split("\nnote: ").next().unwrap_or_default().trim();
        let in_runtime = Panic::of_pythons_runtime(message);
        Some(in_runtime.unwrap_or_else(|| Panic { message: message.into(), place: Some(place.into()) }))
    }

    /// `called `Result::unwrap()` on an `Err` value: PyErr { type: .., value: TypeError(".."), traceback: None }`
    fn of_pythons_runtime(message: &str) -> Option<Panic> {
        let (_, error) = message.split_once("PyErr { type: ")?;
        let (_, value) = error.split_once(" value: ")?;
        let (value, _) = value.rsplit_once(", traceback: ")?;
        Some(Panic { message: value.into(), place: None })
    }

    /// The last frame and the last line of a traceback.
    fn python(stderr: &str) -> Option<Panic> {
        let (_, report) = stderr.rsplit_once("Traceback (most recent call last):")?;
        let message = report.lines().find(|line| !line.starts_with(' ') && !line.is_empty())?;
        let place = report.lines().filter_map(|line| line.trim().strip_prefix("File \"")).next_back();
        let place = place.and_then(|frame| {
            let (file, rest) = frame.split_once("\", line ")?;
            let line: String = rest.chars().take_while(char::is_ascii_digit).collect();
            Some(format!("{file}:{line}"))
        });
        Some(Panic { message: message.into(), place })
    }
}

/// `("src/lib.rs:12:9", "message")` of `src/lib.rs:12:9: message`.
fn split_place(report: &str) -> Option<(&str, &str)> {
    let line_end = report.find('\n').unwrap_or(report.len());
    let mut colons = report[..line_end].match_indices(':').map(|(at, _)| at);
    // Windows' drive letters and the like: the two colons before numbers are the ones.
    let mut before = colons.next()?;
    for at in colons {
        let number = &report[before + 1..at];
        let first = report[..before].rsplit(':').next().unwrap_or_default();
        let numeric = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if numeric(number) && numeric(first) {
            return Some((&report[..at], &report[at + 1..]));
        }
        before = at;
    }
    None
}

fn with_last_lines(message: String, stderr: &str) -> String {
    let lines: Vec<&str> = stderr.lines().filter(|line| !line.trim().is_empty()).collect();
    match lines.len() {
        0 => message,
        n => format!("{message}; it printed:\n    {}", lines[n.saturating_sub(5)..].join("\n    ")),
    }
}

/// The innermost frame of the guest's own code: a file and line where it carries debug information, else a function.
fn place_of(error: &wasmtime::Error) -> Option<String> {
    const FOREIGN: [&str; 5] = ["/rustc/", "/library/", "/registry/src/", "wit-bindgen", "wasi-libc"];
    let trace = error.downcast_ref::<WasmBacktrace>()?;
    let own_line = trace.frames().iter().flat_map(|frame| frame.symbols()).find_map(|symbol| {
        let (file, line) = (symbol.file()?, symbol.line()?);
        let own = !FOREIGN.iter().any(|foreign| file.contains(foreign));
        own.then(|| format!("{file}:{line}"))
    });
    own_line.or_else(|| trace.frames().iter().find_map(|frame| own_function(frame.func_name()?)))
}

/// `in my_loss::compute` of that function's symbol; `None` for the runtime's functions.
fn own_function(symbol: &str) -> Option<String> {
    const RUNTIME: [&str; 8] =
        ["core", "std", "alloc", "dlmalloc", "wit_bindgen", "__rustc", "rust_", "wasi_snapshot_preview1"];
    // The alternate form leaves the hash off.
    let name = format!("{:#}", rustc_demangle::demangle(symbol));
    let crate_name = name.trim_start_matches(['<', '&']).split("::").next().unwrap_or_default();
    let own = name.contains("::") && !RUNTIME.iter().any(|prefix| crate_name.starts_with(prefix));
    own.then(|| format!("in {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_and_place_of_a_rust_panic_are_found() {
        let wanted = Some(Panic { message: "no rows".into(), place: Some("src/lib.rs:12:9".into()) });
        let std = "warming up\n\nthread '<unnamed>' (1) panicked at src/lib.rs:12:9:\nno rows\n\
                   note: run with `RUST_BACKTRACE=1` environment variable to display a backtrace\n";
        assert_eq!(Panic::find(std), wanted);
        assert_eq!(Panic::find("panicked at src/lib.rs:12:9: no rows\n"), wanted);
        assert_eq!(Panic::find("all is well: 1:2"), None);
        let windows = Panic::find("panicked at C:\\x\\lib.rs:1:2: gone").and_then(|panic| panic.place);
        assert_eq!(windows.as_deref(), Some("C:\\x\\lib.rs:1:2"));
    }

    #[test]
    fn the_message_and_place_of_a_python_exception_are_found() {
        let report = "Traceback (most recent call last):\n  File \"/0/app.py\", line 3, in batch\n    \
                      rows[i]\nIndexError: list index out of range\n";
        let wanted = Panic {
            message: "IndexError: list index out of range".into(),
            place: Some("/0/app.py:3".into()),
        };
        let runtime = "\nthread '<unnamed>' panicked at runtime/src/lib.rs:1:2:\nPython threw\n";
        assert_eq!(Panic::find(report), Some(wanted));
        assert_eq!(Panic::find(&format!("{report}{runtime}")), Panic::find(report));
    }

    #[test]
    fn a_value_that_pythons_runtime_cannot_pass_on_is_told_without_its_own_source() {
        let report = "thread '<unnamed>' (1) panicked at runtime/src/lib.rs:1531:18:\ncalled `Result::unwrap()` on an \
                      `Err` value: PyErr { type: <class 'AttributeError'>, value: AttributeError(\"'str' object has no \
                      attribute 'value'\"), traceback: None }\nnote: run with `RUST_BACKTRACE=1`\n";
        let message = r#"AttributeError("'str' object has no attribute 'value'")"#.into();
        assert_eq!(Panic::find(report), Some(Panic { message, place: None }));
    }

    #[test]
    fn the_runtimes_functions_are_no_place() {
        let own = "_ZN7my_loss7compute17h0123456789abcdefE";
        assert_eq!(own_function(own).as_deref(), Some("in my_loss::compute"));
        assert_eq!(own_function("_ZN4core9panicking9panic_fmt17h0123456789abcdefE"), None);
        assert_eq!(own_function("memcpy"), None);
    }
}
