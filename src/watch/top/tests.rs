//! The screen of a made-up run, as a terminal of a given size shows it.

use std::fs;
use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use serde_json::{Value, json};

use super::draw;
use super::paint::Paint;
use super::picture::Picture;
use super::plain::snapshot;
use super::screen::Screen;
use super::source::Source;
use crate::runner::run_folder::lock;

const PAINT: Paint = Paint { color: false, unicode: true };

/// A run of one server and trainers, as ranks record it: the loss falls as 2 / (1 + step / 40).
fn made_up(folder: &Path, world_size: u32, ended: bool) {
    let job = format!(
        "name = \"digits_ps\"\n[cluster]\nworld_size = {world_size}\n[train]\nepochs = 24\nsteps = 0\n"
    );
    fs::write(folder.join("job.toml"), job).unwrap();
    let mut lines: Vec<Value> = Vec::new();
    for step in (5..=400u32).step_by(5) {
        for rank in 1..world_size {
            let loss = 2.0 / (1.0 + f64::from(step) / 40.0) + f64::from(rank) * 0.01;
            lines.push(json!({
                "kind": "step", "step": step, "epoch": 1 + step / 16, "rank": rank, "loss": loss, "lr": 0.0015,
                "samples_per_s": 400.0 + f64::from(rank), "data_wait_pct": 2.5, "staleness": 1.9, "time_s": f64::from(step) / 8.0,
            }));
        }
        if step % 100 == 0 {
            let loss = 1.8 / (1.0 + f64::from(step) / 40.0);
            lines.push(json!({
                "kind": "eval", "step": step, "epoch": 1 + step / 16, "rank": 1, "samples": 297, "targets": 297, "loss": loss,
                "accuracy": 1.0 - loss / 4.0, "best": step <= 300, "time_s": f64::from(step) / 8.0,
            }));
        }
    }
    for rank in 0..world_size {
        let role = if rank == 0 { "server" } else { "trainer" };
        let seconds = match rank {
            0 => json!({"payload": 0.2, "forward": 1.0, "backward": 1.4, "step": 0.3, "wait": 0.6}),
            _ => json!({"data": 0.1, "payload": 0.1, "loss": 0.2, "wait": 1.4}),
        };
        lines.push(json!({
            "kind": "rank", "rank": rank, "role": role, "time_s": 50.0, "passed_s": 2.0, "resident_bytes": (200 + rank) << 20,
            "cpu_pct": 97.5 / f64::from(rank + 1), "seconds": seconds,
        }));
    }
    lines.push(json!({
        "kind": "message", "rank": 1, "level": "warn", "time_s": 1.5,
        "text": "tensors to rank 0 do not go out of its memory (cma): the system does not allow it, so they are sent inline",
    }));
    let text: Vec<String> = lines.iter().map(Value::to_string).collect();
    fs::write(folder.join("metrics.jsonl"), text.join("\n") + "\n").unwrap();
    if ended {
        let summary = json!({
            "job": "digits_ps", "world_size": world_size, "trainers": world_size - 1, "steps": 1200, "samples": 36000,
            "train_seconds": 48.0, "steps_per_s": 25.0, "samples_per_s": 750.0, "loss_final": 0.21, "eval": null,
            "startup_seconds": 1.5,
            "measured": {
                "links": [
                    {"from": "server", "to": "trainer", "bytes": 1900, "planned_bytes": 2000},
                    {"from": "trainer", "to": "server", "bytes": 9216, "planned_bytes": 9216},
                ],
                "pipeline": null,
            },
            "warnings": ["the model was saved in another folder"],
        });
        fs::write(folder.join("summary.json"), summary.to_string()).unwrap();
    }
}

/// With the place of the folder, which is another each time, by a name that is not.
fn picture(world_size: u32, ended: bool) -> Picture {
    let folder = tempfile::tempdir().unwrap();
    made_up(folder.path(), world_size, ended);
    // As a process has that trains in it.
    let _lock = (!ended).then(|| lock::lock(folder.path()).unwrap());
    let picture = Source::open(Some(folder.path()), None).unwrap().picture().unwrap();
    Picture { from: "runs/digits_ps-20260901-120000".into(), ..picture }
}

fn shown(picture: &Picture, keys: &str, (width, height): (u16, u16), paint: Paint) -> String {
    let mut screen = Screen::default();
    for key in keys.chars() {
        screen.key(KeyEvent::new(KeyCode::Char(key), KeyModifiers::NONE));
    }
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal
        .draw(|frame| {
            let area = frame.area();
            draw::screen(picture, &mut screen, paint, area, frame.buffer_mut());
        })
        .unwrap();
    let text = terminal.backend().to_string();
    let lines = text.lines().map(|line| line.trim_matches('"').trim_end());
    lines.collect::<Vec<_>>().join("\n")
}

#[test]
fn four_ranks_on_a_small_terminal() {
    insta::assert_snapshot!(shown(&picture(4, false), "", (80, 24), PAINT));
}

#[test]
fn sixteen_ranks_on_a_small_terminal() {
    let picture = picture(16, false);
    insta::assert_snapshot!("sixteen_overview", shown(&picture, "", (80, 24), PAINT));
    insta::assert_snapshot!("sixteen_trainers", shown(&picture, "3", (80, 24), PAINT));
    insta::assert_snapshot!("sixteen_ranks", shown(&picture, "4", (80, 24), PAINT));
}

#[test]
fn four_and_sixteen_ranks_on_a_wide_terminal() {
    insta::assert_snapshot!("wide_four", shown(&picture(4, true), "", (140, 30), PAINT));
    insta::assert_snapshot!("wide_sixteen", shown(&picture(16, false), "l", (140, 30), PAINT));
}

#[test]
fn links_messages_and_help() {
    let picture = picture(4, true);
    insta::assert_snapshot!("links", shown(&picture, "5", (80, 10), PAINT));
    insta::assert_snapshot!("messages", shown(&picture, "6", (80, 10), PAINT));
    insta::assert_snapshot!("help", shown(&picture, "4?", (80, 24), PAINT));
}

#[test]
fn text_of_all_panes() {
    insta::assert_snapshot!(snapshot(&picture(4, true), 80, false));
}

/// Whatever the size, nothing is drawn that would panic, and no rank is left out of what can be scrolled to.
#[test]
fn any_size_can_be_drawn_on_and_every_rank_be_found() {
    let picture = picture(16, true);
    for width in [1, 20, 79, 119, 120, 200] {
        for height in [1, 3, 8, 12, 24, 60] {
            for keys in ["", "2l", "2c", "3", "4", "5", "6", "?"] {
                shown(&picture, keys, (width, height), PAINT);
            }
        }
    }
    let scrolled = ["4", "4jjjj", "4jjjjjjjj", "4jjjjjjjjjjjj", "4jjjjjjjjjjjjjjjjjj"]
        .map(|keys| shown(&picture, keys, (80, 16), PAINT))
        .join("\n");
    for rank in 1..16 {
        assert!(
            scrolled.contains(&format!("{rank} trainer ")),
            "rank {rank} is not to be found in\n{scrolled}"
        );
    }
}

#[test]
fn without_unicode_every_letter_is_ascii_and_without_color_no_cell_has_one() {
    let picture = picture(4, true);
    let paint = Paint { color: false, unicode: false };
    for keys in ["", "2c", "4", "?"] {
        let text = shown(&picture, keys, (100, 30), paint);
        assert!(text.is_ascii(), "{text}");
    }
    let mut terminal = Terminal::new(TestBackend::new(100, 30)).unwrap();
    for (color, colored) in [(true, true), (false, false)] {
        let paint = Paint { color, unicode: true };
        let drawn = terminal.draw(|frame| {
            let area = frame.area();
            draw::screen(&picture, &mut Screen::default(), paint, area, frame.buffer_mut());
        });
        let cells = &drawn.unwrap().buffer.content;
        let has_color = cells.iter().any(|cell| cell.fg != ratatui::style::Color::Reset);
        assert_eq!(has_color, colored);
    }
}

/// A terminal would obey what others wrote.
#[test]
fn what_ranks_say_moves_no_cursor() {
    let folder = tempfile::tempdir().unwrap();
    made_up(folder.path(), 2, false);
    let line =
        json!({"kind": "message", "rank": 1, "level": "info", "text": "a\u{1b}[2Jb\rc", "time_s": 0.0});
    let path = folder.path().join("metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, format!("{text}{line}\n")).unwrap();
    let picture = Source::open(Some(folder.path()), None).unwrap().picture().unwrap();
    let text = shown(&picture, "6", (80, 24), PAINT);
    assert!(text.contains(r"a\u{1b}[2Jb\rc"), "{text}");
}
