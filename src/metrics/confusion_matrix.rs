//! How often each class is taken for each: scikit-learn's `confusion_matrix`.

use tch::{Kind, Tensor};

use super::batch::{self, Predictions, to_vec};
use super::error::Fault;
use super::layout::{Layout, Takes, Unfit};
use super::{Accumulate, IGNORE_INDEX, Measures, Mode, Signal, THRESHOLD, Value, state};

metric! {
    /// How often each class is taken for each: a row for each class of targets, a column for each that is predicted. Of up to 1024 classes.
    pub struct ConfusionMatrix {
        ignore_index: i64 = IGNORE_INDEX,
        threshold: f64 = THRESHOLD,
    }
}

/// A record of it is a line of several megabytes.
const MOST_CLASSES: i64 = 1024;

struct Matrix {
    options: ConfusionMatrix,
    classes: usize,
    /// Row behind row.
    counts: Vec<i64>,
    /// Was a NaN among the scores?
    undefined: bool,
}

fn check_classes(classes: i64) -> Result<(), Unfit> {
    if classes <= MOST_CLASSES {
        return Ok(());
    }
    let problem = format!("is of at most {MOST_CLASSES} classes, and the output has {classes}");
    Err(Unfit::new(problem, "use f1 with average = \"macro\", which is one number"))
}

impl Matrix {
    fn add(&mut self, classes: usize, counts: &[i64]) -> Result<(), Fault> {
        if self.classes == 0 {
            (self.classes, self.counts) = (classes, counts.to_vec());
            return Ok(());
        }
        let added = self.counts.iter().zip(counts).map(|(own, other)| state::added(*own, *other));
        self.counts = added.collect::<Result<_, Fault>>()?;
        Ok(())
    }
}

impl Accumulate for Matrix {
    fn update(&mut self, output: &Tensor, target: &Tensor) -> Result<(), Fault> {
        let ConfusionMatrix { ignore_index, threshold } = self.options;
        let Predictions { predicted, actual, classes, undefined } =
            batch::predictions(Takes::Labels, output, target, threshold, ignore_index)?;
        check_classes(classes)?;
        batch::same_classes(self.classes, classes)?;
        let places = actual.f_mul_scalar(classes)?.f_add(&predicted)?;
        let counts = places.f_bincount(None::<Tensor>, classes * classes)?;
        self.add(classes as usize, &to_vec(&counts)?)?;
        self.undefined |= undefined;
        Ok(())
    }

    fn state(&self) -> Result<Vec<Tensor>, Fault> {
        let undefined = Tensor::f_from_slice(&[i64::from(self.undefined)])?;
        Ok(vec![undefined, Tensor::f_from_slice(&self.counts)?])
    }

    fn merge(&mut self, state: Vec<Tensor>) -> Result<(), Fault> {
        let [undefined, counts] = state::tensors(state)?;
        let undefined = state::counts(&undefined, 1)?[0] != 0;
        let cells = state::row(&counts, Kind::Int64)?;
        let classes = cells.isqrt();
        let fits = match self.classes {
            0 => classes as i64 <= MOST_CLASSES && classes * classes == cells,
            known => cells == 0 || cells == known * known,
        };
        if !fits {
            return Err(Fault::State(format!("has {cells} counts, which are not a matrix of its classes")));
        }
        if cells > 0 {
            self.add(classes, &state::counts(&counts, cells)?)?;
        }
        self.undefined |= undefined;
        Ok(())
    }

    fn value(&self) -> Result<Value, Fault> {
        if self.undefined || self.classes == 0 {
            return Ok(Value::Number(f64::NAN));
        }
        Ok(Value::Counts(self.counts.chunks(self.classes).map(<[i64]>::to_vec).collect()))
    }
}

impl Measures for ConfusionMatrix {
    fn name(&self) -> String {
        "confusion_matrix".into()
    }

    fn fits(&self, output: Option<&Signal>, target: Option<&Signal>) -> Result<(), Unfit> {
        match Takes::Labels.layout(output, target)? {
            Some(Layout::Classes(classes)) => check_classes(classes),
            Some(Layout::Elements) | None => Ok(()),
        }
    }

    fn better(&self) -> Option<Mode> {
        None
    }

    fn start(&self) -> Box<dyn Accumulate> {
        Box::new(Matrix { options: self.clone(), classes: 0, counts: Vec::new(), undefined: false })
    }
}
