//! The rows that a table starts from whose rows lie on several ranks, out of a safetensors file or a checkpoint, in pieces.

use std::ops::Range;
use std::path::PathBuf;

use super::ModelError;
use super::weights::{Opened, unread};
use crate::job::ModuleSpec;
use crate::job::weights::{Stored, Weights, fit_rows};

/// Rows that weights have of a table.
pub struct TableRows {
    opened: Opened,
    path: PathBuf,
    /// Where they begin.
    start: u64,
    dim: usize,
    /// None: those from 0 on.
    ids: Option<Vec<i64>>,
    count: usize,
}

const PIECE_BYTES: usize = 4 << 20;
const NUMBER_BYTES: usize = size_of::<f32>();

impl TableRows {
    /// Those of `weights` for the `nth` of the tables of `module`'s only layer.
    ///
    /// # Errors
    /// They cannot be read; what they have is not these tables; an id in it is negative, not in the table (where it has an
    /// end, `below`), or there twice.
    pub fn open(
        weights: &Weights,
        module: &ModuleSpec,
        nth: usize,
        below: Option<i64>,
    ) -> Result<TableRows, ModelError> {
        let path = &weights.path;
        let failed = |message: String| unread(path, message);
        let mut opened = Opened::open(weights).map_err(failed)?;
        let rows =
            module.rows().ok_or_else(|| failed("its rows are for a table, and this is none".into()))?;
        let tables = module.tables(&rows);
        let dim = rows.table.dim;
        let mut stored = fit_rows(module.written_name(), &tables, dim, &opened.header)
            .map_err(|problems| ModelError::Weights { file: path.clone(), problems })?;
        let stored = stored.swap_remove(nth);
        let ids = stored.ids.map(|ids| integers(&mut opened, &ids)).transpose().map_err(failed)?;
        if let Some(ids) = &ids {
            check(ids, below).map_err(failed)?;
        }
        let count = usize::try_from(stored.numbers.shape[0]).map_err(|error| failed(error.to_string()))?;
        let (start, dim) = (stored.numbers.start, dim as usize);
        Ok(TableRows { opened, path: path.clone(), start, dim, ids, count })
    }

    /// Hands over those rows for whose ids `wanted` is true, in pieces: their ids, and their numbers row after row.
    /// `among`: if there are no ids, no others are read.
    ///
    /// # Errors
    /// The file cannot be read; what `take` says.
    pub fn visit<E: From<ModelError>>(
        &mut self,
        among: Range<i64>,
        wanted: impl Fn(i64) -> bool,
        mut take: impl FnMut(&[i64], &[f32]) -> Result<(), E>,
    ) -> Result<(), E> {
        let all = match &self.ids {
            Some(_) => 0..self.count,
            None => among.start.max(0) as usize..(among.end.max(0) as usize).min(self.count),
        };
        let piece = (PIECE_BYTES / (NUMBER_BYTES * self.dim)).max(1);
        for from in all.clone().step_by(piece) {
            let rows = from..(from + piece).min(all.end);
            let id = |row: usize| self.ids.as_ref().map_or(row as i64, |ids| ids[row]);
            let of_piece = (0..).zip(rows.clone()).map(|(nth, row): (usize, _)| (nth, id(row)));
            let (places, ids): (Vec<usize>, Vec<i64>) = of_piece.filter(|(_, id)| wanted(*id)).unzip();
            // What another owner has saved lies together.
            if ids.is_empty() {
                continue;
            }
            let numbers = self.read(&rows).map_err(|message| unread(&self.path, message))?;
            let mut kept = Vec::with_capacity(places.len() * self.dim);
            for nth in places {
                kept.extend_from_slice(&numbers[nth * self.dim..][..self.dim]);
            }
            take(&ids, &kept)?;
        }
        Ok(())
    }

    fn read(&mut self, rows: &Range<usize>) -> Result<Vec<f32>, String> {
        let row = self.dim * NUMBER_BYTES;
        let mut bytes = vec![0; rows.len() * row];
        let at = self.start + (rows.start * row) as u64;
        self.opened.read_at(&mut bytes, at).map_err(|error| error.to_string())?;
        let (numbers, _) = bytes.as_chunks::<NUMBER_BYTES>();
        Ok(numbers.iter().map(|number| f32::from_le_bytes(*number)).collect())
    }
}

fn integers(opened: &mut Opened, stored: &Stored) -> Result<Vec<i64>, String> {
    // The header's lengths were compared with the file's, so there is no more to allocate than the file has.
    let mut bytes = vec![0; usize::try_from(stored.len).map_err(|error| error.to_string())?];
    opened.read_at(&mut bytes, stored.start).map_err(|error| error.to_string())?;
    let (numbers, _) = bytes.as_chunks::<8>();
    Ok(numbers.iter().map(|number| i64::from_le_bytes(*number)).collect())
}

fn check(ids: &[i64], below: Option<i64>) -> Result<(), String> {
    let outside = |id: &&i64| **id < 0 || below.is_some_and(|below| **id >= below);
    if let Some(id) = ids.iter().find(outside) {
        let limit = below.map_or(String::new(), |below| format!(" to below {below}"));
        return Err(format!("it has a row of id {id}, and the table has those from 0{limit}"));
    }
    let mut sorted = ids.to_vec();
    sorted.sort_unstable();
    match sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(twice) => Err(format!("it has the row of id {} twice", twice[0])),
        None => Ok(()),
    }
}
