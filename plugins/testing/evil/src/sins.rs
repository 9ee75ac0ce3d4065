//! What either world can do wrong.

use std::fs;
use std::thread;
use std::time::Duration;

/// Commits a sin that does not depend on the world; others are left to the caller.
pub fn commit(sin: &str, argument: &str) -> Result<(), String> {
    match sin {
        "loop" => endless(),
        "sleep" => thread::sleep(Duration::from_secs(3600)),
        "grow" => grow(),
        "recurse" => {
            std::hint::black_box(recurse(1));
        }
        "panic" => panic!("{argument}"),
        "exit" => std::process::exit(7),
        "fail" => return Err(argument.replace(" / ", "\n")),
        "fail-red" => return Err("\u{1b}[31mred".into()),
        "print" => print(argument.parse().unwrap_or(1)),
        "read" => {
            let text =
                fs::read_to_string(argument).map_err(|error| format!("cannot read {argument}: {error}"))?;
            return Err(format!("read {}", text.trim()));
        }
        "hoard-files" => {
            let hoard: Result<Vec<fs::File>, _> = (0..100).map(|_| fs::File::open(argument)).collect();
            return Err(format!("holds {} files", hoard.map_err(|error| error.to_string())?.len()));
        }
        "write" => {
            fs::write(argument, "mine").map_err(|error| format!("cannot write {argument}: {error}"))?;
            return Err(format!("wrote {argument}"));
        }
        "list" => {
            let list = fs::read_dir(argument).map_err(|error| format!("cannot list {argument}: {error}"))?;
            let mut names: Vec<String> =
                list.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
            names.sort();
            return Err(format!("listed {}", names.join(" ")));
        }
        "telephone" => {
            super::pstrain::testing::telephone::call(argument);
        }
        "environment" => {
            let seen = std::env::vars().chain(std::env::args().map(|arg| (arg, String::new()))).count();
            return Err(format!("sees {seen} variables and arguments"));
        }
        _ => {}
    }
    Ok(())
}

#[inline(never)] // So that the place is the same with every compiler.
fn endless() {
    let mut n = 0u64;
    while std::hint::black_box(n) < u64::MAX {
        n = std::hint::black_box(n) & 0xffff;
    }
}

fn grow() {
    let mut hoard: Vec<Vec<u8>> = Vec::new();
    loop {
        hoard.push(vec![1; 1 << 20]);
        std::hint::black_box(&hoard);
    }
}

#[inline(never)]
fn recurse(n: u64) -> u64 {
    let room = std::hint::black_box([n; 64]);
    if std::hint::black_box(n) == 0 { 0 } else { recurse(n + 1) + room[(n % 64) as usize] }
}

fn print(lines: usize) {
    for line in 0..lines {
        println!("line {line} of what nobody wants to read, but there it is again and again");
    }
}
