//! The plan of a job that shows collectives.

use std::fmt;

use serde::Serialize;

use super::super::validated::{Collectives, Job, Operation, Reduction};
use crate::topology::Rank;

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectivesPlan {
    pub job: String,
    pub world_size: u32,
    pub operations: Vec<Operation>,
    pub reductions: Vec<Reduction>,
    /// Besides the whole world.
    pub group: Option<Vec<Rank>>,
}

pub fn collectives_plan(job: &Job, demo: &Collectives) -> CollectivesPlan {
    CollectivesPlan {
        job: job.name.clone(),
        world_size: job.cluster.world_size.0,
        operations: demo.show.clone(),
        reductions: demo.reduce.clone(),
        group: demo.group.clone(),
    }
}

impl fmt::Display for CollectivesPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "job {}", self.job)?;
        write!(f, "  {} operations among {} ranks", self.operations.len(), self.world_size)?;
        if let Some(group) = &self.group {
            let ranks: Vec<_> = group.iter().map(Rank::to_string).collect();
            write!(f, ", and in a group of the ranks {}", ranks.join(" "))?;
        }
        Ok(())
    }
}
