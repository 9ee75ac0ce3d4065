//! How updates change a table's rows.

use anyhow::{Context as _, Result, bail};
use c10d::vectors::prefetch;

use super::{Entry, Table};
use crate::parallel::mean::weights;
use crate::parallel::shards::Place;
use crate::parallel::shards::contribution::{Contribution, Gradients, LookedUp};
use crate::parallel::shards::places::Places;
use crate::parallel::updates::Updated;

/// So many rows ahead of the one that is updated the memory is asked for.
const AHEAD: usize = 8;

/// The gradients of one look-up.
struct Part<'a> {
    weight: f32,
    of: &'a LookedUp,
    /// Row after row.
    numbers: &'a [f32],
}

impl Part<'_> {
    fn row(&self, entry: &Entry, dim: usize) -> &[f32] {
        &self.numbers[entry.row as usize * dim..][..dim]
    }
}

impl Table {
    /// Has the rows that an update's steps ask for often enough.
    fn admit(&mut self, given: &[Contribution]) -> Result<()> {
        let now = self.now();
        let Places::Living(living) = &mut self.places else { return Ok(()) };
        let made = living.see(given.iter().map(Contribution::ids), now)?;
        living.clear(now);
        made.into_iter().for_each(|made| self.begin_row(made));
        Ok(())
    }

    /// All gradients of rows that there are, those of a row together and in the order of the parts (SH-3).
    fn by_row(&self, parts: &[Part<'_>]) -> Vec<Entry> {
        let now = self.now();
        let mut entries = Vec::with_capacity(parts.iter().map(|part| part.of.len()).sum());
        for (part, &Part { of, .. }) in (0..).zip(parts) {
            let entry = |(row, place): (u32, Place)| Entry { place, part, row };
            match of {
                LookedUp::Places(places) => entries.extend((0..).zip(places.iter().copied()).map(entry)),
                LookedUp::Ids(ids) => {
                    let rows = (0..).zip(ids);
                    entries.extend(
                        rows.filter_map(|(row, &id)| Some((row, self.places.place(id, now)?))).map(entry),
                    );
                }
            }
        }
        entries.sort_by_key(|entry| entry.place);
        entries
    }

    /// What several trainers have brought, each look-up with its weight, and the gradients by row.
    fn parts<'a>(&self, given: &'a [Contribution]) -> (Vec<Part<'a>>, Vec<Entry>) {
        let weights = weights(given.iter().map(|given| given.terms.weight));
        let of_one = |(given, &weight): (&'a Contribution, &f64)| {
            let part = move |Gradients { of, numbers, .. }: &'a Gradients| Part {
                weight: weight as f32,
                of,
                numbers,
            };
            given.looked_up.iter().map(part)
        };
        let parts: Vec<Part> = given.iter().zip(&weights).flat_map(of_one).collect();
        let written = self.by_row(&parts);
        (parts, written)
    }

    /// The mean over so many trainers of the gradients of a row.
    fn mean_of_row(&self, trainers: usize, parts: &[Part], of_row: &[Entry], mean: &mut [f32]) {
        mean.fill(0.0);
        for entry in of_row {
            let part = &parts[entry.part as usize];
            for (sum, gradient) in mean.iter_mut().zip(part.row(entry, self.dim)) {
                *sum += part.weight * gradient;
            }
        }
        if trainers > 1 {
            mean.iter_mut().for_each(|sum| *sum /= trainers as f32);
        }
    }

    /// The place of the row that stays zero.
    fn padding(&self) -> Option<Place> {
        let id = self.initial.padding?;
        self.places.check(&[id]).ok().and_then(|()| self.places.place(id, self.now()))
    }
}

impl Updated for Table {
    type Contribution = Contribution;
    /// What they have brought, and what its gradients are multiplied by.
    type Mean = (Vec<Contribution>, f64);
    type Averager = ();

    /// Rows are averaged where they are applied: nothing of them is as large as the table.
    fn average((): &(), given: Vec<Contribution>) -> Result<Option<Self::Mean>> {
        let Some(Contribution { terms, .. }) = given.first() else { return Ok(None) };
        let factor = terms.factor;
        Ok(Some((given, factor)))
    }

    fn version(&self) -> u64 {
        self.version
    }

    fn squares(&self, (given, _): &Self::Mean) -> Result<f64> {
        let (parts, written) = self.parts(given);
        let (padding, mut sum, mut squares) = (self.padding(), vec![0.0; self.dim], 0.0);
        for of_row in written.chunk_by(|one, next| one.place == next.place) {
            if padding != Some(of_row[0].place) {
                self.mean_of_row(given.len(), &parts, of_row, &mut sum);
                squares += sum.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>();
            }
        }
        Ok(squares)
    }

    fn scaled((given, _): Self::Mean, factor: f64) -> Result<Self::Mean> {
        Ok((given, factor))
    }

    /// The mean over the samples of all trainers; a row that one did not touch counts as zero there.
    fn apply(&mut self, (given, factor): Self::Mean) -> Result<()> {
        self.admit(&given)?;
        let padding = self.padding();
        let (parts, written) = self.parts(&given);
        self.leave_to_snapshots(&written);
        let mut optimizer = self.optimizer.take().context("no optimizer was made for this module")?;
        // The trainers of a round are at the same step.
        let mut step = optimizer.begin(given.first().map_or(1.0, |given| given.terms.lr_factor));
        let mut sum = vec![0.0; self.dim];
        // One trainer's weight is 1.
        let is_plain = factor == 1.0 && given.len() == 1;
        let mut ahead = written.iter().skip(AHEAD);
        for of_row in written.chunk_by(|one, next| one.place == next.place) {
            let place = of_row[0].place;
            for entry in ahead.by_ref().take(of_row.len()) {
                prefetch(&self.numbers, entry.place as usize * self.dim);
            }
            if padding == Some(place) {
                continue;
            }
            let range = self.range(place);
            let gradient = match of_row {
                // It is the mean.
                [only] if is_plain => parts[only.part as usize].row(only, self.dim),
                _ => {
                    self.mean_of_row(given.len(), &parts, of_row, &mut sum);
                    if factor != 1.0 {
                        sum.iter_mut().for_each(|sum| *sum *= factor as f32);
                    }
                    &sum
                }
            };
            step.row(range.start, &mut self.numbers[range], gradient);
            self.mark(place);
        }
        self.optimizer = Some(optimizer);
        self.version += 1;
        Ok(())
    }

    fn share(&self) -> Result<Table> {
        bail!("rows of a table are not updated without order")
    }
}
