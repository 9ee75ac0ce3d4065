//! Parameters that training does not reach: said in the first steps, so that nobody finds out from the model.

use std::sync::Mutex;

use tch::Tensor;

/// How many steps a module has before its parameters without gradients are spoken of.
const STEPS: u32 = 10;

/// Which parameters of a module have had a gradient, over its first steps.
pub(super) struct FirstGradients {
    module: String,
    parameters: Vec<String>,
    /// None: there is nothing more to find out.
    waiting: Mutex<Option<Waiting>>,
}

struct Waiting {
    steps: u32,
    had: Vec<bool>,
}

impl FirstGradients {
    pub fn new(module: &str, parameters: Vec<String>) -> FirstGradients {
        let waiting = Waiting { steps: 0, had: vec![false; parameters.len()] };
        FirstGradients { module: module.into(), parameters, waiting: Mutex::new(Some(waiting)) }
    }

    /// How many there are.
    pub fn parameters(&self) -> usize {
        self.parameters.len()
    }

    /// What a step's backward has left. Warns once, if it comes to that.
    pub fn note(&self, gradients: &[Option<Tensor>]) {
        let mut waiting = self.waiting.lock().expect("nobody panics noting gradients");
        let Some(first) = &mut *waiting else { return };
        first.steps += 1;
        for (had, gradient) in first.had.iter_mut().zip(gradients) {
            *had |= gradient.is_some();
        }
        let without = self.parameters.iter().zip(&first.had).filter(|(_, had)| !**had);
        let without: Vec<&str> = without.map(|(name, _)| name.as_str()).collect();
        if !without.is_empty() && first.steps < STEPS {
            return;
        }
        if let Some(warning) = warning(&self.module, &without) {
            tracing::warn!("{warning}");
        }
        *waiting = None;
    }
}

fn warning(module: &str, without: &[&str]) -> Option<String> {
    let (first, more) = without.split_first()?;
    let those = match more.len() {
        0 => format!("parameter `{first}` has"),
        1 => format!("parameters `{first}` and `{}` have", more[0]),
        more => format!("parameter `{first}` and {more} others have"),
    };
    Some(format!(
        "module `{module}`: {those} had no gradient in its first {STEPS} steps: what the loss does not \
         depend on stays as it is"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradients(had: [bool; 3]) -> Vec<Option<Tensor>> {
        had.into_iter().map(|had| had.then(|| Tensor::from(1f32))).collect()
    }

    fn is_waiting(first: &FirstGradients) -> bool {
        first.waiting.lock().unwrap().is_some()
    }

    #[test]
    fn the_first_steps_tell_which_parameters_are_out_of_reach() {
        let first = FirstGradients::new("net", ["a", "b", "c"].map(String::from).to_vec());
        for _ in 1..STEPS {
            first.note(&gradients([true, false, false]));
            assert!(is_waiting(&first));
        }
        first.note(&gradients([true, false, true]));
        assert!(!is_waiting(&first), "nobody is told twice");
    }

    #[test]
    fn nothing_is_watched_once_all_have_had_a_gradient() {
        let first = FirstGradients::new("net", ["a", "b", "c"].map(String::from).to_vec());
        first.note(&gradients([true, false, true]));
        first.note(&gradients([false, true, false]));
        assert!(!is_waiting(&first));
    }

    #[test]
    fn the_warning_names_module_and_parameters() {
        assert_eq!(warning("net", &[]), None);
        let said = |without: &[&str]| warning("net", without).unwrap();
        assert!(
            said(&["a"]).starts_with("module `net`: parameter `a` has had no gradient in its first 10 steps")
        );
        assert!(said(&["a", "b"]).starts_with("module `net`: parameters `a` and `b` have had"));
        assert!(said(&["a", "b", "c"]).starts_with("module `net`: parameter `a` and 2 others have had"));
    }
}
