//! What several ranks on one line are at together. Pure.

use super::text::{TrainingProgress, Update};

/// Those that compute count before those that wait: of trainers at different things the ones that train are shown.
pub fn merged(updates: &[&Update]) -> Option<Update> {
    let first = *updates.first()?;
    if updates.len() == 1 {
        return Some(first.clone());
    }
    let waiting = || updates.iter().find(|update| matches!(update, Update::Doing(_))).copied();
    let merged = training(updates).or_else(|| evaluating(updates)).or_else(|| serving(updates));
    merged.or_else(|| fetching(updates)).or_else(|| Some(waiting().unwrap_or(first).clone()))
}

fn training(updates: &[&Update]) -> Option<Update> {
    let all: Vec<&TrainingProgress> = updates
        .iter()
        .filter_map(|update| {
            let Update::Training(training) = update else { return None };
            Some(training)
        })
        .collect();
    Some(Update::Training(TrainingProgress {
        step: all.iter().map(|one| one.step).sum(),
        steps: all.iter().map(|one| one.steps).sum(),
        epoch: all.iter().map(|one| one.epoch).min()?,
        epochs: all.iter().map(|one| one.epochs).max()?,
        loss: all.iter().map(|one| one.loss).sum::<f64>() / all.len() as f64,
        samples_per_s: all.iter().map(|one| one.samples_per_s).sum(),
        staleness: mean(all.iter().filter_map(|one| one.staleness)),
        left_s: all.iter().filter_map(|one| one.left_s).reduce(f64::max),
    }))
}

fn evaluating(updates: &[&Update]) -> Option<Update> {
    let counts = updates.iter().filter_map(|update| {
        let Update::Evaluating { done, total } = **update else { return None };
        Some((done, total))
    });
    let (done, total) = counts.reduce(|sum, next| (sum.0 + next.0, sum.1 + next.1))?;
    Some(Update::Evaluating { done, total })
}

fn serving(updates: &[&Update]) -> Option<Update> {
    let all = updates.iter().filter_map(|update| {
        let Update::Serving { updates, updates_per_s, staleness } = **update else { return None };
        Some((updates, updates_per_s, staleness))
    });
    let all: Vec<_> = all.collect();
    let (updates, updates_per_s) =
        all.iter().map(|one| (one.0, one.1)).reduce(|sum, next| (sum.0 + next.0, sum.1 + next.1))?;
    let staleness = mean(all.iter().filter_map(|one| one.2));
    Some(Update::Serving { updates, updates_per_s, staleness })
}

fn fetching(updates: &[&Update]) -> Option<Update> {
    let counts = updates.iter().filter_map(|update| {
        let Update::Fetching { done, total } = **update else { return None };
        Some((done, total))
    });
    let add = |one: Option<u64>, other: Option<u64>| Some(one? + other?);
    let (done, total) = counts.reduce(|sum, next| (sum.0 + next.0, add(sum.1, next.1)))?;
    Some(Update::Fetching { done, total })
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.fold((0.0, 0), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / f64::from(count))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trainer(step: u64, loss: f64, staleness: Option<f64>, left_s: f64) -> Update {
        Update::Training(TrainingProgress {
            step,
            steps: 100,
            epoch: 1 + (step / 50) as u32,
            epochs: 2,
            loss,
            samples_per_s: 1_000.0,
            staleness,
            left_s: Some(left_s),
        })
    }

    #[test]
    fn trainers_add_their_speed_and_the_slowest_says_what_is_left() {
        let all =
            [trainer(40, 0.5, Some(1.0), 6.0), trainer(60, 0.25, Some(2.0), 4.0), Update::Doing("x".into())];
        let Some(Update::Training(merged)) = merged(&all.iter().collect::<Vec<_>>()) else { panic!() };
        assert_eq!((merged.step, merged.steps, merged.epoch), (100, 200, 1));
        assert_eq!((merged.loss, merged.samples_per_s), (0.375, 2_000.0));
        assert_eq!((merged.staleness, merged.left_s), (Some(1.5), Some(6.0)));
    }

    #[test]
    fn who_waits_is_shown_where_nobody_computes() {
        let (done, doing) = (Update::Done("100 steps".into()), Update::Doing("waiting".into()));
        let serving = |updates| Update::Serving { updates, updates_per_s: 0.5, staleness: None };
        assert_eq!(merged(&[&done, &doing]), Some(doing.clone()));
        assert_eq!(merged(&[&done, &done]), Some(done.clone()));
        let both = Update::Serving { updates: 7, updates_per_s: 1.0, staleness: None };
        assert_eq!(merged(&[&serving(3), &doing, &serving(4)]), Some(both));
        assert_eq!(merged(&[]), None);
    }
}
