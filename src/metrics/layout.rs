//! How a sample's output and its target go together, from shapes and dtypes alone: as in the losses, either each target has
//! a score for each class ([classes, ...] and int64 [...]), or each element of the output has its target (one shape, sizes
//! of 1 aside).

use crate::layers::{InputDtype, Signal};

/// Which outputs and targets a metric takes.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Takes {
    /// A score for each class, and the class that it is.
    Classes,
    /// One score for each target of 0 and 1, or scores of two classes.
    Binary,
    /// Either of them.
    Labels,
    /// Numbers of one shape.
    Numbers,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Layout {
    Classes(i64),
    Elements,
}

/// What stands behind the metric's name, and a hint.
#[derive(Debug, thiserror::Error)]
#[error("{problem}\n  hint: {hint}")]
pub(super) struct Unfit {
    pub problem: String,
    pub hint: String,
}

impl Unfit {
    pub(super) fn new(problem: impl Into<String>, hint: impl Into<String>) -> Unfit {
        Unfit { problem: problem.into(), hint: hint.into() }
    }
}

impl Takes {
    /// How they go together; None where too little is known.
    pub(super) fn layout(
        self,
        output: Option<&Signal>,
        target: Option<&Signal>,
    ) -> Result<Option<Layout>, Unfit> {
        if let Some(output) = output.filter(|output| output.dtype == InputDtype::Int64) {
            let problem = format!("takes an output of fractions, and a sample's is {output}");
            return Err(Unfit::new(problem, "let the model end with a layer that gives fractions"));
        }
        let whole = target.is_none_or(|target| target.dtype == InputDtype::Int64);
        let unfit = || self.unfit(output, target);
        let (Some(output), Some(target)) = (output, target) else {
            let no_classes = output.is_some_and(|output| output.shape.is_empty());
            let refused = self == Takes::Classes && (no_classes || !whole);
            return if refused { Err(unfit()) } else { Ok(None) };
        };
        let layout = if sizes(&output.shape).eq(sizes(&target.shape)) {
            Layout::Elements
        } else if whole && output.shape.get(1..) == Some(target.shape.as_slice()) {
            Layout::Classes(output.shape[0])
        } else {
            return Err(unfit());
        };
        match (self, layout) {
            (Takes::Classes, Layout::Elements)
            | (Takes::Numbers, Layout::Classes(_))
            | (_, Layout::Classes(..=0)) => Err(unfit()),
            (Takes::Binary, Layout::Classes(classes)) if classes != 2 => Err(unfit()),
            _ => Ok(Some(layout)),
        }
    }

    fn unfit(self, output: Option<&Signal>, target: Option<&Signal>) -> Unfit {
        let (takes, hint) = match self {
            Takes::Classes => (
                "a score for each class [classes, ...] and int64 targets [...]",
                "where targets are of the output's shape there are mae, mse and r2, or accuracy, auc and f1 if they are 0 and 1",
            ),
            Takes::Binary => (
                "one score for each target of 0 and 1 (one shape, sizes of 1 aside), or scores of two classes",
                "for more classes there are accuracy, top_k, and f1 with average = \"macro\"",
            ),
            Takes::Labels => (
                "a score for each class [classes, ...] and int64 targets [...], or one score for each target of 0 and 1",
                "for numbers there are mae, mse and r2, whose targets are of the output's shape",
            ),
            Takes::Numbers => (
                "output and target of one shape (sizes of 1 aside)",
                "for numbers of classes there are accuracy, top_k, and f1 with average = \"macro\"",
            ),
        };
        let output = output.map(|output| format!("the output {output}"));
        let target = target.map(|target| format!("the target {target}"));
        let has: Vec<String> = output.into_iter().chain(target).collect();
        Unfit::new(format!("takes {takes}, and a sample has {}", has.join(" and ")), hint)
    }
}

fn sizes(shape: &[i64]) -> impl Iterator<Item = &i64> {
    shape.iter().filter(|size| **size != 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layout(takes: Takes, output: &[i64], target: (&[i64], InputDtype)) -> Option<Layout> {
        let target = Signal::new(target.0, target.1);
        takes.layout(Some(&Signal::floats(output)), Some(&target)).ok().flatten()
    }

    #[test]
    fn an_output_goes_with_its_target_as_in_the_losses() {
        use InputDtype::{Float32, Int64};
        assert_eq!(layout(Takes::Labels, &[10], (&[], Int64)), Some(Layout::Classes(10)));
        assert_eq!(layout(Takes::Labels, &[10, 7], (&[7], Int64)), Some(Layout::Classes(10)));
        assert_eq!(layout(Takes::Labels, &[10], (&[], Float32)), None);
        assert_eq!(layout(Takes::Labels, &[1], (&[], Int64)), Some(Layout::Elements));
        assert_eq!(layout(Takes::Binary, &[2], (&[], Int64)), Some(Layout::Classes(2)));
        assert_eq!(layout(Takes::Binary, &[3], (&[], Int64)), None);
        assert_eq!(layout(Takes::Numbers, &[3], (&[3, 1], Float32)), Some(Layout::Elements));
        assert_eq!(layout(Takes::Numbers, &[3], (&[4], Float32)), None);
        assert_eq!(layout(Takes::Classes, &[3], (&[3], Int64)), None);
        assert_eq!(layout(Takes::Classes, &[0], (&[], Int64)), None);
    }
}
