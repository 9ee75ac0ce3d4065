//! What the figures of validations decide: the best model, the end of training, the learning rate. Pure.

use anyhow::{Result, anyhow};

use crate::job::Training;
use crate::metrics::{Mode, Value, Watched};
use crate::optimizers::Falling;
use crate::runner::calls::validation::Verdict;
use crate::runner::checkpoint::Figures;
use crate::runner::inputs::BadJob;
use crate::runner::metrics::Unimproved;
use crate::runner::records::EvalResult;

/// The rules of a whole run. The first trainer goes by them, and the others know by what it has decided.
#[derive(Default)]
pub struct Rules {
    best: Option<Leading>,
    stop: Option<(Leading, u32)>,
    plateau: Option<(Watched, Falling)>,
    /// What it was decided by, one validation after the other.
    judged: Vec<Figures>,
}

/// A figure, and the best one so far.
struct Leading {
    watched: Watched,
    mode: Mode,
    /// What another has to be better by.
    by: f64,
    best: f64,
    /// Validations since then.
    since: u32,
}

impl Leading {
    fn new(watched: &Watched, by: f64, job: &Training) -> Option<Leading> {
        let mode = watched.mode_among(&job.eval.metrics)?;
        Some(Leading { watched: watched.clone(), mode, by, best: mode.worst(), since: 0 })
    }

    /// Is it the best so far?
    fn leads(&mut self, result: &EvalResult) -> Result<bool> {
        let value = figure(result, &self.watched)?;
        let leads = self.mode.is_better(value, self.best, if self.best.is_finite() { self.by } else { 0.0 });
        if leads {
            (self.best, self.since) = (value, 0);
        } else {
            self.since += 1;
        }
        Ok(leads)
    }
}

impl Rules {
    pub fn new(job: &Training) -> Rules {
        let eval = &job.eval;
        let plateau = job.schedule.as_ref().and_then(|schedule| schedule.plateau());
        Rules {
            best: eval.best.as_ref().and_then(|watched| Leading::new(watched, 0.0, job)),
            stop: eval
                .stop
                .as_ref()
                .and_then(|stop| Some((Leading::new(&stop.watched, stop.min_delta, job)?, stop.patience))),
            plateau: plateau
                .and_then(|options| Some((options.watched(), Falling::new(options, &eval.metrics)?))),
            judged: Vec::new(),
        }
    }

    /// What the validations have found so far: all that is decided follows from it.
    pub fn judged(&self) -> &[Figures] {
        &self.judged
    }

    /// The first trainer has decided by these.
    pub fn hear(&mut self, figures: Figures) {
        self.judged.push(figures);
    }

    /// What `eval.stop` has seen so far.
    pub fn unimproved(&self) -> Option<Unimproved> {
        let (leading, _) = self.stop.as_ref()?;
        let Leading { watched, best, since, .. } = leading;
        Some(Unimproved { metric: watched.metric.clone(), best: *best, validations: *since })
    }

    /// Whether the model of this validation is the best so far, and what all trainers do.
    ///
    /// # Errors
    /// The validation has no figure of the name that the job gives.
    pub fn judge(&mut self, result: &EvalResult) -> Result<(bool, Verdict)> {
        self.judged.push(Figures::of(result));
        let best = match &mut self.best {
            Some(leading) => leading.leads(result)?,
            None => false,
        };
        let stop = match &mut self.stop {
            Some((leading, patience)) => !leading.leads(result)? && leading.since >= *patience,
            None => false,
        };
        let lr_factor = match &mut self.plateau {
            Some((watched, falling)) => falling.after(figure(result, watched)?),
            None => 1.0,
        };
        Ok((best, Verdict { stop, lr_factor }))
    }
}

/// A number by which something is decided.
fn figure(result: &EvalResult, watched: &Watched) -> Result<f64> {
    let name = watched.metric.as_str();
    if name == "loss" {
        return Ok(result.loss);
    }
    if let Some(number) = result.metrics.get(name).and_then(Value::number) {
        return Ok(number);
    }
    let numbers = result.metrics.iter().filter(|(_, value)| value.number().is_some());
    let known: Vec<&str> = ["loss"].into_iter().chain(numbers.map(|(name, _)| name.as_str())).collect();
    Err(BadJob(anyhow!(
        "the job goes by `{name}`, and its validations have no such number\n  hint: they have {}",
        known.join(", ")
    ))
    .into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{JobText, Override, Sources, load, starter};

    fn rules(settings: &[&str]) -> Rules {
        let settings = ["eval.every_epochs=1"].iter().chain(settings);
        let overrides: Vec<_> = settings.map(|text| Override::set(text).unwrap()).collect();
        let file = JobText { name: "starter", text: starter() };
        let job = load(&Sources { file, env: Vec::new(), overrides: &overrides }).unwrap().job;
        Rules::new(job.training().unwrap())
    }

    fn result(loss: f64, accuracy: f64) -> EvalResult {
        let metrics = [("accuracy".to_owned(), Value::Number(accuracy))].into();
        EvalResult { samples: 10, targets: 10, loss, metrics }
    }

    /// (best, stop) of each loss in turn.
    fn judged(rules: &mut Rules, losses: &[f64]) -> Vec<(bool, bool)> {
        let judge = |loss: &f64| {
            let (best, verdict) = rules.judge(&result(*loss, 1.0 - loss)).unwrap();
            (best, verdict.stop)
        };
        losses.iter().map(judge).collect()
    }

    #[test]
    fn the_best_is_what_was_never_reached_before() {
        let losses = [0.5, 0.4, 0.4, f64::NAN, 0.3];
        let best = [true, true, false, false, true].map(|best| (best, false));
        assert_eq!(judged(&mut rules(&["eval.best=loss"]), &losses), best);
        assert_eq!(judged(&mut rules(&["eval.best=accuracy"]), &losses), best);
        let worst = judged(&mut rules(&["eval.best={metric=\"loss\", mode=\"max\"}"]), &losses);
        assert_eq!(worst, [true, false, false, false, false].map(|best| (best, false)));
    }

    /// As Keras' EarlyStopping and Lightning's.
    #[test]
    fn training_ends_when_patience_does() {
        let stops = |stop: &str, losses: &[f64]| {
            let judged = judged(&mut rules(&[&format!("eval.stop={{{stop}}}")]), losses);
            judged.iter().position(|(_, stop)| *stop)
        };
        assert_eq!(stops("patience=2", &[0.5, 0.6, 0.4, 0.4, 0.4]), Some(4));
        assert_eq!(stops("patience=2", &[0.5, 0.6, 0.4, 0.4, 0.3]), None);
        assert_eq!(stops("patience=2, min_delta=0.2", &[0.5, 0.4, 0.35]), Some(2));
        assert_eq!(stops("patience=1, metric=\"accuracy\"", &[0.5, 0.4, 0.5]), Some(2));
        assert_eq!(
            stops("patience=2", &[f64::NAN, f64::NAN, 0.4]),
            Some(1),
            "a figure that is none is no better"
        );
    }

    #[test]
    fn a_figure_that_there_is_not_is_told() {
        let said = rules(&["eval.best={metric=\"f1\", mode=\"max\"}"]).judge(&result(0.1, 0.9));
        insta::assert_snapshot!(said.unwrap_err().to_string(), @r"
        the job goes by `f1`, and its validations have no such number
          hint: they have loss, accuracy
        ");
    }
}
