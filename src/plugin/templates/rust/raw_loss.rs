//! A raw loss plug-in: numbers in, value and gradient out, for small outputs and mathematics that
//! the tensor operations of a loss plug-in do not have. This one is the pinball loss of a quantile.
//!
//! ```toml
//! [loss]
//! plugin = "NAME.wasm"
//! params = { quantile = 0.9 }      # these keys are `Pinball`
//! ```
//!
//! `pstrain plugin check` compares the gradient with finite differences.

use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Pinball {
    #[serde(default = "half")]
    quantile: f64,
}

fn half() -> f64 {
    0.5
}

impl RawLoss for Pinball {
    type Config = Self;

    // Called once for each instance.
    fn open(config: Self) -> Result<Self> {
        let quantile = config.quantile;
        ensure!(
            quantile > 0.0 && quantile < 1.0,
            "`quantile` = {quantile} is not between 0 and 1"
        );
        Ok(config)
    }

    // Outputs come as float32, or as float64 if they are that; targets as the dataset gave them.
    // The gradient has as many numbers as its output, in the same order.
    fn compute(&mut self, outputs: &[Buffer], targets: &[Buffer], _want: Want) -> Result<Value> {
        let ([output], [target]) = (outputs, targets) else {
            bail!("one output and one target are wanted")
        };
        let (o, t) = (output.to_f64()?, target.to_f64()?);
        ensure!(
            o.len() == t.len(),
            "the output is {:?}, and the targets are {:?}",
            output.shape(),
            target.shape()
        );
        let n = o.len() as f64;
        // Below the target each unit costs `quantile`, above it one minus that.
        let slope = |o, t| {
            if o < t {
                -self.quantile
            } else {
                1.0 - self.quantile
            }
        };
        let pairs = || o.iter().zip(&t).map(|(&o, &t)| (o, t));
        let loss = pairs().map(|(o, t)| slope(o, t) * (o - t)).sum::<f64>() / n;
        let gradient: Vec<f64> = pairs().map(|(o, t)| slope(o, t) / n).collect();
        Ok(Value::new(loss).gradient_like(output, &gradient))
    }
}

export_raw_loss!(Pinball);

// `cargo test` runs on your own machine, without WebAssembly.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_output_above_the_target_costs_less_for_a_high_quantile() -> Result<()> {
        let mut loss = Pinball { quantile: 0.75 };
        let (outputs, targets) = (
            [Buffer::new(&[2f32, 0.0], [2])],
            [Buffer::new(&[1f32, 1.0], [2])],
        );
        let value = loss.compute(
            &outputs,
            &targets,
            Want {
                gradient: true,
                metrics: false,
            },
        )?;
        assert_eq!(value.loss(), 0.5);
        assert_eq!(value.gradient_of(0), [0.125, -0.375]);
        Ok(())
    }
}
