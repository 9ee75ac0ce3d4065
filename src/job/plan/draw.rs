//! A pipeline's schedule as a drawing.

use std::fmt;

use super::PipelinePlan;
use crate::human::counted;
use crate::job::pipeline::Work;
use crate::job::validated::PipelineSchedule;

/// Characters for the times of one stage: what fits a terminal beside the names of roles.
const WIDTH: usize = 64;

impl fmt::Display for PipelinePlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let schedule = match self.schedule {
            PipelineSchedule::GPipe => "gpipe",
            PipelineSchedule::OneForwardOneBackward => "1f1b",
        };
        let (stages, batches) = (self.stages.len() as u64, self.micro_batches as u64);
        let (stages, batches) = (counted(stages, "stage"), counted(batches, "micro-batch"));
        let cell = 1 + digits(self.micro_batches.saturating_sub(1)) + 1;
        let times = self.timeline.stages.first().map_or(0, Vec::len);
        let shown = times.min(WIDTH / cell);
        writeln!(f, "pipeline, {schedule}: {stages}, {batches} in a step")?;
        let width = self.stages.iter().map(String::len).max().unwrap_or(0);
        for (role, row) in self.stages.iter().zip(&self.timeline.stages) {
            let more = if shown < times { "..." } else { "" };
            let drawn: String = (0..shown).map(|time| draw(row, time, cell)).collect();
            writeln!(f, "  {role:<width$}  {}", format!("{drawn}{more}").trim_end())?;
        }
        write!(
            f,
            "  a stage waits {:.0} % of the time and holds activations of at most {}",
            100.0 * self.timeline.bubble,
            counted(self.timeline.held as u64, "micro-batch")
        )
    }
}

/// `F0 F1 . B0===`: a backward takes twice as long as a forward.
fn draw(row: &[Option<Work>], time: usize, width: usize) -> String {
    match row[time] {
        None => format!("{:<width$}", "."),
        Some(Work::Forward(batch)) => format!("{:<width$}", format!("F{batch}")),
        Some(Work::Backward(_)) if time > 0 && row[time - 1] == row[time] => {
            format!("{} ", "=".repeat(width - 1))
        }
        Some(Work::Backward(batch)) => format!("{:=<width$}", format!("B{batch}")),
    }
}

fn digits(number: usize) -> usize {
    number.to_string().len()
}
