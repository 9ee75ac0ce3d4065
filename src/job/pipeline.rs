//! In which order the micro-batches of a step go forward and backward. Pure: `check` draws what a run does.
//!
//! A trainer starts a micro-batch's forward, which then goes through the stages without it; finishes it, with what the
//! trainer computes itself and the loss; and starts its backward. Calls between two ranks keep their order, so each stage
//! sees forwards and backwards in the order of these actions. With `gpipe` all micro-batches of a step are on their way
//! at once (Huang et al., "GPipe", NeurIPS 2019, section 2.3). With `1f1b` there are as many as stages: the next one
//! starts when a backward does, and no stage holds more activations than that (Narayanan et al., "PipeDream", SOSP 2019,
//! section 3.2, with the flush at the end of each step of "Memory-Efficient Pipeline-Parallel DNN Training", 2021).

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

use super::validated::PipelineSchedule;

/// What the trainer does next with a micro-batch, counted from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Start(usize),
    Finish(usize),
    Backward(usize),
}

/// The actions of one step. Each micro-batch is started, finished and goes backward once, in the order of the batches.
pub fn actions(schedule: PipelineSchedule, stages: usize, micro_batches: usize) -> Vec<Action> {
    let in_flight = match schedule {
        PipelineSchedule::GPipe => micro_batches,
        PipelineSchedule::OneForwardOneBackward => stages.clamp(1, micro_batches.max(1)),
    };
    let mut actions: Vec<Action> = (0..in_flight).map(Action::Start).collect();
    match schedule {
        PipelineSchedule::GPipe => {
            actions.extend((0..micro_batches).map(Action::Finish));
            actions.extend((0..micro_batches).map(Action::Backward));
        }
        PipelineSchedule::OneForwardOneBackward => {
            for batch in 0..micro_batches {
                actions.extend([Action::Finish(batch), Action::Backward(batch)]);
                let next = batch + in_flight;
                actions.extend((next < micro_batches).then_some(Action::Start(next)));
            }
        }
    }
    actions
}

/// A stage's forward or backward of a micro-batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Work {
    Forward(usize),
    Backward(usize),
}

/// When each stage computes what in one step, were all stages alike, a backward as long as two forwards, and messages
/// there at once.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Timeline {
    /// By stage; the time of one forward is the unit.
    pub stages: Vec<Vec<Option<Work>>>,
    /// The part of the time in which a stage has nothing to do, over all of them: `(s - 1) / (m + s - 1)` for `s` stages
    /// and `m` micro-batches. Of more than five stages `1f1b` makes it larger, of seven by up to 0.09: the word to start a
    /// micro-batch waits at each stage for the work that came before it.
    pub bubble: f64,
    /// The most micro-batches of which a stage holds activations.
    pub held: usize,
}

impl Work {
    fn units(self) -> usize {
        match self {
            Work::Forward(_) => 1,
            Work::Backward(_) => 2,
        }
    }
}

/// Plays a step: the last stage follows the [`actions`], the others take what comes in the order in which it comes.
pub fn timeline(schedule: PipelineSchedule, stages: usize, micro_batches: usize) -> Timeline {
    let mut play =
        Play { came: vec![None; micro_batches], rows: vec![Vec::new(); stages], ..Play::default() };
    let last = stages - 1;
    for action in actions(schedule, stages, micro_batches) {
        match action {
            // From the last stage towards the first, as calls go.
            Action::Start(batch) => match last {
                0 => play.came[batch] = Some(play.now),
                _ => play.send(play.now, last - 1, Message::Start(batch)),
            },
            Action::Finish(batch) => {
                play.until_came(batch);
                play.now = play.run(play.now, last, Work::Forward(batch));
            }
            Action::Backward(batch) => {
                play.now = play.run(play.now, last, Work::Backward(batch));
                if last > 0 {
                    play.send(play.now, last - 1, Message::Do(Work::Backward(batch)));
                }
            }
        }
    }
    while play.next() {}
    play.timeline()
}

/// What one stage tells another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Message {
    /// A micro-batch may begin.
    Start(usize),
    Do(Work),
}

#[derive(Default)]
struct Play {
    /// The last stage's slot.
    now: usize,
    /// When a micro-batch's activation comes to the last stage.
    came: Vec<Option<usize>>,
    rows: Vec<Vec<Option<Work>>>,
    /// What is on its way to a stage: when it arrives, and its place among all that was sent.
    queue: BinaryHeap<Reverse<(usize, usize, usize, Message)>>,
    sent: usize,
}

impl Play {
    fn send(&mut self, at: usize, stage: usize, message: Message) {
        match message {
            Message::Do(Work::Forward(batch)) if stage + 1 == self.rows.len() => self.came[batch] = Some(at),
            _ => self.queue.push(Reverse((at, self.sent, stage, message))),
        }
        self.sent += 1;
    }

    fn next(&mut self) -> bool {
        let Some(Reverse((at, _, stage, message))) = self.queue.pop() else { return false };
        match message {
            Message::Start(batch) => {
                let free = at.max(self.rows[stage].len());
                match stage {
                    0 => self.send(free, 0, Message::Do(Work::Forward(batch))),
                    _ => self.send(free, stage - 1, message),
                }
            }
            Message::Do(work) => {
                let done = self.run(at, stage, work);
                match work {
                    Work::Forward(_) => self.send(done, stage + 1, message),
                    Work::Backward(_) if stage > 0 => self.send(done, stage - 1, message),
                    Work::Backward(_) => {}
                }
            }
        }
        true
    }

    fn until_came(&mut self, batch: usize) {
        while self.came[batch].is_none() && self.next() {}
        self.now = self.now.max(self.came[batch].unwrap_or(self.now));
    }

    /// Returns when it is done.
    fn run(&mut self, from: usize, stage: usize, work: Work) -> usize {
        let row = &mut self.rows[stage];
        row.resize(row.len().max(from), None);
        row.extend(std::iter::repeat_n(Some(work), work.units()));
        row.len()
    }

    fn timeline(mut self) -> Timeline {
        let length = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        self.rows.iter_mut().for_each(|row| row.resize(length, None));
        let cells = || self.rows.iter().flatten();
        let idle = cells().filter(|cell| cell.is_none()).count();
        let bubble = idle as f64 / cells().count().max(1) as f64;
        let held = self.rows.iter().map(|row| held(row)).max().unwrap_or(0);
        Timeline { stages: self.rows, bubble, held }
    }
}

/// The most micro-batches between the forward and the end of the backward.
fn held(row: &[Option<Work>]) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for (index, cell) in row.iter().enumerate() {
        match cell {
            Some(Work::Forward(_)) => now += 1,
            Some(Work::Backward(_)) if row.get(index + 1) != Some(cell) => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn one_micro_batch_is_a_step_without_a_pipeline() {
        for schedule in [PipelineSchedule::GPipe, PipelineSchedule::OneForwardOneBackward] {
            let expected = [Action::Start(0), Action::Finish(0), Action::Backward(0)];
            assert_eq!(actions(schedule, 3, 1), expected);
        }
    }

    #[test]
    fn one_forward_one_backward_starts_a_micro_batch_when_one_goes_back() {
        use Action::{Backward, Finish, Start};
        let expected = [
            Start(0),
            Start(1),
            Finish(0),
            Backward(0),
            Start(2),
            Finish(1),
            Backward(1),
            Finish(2),
            Backward(2),
        ];
        assert_eq!(actions(PipelineSchedule::OneForwardOneBackward, 2, 3), expected);
    }

    proptest! {
        /// Whatever the sizes: every micro-batch once and in order, a backward behind its forward, and no more on their
        /// way than the schedule allows.
        #[test]
        fn every_micro_batch_passes_once_and_few_are_on_their_way(
            gpipe: bool, stages in 1usize..8, micro_batches in 1usize..40,
        ) {
            let schedule =
                if gpipe { PipelineSchedule::GPipe } else { PipelineSchedule::OneForwardOneBackward };
            let limit = if gpipe { micro_batches } else { stages };
            let (mut started, mut finished, mut gone_back) = (0, 0, 0);
            for action in actions(schedule, stages, micro_batches) {
                let (batch, counted) = match action {
                    Action::Start(batch) => (batch, &mut started),
                    Action::Finish(batch) => (batch, &mut finished),
                    Action::Backward(batch) => (batch, &mut gone_back),
                };
                prop_assert_eq!(batch, *counted);
                *counted += 1;
                prop_assert!(gone_back <= finished && finished <= started && started - gone_back <= limit);
            }
            prop_assert_eq!([started, finished, gone_back], [micro_batches; 3]);
        }

        /// The bubble is that of the papers, and `1f1b` buys its memory without time.
        #[test]
        fn the_bubble_is_what_filling_and_draining_the_pipeline_takes(
            stages in 1usize..8, micro_batches in 1usize..40,
        ) {
            let expected = (stages - 1) as f64 / (micro_batches + stages - 1) as f64;
            let gpipe = timeline(PipelineSchedule::GPipe, stages, micro_batches);
            prop_assert!((gpipe.bubble - expected).abs() < 1e-9);
            prop_assert_eq!(gpipe.held, micro_batches);
            let one_by_one = timeline(PipelineSchedule::OneForwardOneBackward, stages, micro_batches);
            let more = one_by_one.bubble - expected;
            prop_assert!(more.abs() < if stages <= 5 { 1e-9 } else { 0.1 }, "{more} more than {expected}");
            prop_assert!(one_by_one.held <= stages);
        }
    }
}
