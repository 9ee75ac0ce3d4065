//! What becomes of a job when the model that it trained is used.

use std::path::Path;

use super::validated::{Consistency, Field, FieldName, Job, Placement, Source, Task, Training, Work};
use crate::topology::{Rank, Role, WorldSize};

impl Job {
    /// Has the model start from what was saved, and do something else than to train.
    pub fn use_model(&mut self, model: &Path, task: Task) {
        let Work::Train(training) = &mut self.work else { return };
        // Its ranks are all here, wherever they were when it was trained.
        self.cluster.master_addr = "127.0.0.1".into();
        for module in training.modules.iter_mut().filter(|module| module.has_state()) {
            module.weights = Some(model.to_owned().into());
        }
        // The weights stay as they are.
        training.ema = None;
        training.task = task;
    }

    /// Has one rank hold and compute everything.
    pub fn on_one_rank(&mut self) {
        let Work::Train(training) = &mut self.work else { return };
        let alone = Role { name: training.train.trainers.name.clone(), ranks: vec![Rank(0)] };
        for module in &mut training.modules {
            module.place = alone.clone();
            // A table that is cut has the rows that were used, and one part is all of them.
            if !module.is_cut() {
                module.placement = Placement::Replicas;
            }
        }
        training.train.trainers = alone.clone();
        training.train.driver = None;
        training.train.consistency = Consistency::Bsp;
        training.pipeline.micro_batches = 1;
        self.roles = vec![alone];
        self.cluster.world_size = WorldSize(1);
    }
}

impl Training {
    /// Takes fields of the data through to predictions, and none for the loss.
    ///
    /// Returns the place of each among the fields.
    pub fn pass_through(&mut self, names: &[String]) -> Vec<(String, usize)> {
        self.loss.targets.clear();
        // Targets come behind no field that a module takes by its place: those keep theirs, and what is not taken goes.
        let kept: Vec<usize> = (0..self.fields.len()).filter(|&at| self.fields[at].taken.is_some()).collect();
        let renumbered = |source: &mut Source| {
            if let Source::Field(field) = source
                && let Some(now) = kept.iter().position(|at| at == field)
            {
                *field = now;
            }
        };
        self.modules.iter_mut().flat_map(|module| &mut module.sources).for_each(renumbered);
        self.loss.from.iter_mut().for_each(renumbered);
        self.fields = kept.iter().map(|&at| self.fields[at].clone()).collect();
        let mut places = Vec::new();
        for name in names {
            places.push((name.clone(), self.fields.len()));
            let key = format!("--field {name}");
            self.fields.push(Field { name: FieldName::Named(name.clone()), key, taken: None });
        }
        places
    }
}
