//! A bar that shows what time goes into, by a letter for each part.

use std::collections::BTreeMap;

use ratatui::text::Span;

use crate::profile::Activity;
use crate::watch::top::paint::{Paint, letter};

/// How many of `width` cells each activity gets: what a thread did not spend on any of them is left empty. Where several threads
/// work at once, their time together fills the bar.
fn cells(shares: &BTreeMap<Activity, f64>, width: usize) -> Vec<(Activity, usize)> {
    let spent =
        |activity: &Activity| shares.get(activity).copied().filter(|share| *share > 0.0).unwrap_or(0.0);
    let whole = Activity::ALL.iter().map(spent).sum::<f64>().max(1.0);
    let wanted = Activity::ALL.map(|activity| (activity, spent(&activity) / whole * width as f64));
    let mut given: Vec<(Activity, usize)> =
        wanted.iter().map(|(activity, cells)| (*activity, *cells as usize)).collect();
    // What is left over goes to whoever misses most of a cell.
    let all: f64 = wanted.iter().map(|(_, cells)| cells).sum();
    let left = (all.round() as usize).saturating_sub(given.iter().map(|(_, cells)| cells).sum());
    let mut missing: Vec<usize> = (0..given.len()).collect();
    missing.sort_by(|one, other| wanted[*other].1.fract().total_cmp(&wanted[*one].1.fract()));
    for nth in missing.into_iter().take(left) {
        given[nth].1 += 1;
    }
    given
}

/// Just so wide.
pub fn bar(shares: &BTreeMap<Activity, f64>, width: usize, paint: Paint) -> Vec<Span<'static>> {
    let cells = cells(shares, width);
    let empty = width.saturating_sub(cells.iter().map(|(_, cells)| cells).sum());
    let part = |(activity, cells): &(Activity, usize)| {
        Span::styled(letter(*activity).to_string().repeat(*cells), paint.activity(*activity))
    };
    let parts = cells.iter().filter(|(_, cells)| *cells > 0).map(part);
    parts.chain([Span::raw(" ".repeat(empty))]).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(shares: &[(Activity, f64)], width: usize) -> String {
        let paint = Paint { color: false, unicode: false };
        bar(&shares.iter().copied().collect(), width, paint).iter().map(|span| span.content.clone()).collect()
    }

    #[test]
    fn a_thread_that_does_nothing_leaves_its_bar_empty_and_two_fill_one() {
        assert_eq!(text(&[], 6), "      ");
        assert_eq!(text(&[(Activity::Forward, 0.5)], 6), "FFF   ");
        assert_eq!(text(&[(Activity::Forward, 1.0), (Activity::Wait, 1.0)], 6), "FFF...");
        assert_eq!(text(&[(Activity::Step, f64::NAN), (Activity::Data, 0.34)], 3), "D  ");
    }

    proptest! {
        #[test]
        fn parts_are_as_large_as_their_shares_to_a_cell(shares in prop::collection::vec(0.0..3.0f64, 7), width in 1..200usize) {
            let of: BTreeMap<Activity, f64> = Activity::ALL.into_iter().zip(shares.iter().copied()).collect();
            let whole = shares.iter().sum::<f64>().max(1.0);
            let cells = cells(&of, width);
            prop_assert!(cells.iter().map(|(_, cells)| cells).sum::<usize>() <= width);
            for ((_, cells), share) in cells.iter().zip(&shares) {
                prop_assert!((*cells as f64 - share / whole * width as f64).abs() <= 1.0);
            }
        }
    }
}
