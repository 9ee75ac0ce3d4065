//! A rank's rows of a table.

use tch::Tensor;

use super::optimizer::{MeasuredStep, SentTerms, Stepped};
use crate::optimizers::Optimization;
use crate::rpc::{Json, RRef, body, call};

call! {
    /// The callee's part of a table, made by the first who asks.
    pub struct Get = "shard.get" -> Reference {
        module: String,
    }
}

body! {
    pub struct Reference {
        shard: RRef,
    }
}

call! {
    /// Rows by their ids. Under a context they are recorded, and made if they are new.
    pub struct LookUp = "shard.rows" -> Rows {
        shard: RRef,
        /// How many of the caller's steps are applied first.
        after: u64,
        /// int64 `[n]`, ascending.
        ids: Tensor,
    }
}

body! {
    pub struct Rows {
        /// float32 `[n, dim]`.
        rows: Tensor,
    }
}

call! {
    /// What updates the rows from now on.
    pub struct Optimize = "shard.optimize" -> () {
        shard: RRef,
        options: Json<Optimization>,
    }
}

call! {
    /// The caller's step, as `optimizer.step`.
    pub struct Step = "shard.step" -> Stepped {
        shard: RRef,
        backward: Option<u64>,
        terms: SentTerms,
    }
}

call! {
    /// The first half of the caller's step, as `optimizer.measure`.
    pub struct Measure = "shard.measure" -> MeasuredStep {
        shard: RRef,
        backward: Option<u64>,
        terms: SentTerms,
    }
}

call! {
    /// The caller takes no more steps.
    pub struct Leave = "shard.leave" -> () {
        shard: RRef,
    }
}
