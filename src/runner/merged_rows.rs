//! A table's rows from several owners, in the order of their ids.

use anyhow::{Context as _, Result};

use crate::parallel::Piece;

/// One owner's rows while they are merged with those of others.
pub struct Rows<'a> {
    pieces: Box<dyn Iterator<Item = Result<Piece>> + 'a>,
    /// Ids of the piece that came last.
    ids: Vec<i64>,
    rows: Vec<f32>,
    /// Among them the first that was not taken yet.
    next: usize,
}

impl<'a> Rows<'a> {
    /// # Errors
    /// The first piece does not come.
    pub fn new(pieces: impl Iterator<Item = Result<Piece>> + 'a) -> Result<Rows<'a>> {
        let mut source = Rows { pieces: Box::new(pieces), ids: Vec::new(), rows: Vec::new(), next: 0 };
        source.refill()?;
        Ok(source)
    }

    fn refill(&mut self) -> Result<()> {
        self.next = 0;
        match self.pieces.next().transpose()? {
            Some(Piece { ids, values }) => {
                self.ids = Vec::try_from(ids.context("rows came without ids")?)?;
                self.rows = Vec::try_from(values.f_view(-1)?)?;
            }
            None => self.ids.clear(),
        }
        Ok(())
    }

    /// The smallest id that was not taken yet.
    fn id(&self) -> Option<i64> {
        self.ids.get(self.next).copied()
    }
}

/// Rows that are handed over at a time.
const MERGED_ROWS: usize = 1 << 16;

/// Hands over the rows of all sources in the order of their ids, of which no two sources have the same; each has `dim` numbers.
///
/// # Errors
/// A piece does not come; they are not taken.
pub fn merge(
    mut sources: Vec<Rows<'_>>,
    dim: usize,
    mut take: impl FnMut(&[i64], &[f32]) -> Result<()>,
) -> Result<()> {
    let (mut ids, mut rows) = (Vec::new(), Vec::new());
    loop {
        let smallest = sources.iter_mut().filter_map(|source| source.id().map(|id| (id, source)));
        let Some((id, source)) = smallest.min_by_key(|(id, _)| *id) else { break };
        ids.push(id);
        rows.extend_from_slice(&source.rows[source.next * dim..][..dim]);
        source.next += 1;
        if source.next == source.ids.len() {
            source.refill()?;
        }
        if ids.len() == MERGED_ROWS {
            take(&ids, &rows)?;
            ids.clear();
            rows.clear();
        }
    }
    take(&ids, &rows)
}
