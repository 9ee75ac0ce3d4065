//! A shard's rows as they travel to be saved: in pieces, of which each is a message.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tch::{Kind, Tensor};

use crate::autograd::Autograd;
use crate::parallel::calls::shard::{self as calls, List, Listed, PieceOfRows};
use crate::rpc::RRef;

/// All rows that one owner had at one moment. What they hold is read with each piece.
pub struct Listing {
    autograd: Arc<Autograd>,
    list: RRef,
    rows: u64,
    /// Of a row.
    dim: i64,
    /// Rows taken so far.
    taken: u64,
    /// The id of the last of them.
    last: Option<i64>,
}

/// Some of an owner's rows.
pub struct Piece {
    /// int64 `[k]`, ascending.
    pub ids: Tensor,
    /// float32 `[k, dim]`.
    pub rows: Tensor,
}

impl Listing {
    pub(super) fn of(autograd: &Arc<Autograd>, shard: &RRef, dim: i64) -> Result<Listing> {
        let Listed { list, rows } =
            autograd.call(shard.owner(), List { shard: shard.clone() }, None).wait()?;
        Ok(Listing { autograd: autograd.clone(), list, rows, dim, taken: 0, last: None })
    }

    /// In all.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// The rows after those of the piece before; `None` after the last.
    ///
    /// # Errors
    /// When the call fails, or its answer is no piece.
    pub fn next_piece(&mut self) -> Result<Option<Piece>> {
        if self.taken == self.rows {
            return Ok(None);
        }
        let piece = calls::Piece { list: self.list.clone(), start: self.taken };
        let PieceOfRows { ids, rows } = self.autograd.call(self.list.owner(), piece, None).wait()?;
        let (count, left) = (ids.numel() as u64, self.rows - self.taken);
        let (owner, shapes) = (self.list.owner(), (ids.size(), rows.size()));
        let sound = ids.f_kind()? == Kind::Int64
            && rows.f_kind()? == Kind::Float
            && (1..=left).contains(&count)
            && shapes == (vec![count as i64], vec![count as i64, self.dim]);
        ensure!(
            sound,
            "rank {owner} sent ids and rows of shapes {shapes:?}; {left} rows of {} numbers are left",
            self.dim
        );
        let list = Vec::<i64>::try_from(&ids)?;
        let ascending =
            list.is_sorted_by(|one, next| one < next) && self.last.is_none_or(|last| last < list[0]);
        ensure!(ascending, "rank {owner} sent rows out of order, after row {:?}", self.last);
        self.taken += count;
        self.last = list.last().copied();
        Ok(Some(Piece { ids, rows }))
    }
}
