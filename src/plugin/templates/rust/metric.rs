//! A metric plug-in: the part of the outputs that are within a tolerance of their targets.
//!
//! ```toml
//! [eval]
//! metrics = [{ plugin = "NAME.wasm", name = "within", params = { tolerance = 0.1 }, mode = "max" }]
//! ```
//!
//! Each trainer counts its own batches; the first one merges what the others have counted.

use pstrain_plugin::prelude::*;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    #[serde(default = "tenth")]
    tolerance: f64,
}

fn tenth() -> f64 {
    0.1
}

struct Within {
    tolerance: f64,
    hits: i64,
    count: i64,
}

impl Metric for Within {
    type Config = Config;

    // Called once for each instance.
    fn open(Config { tolerance }: Config) -> Result<Self> {
        ensure!(tolerance > 0.0, "`tolerance` = {tolerance} is not above 0");
        Ok(Within {
            tolerance,
            hits: 0,
            count: 0,
        })
    }

    // Counts a batch. Outputs come as float32, or as float64 if they are that; targets as the
    // dataset gave them.
    fn update(&mut self, outputs: &[Buffer], targets: &[Buffer]) -> Result<()> {
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
        let near = |(o, t): &(&f64, &f64)| (*o - *t).abs() <= self.tolerance;
        self.hits += o.iter().zip(&t).filter(near).count() as i64;
        self.count += o.len() as i64;
        Ok(())
    }

    // What has been counted so far, for `merge` of another instance.
    fn state(&self) -> Result<Vec<u8>> {
        Ok(pack(&[self.hits, self.count]))
    }

    // It came from another machine: look at it before it counts.
    fn merge(&mut self, state: &[u8]) -> Result<()> {
        let [hits, count] = unpack::<i64, 2>(state)?;
        ensure!(0 <= hits && hits <= count, "{hits} hits of {count} came");
        self.hits += hits;
        self.count += count;
        Ok(())
    }

    // One number, or `Figure::several([("near", 0.9), ("far", 0.1)])`.
    fn value(&self) -> Result<Figure> {
        Ok((self.hits as f64 / self.count as f64).into())
    }
}

export_metric!(Within);

// `cargo test` runs on your own machine, without WebAssembly.
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_two_have_counted_adds_up() -> Result<()> {
        let open = || Within::open(Config { tolerance: 0.5 });
        let (mut one, mut other) = (open()?, open()?);
        let numbers = |numbers: &[f32]| [Buffer::new(numbers, [numbers.len() as u64])];
        one.update(&numbers(&[1.0, 2.0, 3.0]), &numbers(&[1.25, 4.0, 3.5]))?;
        other.update(&numbers(&[0.0]), &numbers(&[1.0]))?;
        one.merge(&other.state()?)?;
        assert_eq!(one.value()?, Figure::Number(0.5));
        Ok(())
    }
}
