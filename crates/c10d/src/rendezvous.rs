//! Where the ranks of a group find one another, as `torch.distributed.init_process_group` takes it.

use std::env::VarError;

use crate::{Error, Result, Store, TcpOptions};

/// The store that `url` names, the rank and the size: what [`ProcessGroup::new`](crate::ProcessGroup::new) takes. A
/// Python rank that is given the same `init_method` comes to the same store.
///
/// | url | rank and size |
/// |---|---|
/// | `env://` | in `RANK` and `WORLD_SIZE`; the store is at `MASTER_ADDR` and `MASTER_PORT` |
/// | `tcp://HOST:PORT` | given; rank 0 has the server |
/// | `file:///PATH` | given; all can write and lock the file |
///
/// `given` is this process's rank and the number of ranks, where the environment does not say them or is not asked.
///
/// # Errors
/// A URL of another kind; a variable that is not there or no number; a rank outside the size; the store's.
pub fn rendezvous(url: &str, given: Option<(u32, u32)>) -> Result<(Store, u32, u32)> {
    let wrong = |reason: String| Error::Store {
        store: url.into(),
        operation: "rendezvous",
        key: String::new(),
        reason,
    };
    let number = |name: &str| {
        let text = variable(name).map_err(wrong)?;
        text.parse::<u32>().map_err(|_| wrong(format!("{name} is `{text}`, which is not a number")))
    };
    let (rank, size) = match given {
        Some(given) => given,
        None if url == "env://" => (number("RANK")?, number("WORLD_SIZE")?),
        None => return Err(wrong("the rank and the number of ranks are not given".into())),
    };
    if rank >= size {
        return Err(wrong(format!("there is no rank {rank} in a world of {size}")));
    }
    if let Some(path) = url.strip_prefix("file://") {
        return Ok((Store::file(path, size)?, rank, size));
    }
    let (host, port) = match url.strip_prefix("tcp://").map(|place| place.trim_end_matches('/')) {
        Some(place) => {
            let (host, port) = place.rsplit_once(':').ok_or_else(|| wrong("there is no port".into()))?;
            (host.trim_matches(['[', ']']).to_owned(), port.to_owned())
        }
        None if url == "env://" => {
            (variable("MASTER_ADDR").map_err(wrong)?, variable("MASTER_PORT").map_err(wrong)?)
        }
        None => return Err(wrong("use env://, tcp://HOST:PORT or file:///PATH".into())),
    };
    let port = port.parse().map_err(|_| wrong(format!("`{port}` is not a port")))?;
    Ok((Store::tcp(&TcpOptions::new(host, port, rank, size))?, rank, size))
}

fn variable(name: &str) -> Result<String, String> {
    std::env::var(name).map_err(|why| match why {
        VarError::NotPresent => format!("{name} is not set"),
        VarError::NotUnicode(_) => format!("{name} is not valid UTF-8"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(url: &str, given: Option<(u32, u32)>) -> String {
        rendezvous(url, given).map(drop).expect_err("refused").to_string()
    }

    #[test]
    fn what_names_no_store_is_refused_with_the_reason() {
        assert!(refused("http://x:1", Some((0, 1))).contains("use env://, tcp://HOST:PORT or file:///PATH"));
        assert!(refused("tcp://localhost", Some((0, 1))).contains("there is no port"));
        assert!(refused("tcp://localhost:x", Some((0, 1))).contains("`x` is not a port"));
        assert!(refused("file:///tmp/x", Some((2, 2))).contains("no rank 2 in a world of 2"));
        assert!(refused("file:///tmp/x", None).contains("not given"));
    }

    #[test]
    fn a_file_and_an_address_lead_to_their_stores() {
        let path = std::env::temp_dir().join(format!("c10d-rendezvous-{}", std::process::id()));
        let (store, rank, size) = rendezvous(&format!("file://{}", path.display()), Some((0, 1))).unwrap();
        store.set("a", b"1").unwrap();
        assert_eq!((store.get("a").unwrap(), rank, size), (b"1".to_vec(), 0, 1));
        let (store, ..) = rendezvous("tcp://127.0.0.1:0", Some((0, 1))).unwrap();
        assert!(store.port().is_some_and(|port| port > 0));
    }
}
