//! An explanation, for people.

use std::fmt;

use super::{Explanation, Facts, RoleFacts, Slowest, StepTimes};
use crate::profile::Activity;

/// In the order of a step.
const COLUMNS: [(Activity, &str); 8] = [
    (Activity::Data, "data"),
    (Activity::Wait, "wait"),
    (Activity::Forward, "forward"),
    (Activity::Loss, "loss"),
    (Activity::Backward, "backward"),
    (Activity::Exchange, "exchange"),
    (Activity::Step, "step"),
    (Activity::Payload, "payload"),
];

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Explanation { facts, too_short, slowest, advice, traced } = self;
        division(facts, f)?;
        if let Some(traced) = traced {
            writeln!(f)?;
            for times in &traced.trainers {
                by_step(times, f)?;
            }
            if traced.is_cut {
                writeln!(f, "  (the trace has more steps than are looked at)")?;
            }
        }
        writeln!(f)?;
        if let Some(why) = too_short {
            return write!(f, "{why}");
        }
        if let Some(slowest @ Slowest { rank, role, works_ms, .. }) = slowest {
            let times = slowest.times();
            writeln!(
                f,
                "slowest: rank {rank} (`{role}{rank}`) works {works_ms:.2} ms for a step, {times:.2} times the trainer in the middle"
            )?;
        }
        let Some(first) = advice.first() else {
            return write!(
                f,
                "nothing stands out: no part of a step takes so much of it that a change of the job would be advised"
            );
        };
        writeln!(
            f,
            "what limits: {}",
            serde_json::to_value(first.limit)
                .ok()
                .and_then(|name| Some(name.as_str()?.replace('_', " ")))
                .unwrap_or_default()
        )?;
        for (nth, advice) in advice.iter().enumerate() {
            write!(f, "\n{}. {}\n   try: {}", nth + 1, advice.because, advice.change)?;
        }
        Ok(())
    }
}

/// Where the milliseconds of a step go, by role.
fn division(facts: &Facts, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    writeln!(
        f,
        "{} steps of a trainer in {:.1} s; milliseconds of a rank for a step:\n",
        facts.steps, facts.seconds
    )?;
    write!(f, "{:<18}", "role")?;
    for (_, name) in COLUMNS {
        write!(f, "{name:>9}")?;
    }
    writeln!(f, "{:>9}", "passed")?;
    for RoleFacts { role, ranks, ms, step_ms, .. } in &facts.roles {
        let of = format!("{role} ({ranks})");
        write!(f, "{of:<18}")?;
        for (activity, _) in COLUMNS {
            match ms.get(&activity) {
                Some(ms) => write!(f, "{ms:>9.2}")?,
                None => write!(f, "{:>9}", "-")?,
            }
        }
        writeln!(f, "{step_ms:>9.2}")?;
    }
    writeln!(
        f,
        "\nof their time trainers stand still for data for {:.0} %. (Threads work side by side, so a row may be more than what passed.)",
        facts.data_wait_pct
    )
}

fn by_step(times: &StepTimes, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let StepTimes { rank, steps, median_ms, p95_ms, longest, .. } = times;
    let mut most: Vec<(&Activity, &f64)> = longest.by.iter().collect();
    most.sort_by(|one, other| other.1.total_cmp(one.1));
    let most: Vec<String> = most
        .iter()
        .take(2)
        .map(|(of, ms)| format!("{} {ms:.2} ms", format!("{of:?}").to_lowercase()))
        .collect();
    writeln!(
        f,
        "rank {rank}, {steps} steps traced: median {median_ms:.2} ms, 95 % below {p95_ms:.2} ms; the longest is step {} with {:.2} ms ({})",
        longest.step,
        longest.ms,
        most.join(", ")
    )
}
