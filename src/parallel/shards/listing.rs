//! A shard's rows as they travel to be saved: in pieces, of which each is a message.

use std::sync::Arc;

use anyhow::{Result, ensure};
use tch::Tensor;

use crate::autograd::Autograd;
use crate::parallel::server::exactly;
use crate::rpc::RRef;

/// All rows that one owner had at one moment. What they hold is read with each piece.
pub struct Listing {
    autograd: Arc<Autograd>,
    list: RRef,
    rows: u64,
    /// Rows taken so far.
    taken: u64,
}

/// Some of an owner's rows.
pub struct Piece {
    /// int64 `[k]`, ascending.
    pub ids: Tensor,
    /// float32 `[k, dim]`.
    pub rows: Tensor,
}

impl Listing {
    pub(super) fn of(autograd: &Arc<Autograd>, shard: &RRef) -> Result<Listing> {
        let answer = autograd.call(shard.owner(), "shard.list", vec![shard.clone().into()], None).wait()?;
        let [list, rows] = exactly(answer)?;
        let (list, rows) = (list.into_rref()?, u64::try_from(rows.into_int()?)?);
        Ok(Listing { autograd: autograd.clone(), list, rows, taken: 0 })
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
        let values = vec![self.list.clone().into(), (self.taken as i64).into()];
        let answer = self.autograd.call(self.list.owner(), "shard.piece", values, None).wait()?;
        let [ids, rows] = exactly(answer)?;
        let (ids, rows) = (ids.into_tensor()?, rows.into_tensor()?);
        let count = ids.numel() as u64;
        let sound =
            count > 0 && count <= self.rows - self.taken && rows.size().first() == Some(&(count as i64));
        ensure!(
            sound,
            "{count} ids came with rows of shape {:?}, {} are left",
            rows.size(),
            self.rows - self.taken
        );
        self.taken += count;
        Ok(Some(Piece { ids, rows }))
    }
}
