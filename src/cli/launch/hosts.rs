//! The machines that ssh reaches, and the ranks that each has. Pure but for reading the file.

use std::net::IpAddr;
use std::path::Path;

use crate::cli::exit::Failure;
use crate::job::hostlist;

/// A machine as ssh knows it, with so many ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// `node1` or `me@node1`.
    pub name: String,
    pub ranks: u32,
}

impl Host {
    /// Its name without that of a user.
    pub fn address(&self) -> &str {
        self.name.rsplit_once('@').map_or(&self.name, |(_, host)| host)
    }
}

/// The machines of `--nodes`.
///
/// # Errors
/// It is not a list of hosts.
pub fn listed(list: &str, ranks: u32) -> Result<Vec<Host>, Failure> {
    let names = hostlist::expand(list).map_err(|problem| {
        Failure::usage(format_args!(
            "--nodes {list:?} is not a list of hosts: {problem}\n  hint: write it as node1,node2 or node[1-2]"
        ))
    })?;
    names.into_iter().map(|name| host(&name, ranks).map_err(|problem| wrong("--nodes", &problem))).collect()
}

/// The machines of a hosts file.
///
/// # Errors
/// It cannot be read, has no machine in it, or a line is none.
pub fn read(path: &Path, ranks: u32) -> Result<Vec<Host>, Failure> {
    let name = format!("hosts file `{}`", path.display());
    let text = std::fs::read_to_string(path).map_err(|error| {
        Failure::usage(format_args!(
            "{name}: {error}\n  hint: write a machine in each line, or name them with --nodes node1,node2"
        ))
    })?;
    parse(&text, ranks).map_err(|problem| wrong(&name, &problem))
}

fn wrong(whence: &str, problem: &str) -> Failure {
    Failure::usage(format_args!(
        "{whence}: {problem}\n  hint: a line is `HOST` or `HOST slots=RANKS`, with a name that ssh knows"
    ))
}

fn parse(text: &str, ranks: u32) -> Result<Vec<Host>, String> {
    let lines = (1..).zip(text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()));
    let hosts = lines.filter(|(_, line)| !line.is_empty()).map(|(number, line)| {
        let mut words = line.split_whitespace();
        let name = words.next().unwrap_or_default();
        let host = host(name, ranks).and_then(|host| {
            words.try_fold(host, |host, word| {
                let slots = word.strip_prefix("slots=").and_then(|slots| slots.parse().ok());
                match slots.filter(|&slots: &u32| slots > 0) {
                    Some(ranks) => Ok(Host { ranks, ..host }),
                    None => Err(format!("`{word}` is not understood")),
                }
            })
        });
        host.map_err(|problem| format!("line {number}: {problem}"))
    });
    let hosts: Vec<Host> = hosts.collect::<Result<_, _>>()?;
    if hosts.is_empty() { Err("there is no machine in it".into()) } else { Ok(hosts) }
}

/// A name that ssh would read as an option is none.
fn host(name: &str, ranks: u32) -> Result<Host, String> {
    let fits = !name.starts_with('-')
        && name.chars().all(|c| c.is_ascii_alphanumeric() || ".-_:@%[]".contains(c))
        && !name.ends_with('@');
    match fits {
        true => Ok(Host { name: name.into(), ranks }),
        false => Err(format!("`{name}` is not the name of a machine")),
    }
}

/// Where the ranks find rank 0: at the first machine.
///
/// # Errors
/// It is called by a name that means another machine on each of them.
pub fn master(hosts: &[Host]) -> Result<String, Failure> {
    let first = hosts.first().map(Host::address).unwrap_or_default();
    let elsewhere = hosts.iter().find(|host| !is_loopback(host.address()));
    match elsewhere {
        Some(other) if is_loopback(first) => Err(Failure::usage(format_args!(
            "rank 0 is to run on `{first}`, which is another machine to the ranks on `{}`\n  \
             hint: name the first machine as the others know it, or give --master-addr",
            other.name
        ))),
        _ => Ok(first.into()),
    }
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(text: &str) -> Result<String, String> {
        let shown = |host: Host| format!("{}*{}", host.name, host.ranks);
        Ok(parse(text, 1)?.into_iter().map(shown).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn a_hosts_file_has_a_machine_in_each_line() {
        let text = "# mine\nnode1 slots=2   # two\n\n me@node2\n10.0.0.3\tslots=4\n";
        assert_eq!(hosts(text), Ok("node1*2 me@node2*1 10.0.0.3*4".into()));
    }

    #[test]
    fn what_is_no_machine_is_refused_with_its_line() {
        let refused = |text| hosts(text).expect_err("refused");
        assert_eq!(
            refused("a\n-oProxyCommand=reboot"),
            "line 2: `-oProxyCommand=reboot` is not the name of a machine"
        );
        assert_eq!(refused("a\nb slots=0"), "line 2: `slots=0` is not understood");
        assert_eq!(refused("a max_slots=2"), "line 1: `max_slots=2` is not understood");
        assert_eq!(refused("# nobody\n"), "there is no machine in it");
    }

    #[test]
    fn rank_0_is_at_the_first_machine_and_at_none_that_is_another_to_each() {
        let of = |list| master(&listed(list, 1).expect("hosts"));
        assert_eq!(of("me@node[1-2]").expect("a master"), "node1");
        assert_eq!(of("127.0.0.1,127.0.0.2").expect("all are here"), "127.0.0.1");
        let message = of("localhost,node2").expect_err("refused").message.expect("a message");
        insta::assert_snapshot!(message, @r"
        error: rank 0 is to run on `localhost`, which is another machine to the ranks on `node2`
          hint: name the first machine as the others know it, or give --master-addr
        ");
    }
}
