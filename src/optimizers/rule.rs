//! What an optimizer says of itself in its file.

use std::fmt::{self, Debug};

use tch::{TchError, Tensor};

/// An optimizer by its options, which are the fields of the type. Nothing has a default: each says everything.
pub trait UpdateRule: Debug {
    /// Whether the options go together; each by itself is in its range.
    ///
    /// # Errors
    /// The option that does not fit the others.
    fn conflict(&self) -> Result<(), Impossible>;

    /// What it remembers of each parameter, beside the number of steps.
    fn slots(&self) -> Vec<Slot>;

    /// Does the state of PyTorch's optimizer have a `step`?
    fn counts_steps(&self) -> bool;

    /// Does it look at the learning rate of the first step only, so that a schedule has no part in it?
    fn reads_lr_once(&self) -> bool;

    /// What keeps it from applying sparse gradients. None: it never does.
    fn sparse_hindrances() -> Option<&'static [Hindrance<Self>]>
    where
        Self: Sized;

    /// What keeps it from updating single rows of a table, the others left as they are. None: it never does.
    fn row_hindrances() -> Option<&'static [Hindrance<Self>]>
    where
        Self: Sized;

    /// How it updates single rows, if it ever does.
    fn row_rule(&self) -> Option<&dyn RowRule>;

    /// One step of one parameter, in place and element by element: how parameters are cut over servers changes no bit.
    ///
    /// # Errors
    /// What libtorch refuses.
    fn update(&self, update: Update<'_>) -> Result<(), TchError>;
}

/// An option with which an optimizer cannot do something: what it is called, and whether it is on.
pub struct Hindrance<Rule>(pub &'static str, pub fn(&Rule) -> bool);

/// Why an optimizer cannot do something. Written out it is what stands behind the optimizer's name in a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hindered {
    Always,
    By(&'static str),
}

impl Hindered {
    /// `hindrances`: of what an optimizer with these options is asked to do.
    pub(super) fn of<Rule>(hindrances: Option<&[Hindrance<Rule>]>, rule: &Rule) -> Option<Hindered> {
        let Some(hindrances) = hindrances else { return Some(Hindered::Always) };
        let on = hindrances.iter().find(|Hindrance(_, is_on)| is_on(rule));
        on.map(|Hindrance(option, _)| Hindered::By(option))
    }
}

impl fmt::Display for Hindered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Hindered::Always => Ok(()),
            Hindered::By(option) => write!(f, " with {option}"),
        }
    }
}

/// The options without which an optimizer does something: what stands behind its name in a hint. None: it never does it.
pub(super) fn where_possible<Rule>(hindrances: Option<&[Hindrance<Rule>]>) -> Option<String> {
    let options: Vec<&str> = hindrances?.iter().map(|Hindrance(option, _)| *option).collect();
    Some(format!(" without {}", options.join(" and ")))
}

/// A tensor that an optimizer keeps for each parameter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slot {
    /// As in PyTorch's `state_dict`.
    pub name: &'static str,
    /// Its value before the first step.
    pub first: f64,
    /// One number for each of the parameter, and not one for all.
    pub per_element: bool,
}

/// One number for each of the parameter, all the same before the first step.
pub(super) fn each(name: &'static str, first: f64) -> Slot {
    Slot { name, first, per_element: true }
}

/// One parameter in one step.
pub struct Update<'a> {
    pub param: Tensor,
    /// Negated where the job maximizes. Of the parameter's shape.
    pub grad: Tensor,
    /// In the order of [`UpdateRule::slots`].
    pub slots: &'a mut [Tensor],
    /// Counted from 1.
    pub step: u64,
    /// The learning rate of this step.
    pub lr: f64,
}

/// Updates of single rows, by PyTorch's rules for sparse gradients, on plain numbers: rows that nobody has used are not
/// even in memory. Slots are those of the rule.
pub trait RowRule {
    /// What a row moves by in this step for each unit that [`RowRule::row`] finds, at a learning rate; steps count from 1.
    fn rate(&self, step: u64, lr: f64) -> f64;

    /// Updates `row`, against `gradient`. What is remembered of the row starts at `at` in each of `slots`.
    fn row(&self, rate: f32, row: &mut [f32], gradient: &[f32], slots: &mut [Vec<f32>], at: usize);
}

/// An option that is not possible.
#[derive(Clone, Debug, PartialEq)]
pub struct Impossible {
    /// As it is written: `betas[1]`.
    pub option: String,
    pub value: String,
    /// Completes "OPTION = VALUE ...".
    pub problem: String,
    pub hint: String,
}
