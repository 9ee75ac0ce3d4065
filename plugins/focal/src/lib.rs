//! Focal loss: Lin, Goyal, Girshick, He, Dollár, "Focal Loss for Dense Object Detection" (ICCV 2017), equations 4 and 5:
//! -alpha_t (1 - p_t)^gamma log(p_t), where p_t is the probability of what is true. Over scores, in one of two forms:
//!
//! - yes and no, output and targets (0 to 1) of one shape (sizes of 1 aside): torchvision's `sigmoid_focal_loss`. `alpha` is
//!   how much yes weighs, and 1 - `alpha` how much no; without it 0.25, and with -1 neither weighs more.
//! - classes, output [N, C, ...] and int64 targets [N, ...]: p_t is the softmax's. `alpha` is a list, of how much each
//!   class weighs; without it all weigh 1. Targets that are `ignore_index` do not count.
//!
//! The mean is over the elements, or the targets that count, whatever they weigh. Metric: `accuracy`.

use pstrain_plugin::loss::{Counted, Reduction, Weights, check_classes, fraction, like_output, reduced};
use pstrain_plugin::prelude::*;

/// What 1 - p_t is at least, so that no power of it has an infinite gradient.
const LEAST: f64 = 1e-30;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default)]
    reduction: Reduction,
    alpha: Option<Weights>,
    /// How much less counts what is nearly right.
    #[serde(default = "two")]
    gamma: f64,
    ignore_index: Option<i64>,
}

struct Focal {
    reduction: Reduction,
    alpha: Option<Weights>,
    gamma: f64,
    counted: Counted,
}

fn two() -> f64 {
    2.0
}

impl Loss for Focal {
    type Config = Config;

    fn open(config: Config) -> Result<Self> {
        let Config { reduction, alpha, gamma, ignore_index } = config;
        ensure!(gamma.is_finite() && gamma >= 0.0, "`gamma` = {gamma} is not a number from 0 on");
        match &alpha {
            Some(Weights::Same(alpha)) => ensure!(
                *alpha == -1.0 || (0.0..=1.0).contains(alpha),
                "`alpha` = {alpha} is not within 0 to 1\nhint: -1 stands for none"
            ),
            Some(each) => each.check("alpha")?,
            None => {}
        }
        Ok(Focal { reduction, alpha, gamma, counted: Counted::new(None, ignore_index)? })
    }

    fn compute(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Tensor> {
        let (scores, targets) = (only("output", outputs)?, only("target", targets)?);
        match of_classes(scores, targets) {
            true => self.over_classes(scores, targets),
            false => self.over_yes_and_no(scores, targets),
        }
    }

    fn metrics(&mut self, outputs: &[Tensor], targets: &[Tensor]) -> Result<Metrics> {
        let (scores, targets) = (&outputs[0], &targets[0]);
        let accuracy = match of_classes(scores, targets) {
            true => self.counted.accuracy(scores, targets),
            false => {
                let targets = like_output(scores, targets)?;
                fraction(&scores.gt_scalar(0.0).eq(&targets.gt_scalar(0.5)))
            }
        };
        Ok(vec![("accuracy".into(), accuracy)])
    }

    fn weighs(&self) -> bool {
        !self.counted.is_plain()
    }

    fn weigh(&mut self, targets: &[Tensor]) -> Result<Weight> {
        self.counted.weigh(only("target", targets)?)
    }
}

/// Class numbers have no dimension for the classes, and of one class alone there is nothing to choose.
fn of_classes(scores: &Tensor, targets: &Tensor) -> bool {
    targets.dtype() == DType::Int64 && like_output(scores, targets).is_err()
}

impl Focal {
    fn over_yes_and_no(&self, scores: &Tensor, targets: &Tensor) -> Result<Tensor> {
        let alpha = match &self.alpha {
            None => 0.25,
            Some(Weights::Same(alpha)) => *alpha,
            Some(Weights::Each(_)) => bail!(
                "`alpha` is a list, of one number for each class, and the targets are yes or no\n\
                 hint: write one number, how much yes weighs"
            ),
        };
        ensure!(
            self.counted.is_plain(),
            "`ignore_index` is a class number, and the targets are yes or no\nhint: leave it out"
        );
        let targets = like_output(scores, targets)?;
        let no = 1.0 - &targets;
        let cross_entropy = &no * scores + (-scores).softplus();
        let wrong = (-scores).sigmoid() * &targets + scores.sigmoid() * &no;
        let losses = cross_entropy * self.modulating(&wrong);
        let losses = if alpha == -1.0 { losses } else { losses * (alpha * targets + (1.0 - alpha) * no) };
        Ok(self.reduction.of(&losses))
    }

    fn over_classes(&self, scores: &Tensor, classes: &Tensor) -> Result<Tensor> {
        check_classes(scores, classes)?;
        let (counts, classes) = self.counted.counting(classes);
        let of_target = scores.log_softmax(1).gather(1, &classes.unsqueeze(1)).reshape(&classes.shape());
        let losses = -(&of_target * self.modulating(&(1.0 - of_target.exp())));
        let weighs = counts.to_dtype(losses.dtype());
        let alpha = match &self.alpha {
            None | Some(Weights::Same(-1.0)) => {
                return Ok(reduced(&losses, &counts, &weighs, self.reduction));
            }
            Some(Weights::Same(alpha)) => bail!(
                "`alpha` = {alpha} is for targets that are yes or no, and these are class numbers\n\
                 hint: write a list of one number for each class, or leave it out"
            ),
            Some(Weights::Each(alpha)) => alpha,
        };
        let shape = scores.shape();
        ensure!(
            alpha.len() as i64 == shape[1],
            "`alpha` has {} numbers, and the output {shape:?} is of {} classes",
            alpha.len(),
            shape[1]
        );
        let alpha = Tensor::from_slice(alpha, &[shape[1]], scores).to_dtype(scores.dtype());
        let losses = losses * alpha.index_select(0, &classes.reshape(&[-1])).reshape(&classes.shape());
        Ok(reduced(&losses, &counts, &weighs, self.reduction))
    }

    /// From 1 - p_t.
    fn modulating(&self, wrong: &Tensor) -> Tensor {
        wrong.clamp(Some(LEAST), None).pow_scalar(self.gamma)
    }
}

export_loss!(Focal);
