//! A dataset and a loss in one component, each well-behaved until its configuration names a sin.
//!
//! The configuration is text between quotes, `"sin"` or `"sin argument"`: no JSON library is needed for that.

mod dataset;
mod loss;
mod sins;

use std::sync::Mutex;

wit_bindgen::generate!({
    path: "../../wit",
    inline: "
        package pstrain:testing;
        interface telephone {
            call: func(number: string) -> u32;
        }
        world evil {
            import telephone;
            include pstrain:plugin/dataset-plugin@0.2.0;
            include pstrain:plugin/loss-plugin@0.2.0;
        }
    ",
    world: "pstrain:testing/evil",
    generate_all,
});

/// What `open` was told.
static CONFIG: Mutex<String> = Mutex::new(String::new());
/// How often this instance was asked for a batch or a loss.
static CALLS: Mutex<u64> = Mutex::new(0);

fn configure(config: &str) -> (String, String) {
    let config = config.trim_matches('"').to_owned();
    *CONFIG.lock().expect("one thread") = config;
    sin()
}

/// The sin and its argument.
fn sin() -> (String, String) {
    let config = CONFIG.lock().expect("one thread");
    let (sin, argument) = config.split_once(' ').unwrap_or((&config, ""));
    (sin.into(), argument.into())
}

/// Counts this call; the first is 1.
fn count_call() -> u64 {
    let mut calls = CALLS.lock().expect("one thread");
    *calls += 1;
    *calls
}

struct Evil;

export!(Evil);
